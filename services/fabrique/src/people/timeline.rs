//! `timeline`: one push from its delivery to its commit.

use fabrique_core::id::{AppName, Revision};
use fabrique_core::time::Timestamp;
use fabrique_operator::{Exit, Operator};

use crate::cli;
use crate::people::console::Console;
use crate::people::progress::showing;
use crate::people::tail::ago;
use crate::people::trouble::Complaint;

/// A push is heard of at most this long before its build is queued, however busy the workers are.
const BEFORE: std::time::Duration = std::time::Duration::from_mins(15);
/// Where to begin when nothing was built.
const USUALLY: std::time::Duration = std::time::Duration::from_hours(1);

/// Prints the timeline of a push, waiting for its end as long as the caller said.
pub(crate) async fn timeline(
    console: Console,
    operator: &Operator,
    wanted: &cli::Timeline,
) -> anyhow::Result<Exit> {
    let app = &wanted.app;
    operator.app(app.as_str()).await?;
    let (revision, queued) = push(operator, app, wanted.revision.as_ref()).await?;
    let since = wanted.pushed_at.or_else(|| wanted.since.map(ago)).unwrap_or_else(|| match queued {
        Some(queued) => Timestamp(queued.0.saturating_sub(millis(BEFORE))),
        None => ago(USUALLY),
    });
    let reading = operator.timeline(app, &revision, since, wanted.pushed_at.is_some(), wanted.wait);
    let timeline = showing(&format!("following {app} at {}", revision.short()), reading).await?;
    if console.is_json() {
        console.json(&timeline)?;
    } else {
        for line in timeline.to_string().lines() {
            console.line(line)?;
        }
    }
    Ok(timeline.exit())
}

/// The revision that is meant, and when it was first queued as far as that is known: the one that was named,
/// or the newest that was built.
async fn push(
    operator: &Operator,
    app: &AppName,
    named: Option<&Revision>,
) -> anyhow::Result<(Revision, Option<Timestamp>)> {
    let builds = operator.builds(Some(app.as_str()), 100).await?;
    let Some(revision) = named.or_else(|| builds.first().map(|newest| &newest.revision)) else {
        let remedy = format!("name the push with --revision, or ask `fabrique why {app}`");
        return Err(Complaint::usage(format!("nothing of {app} was built yet; {remedy}")).into());
    };
    let newest = builds.iter().find(|build| build.revision == *revision);
    Ok((revision.clone(), newest.map(|build| build.queued)))
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
