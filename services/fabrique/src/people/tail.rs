//! `tail`: what happens, as it happens.

use std::time::Duration;

use fabrique_core::id::AppName;
use fabrique_core::time::Timestamp;
use fabrique_operator::{Exit, Operator, tail};
use futures::StreamExt as _;

use crate::ambient;
use crate::people::console::{Console, remark};

/// Prints events until it is interrupted.
pub(crate) async fn tail(
    console: Console,
    operator: &Operator,
    app: Option<&AppName>,
    since: Option<Duration>,
) -> anyhow::Result<Exit> {
    if let Some(app) = app
        && operator.builds(Some(app.as_str()), 1).await?.is_empty()
    {
        // Waiting for the events of a mistyped name would be a long wait.
        operator.app(app.as_str()).await?;
    }
    let mut events = operator.tail(app.map(AppName::as_str), since.map(ago)).await?;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) if console.is_json() => console.json_line(&tail::line(&event))?,
            Ok(event) => console.line(&tail::line(&event).to_string())?,
            // One event that cannot be read ends nothing; the stream itself ends when the bus stays away.
            Err(error) => remark(&error.to_string()),
        }
    }
    Ok(Exit::Unreachable)
}

/// The moment that long ago.
pub(crate) fn ago(duration: Duration) -> Timestamp {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    Timestamp(ambient::now().0.saturating_sub(millis))
}
