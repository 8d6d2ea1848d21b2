//! `logs`: what a build printed.

use std::time::{Duration, Instant};

use fabrique_core::id::BuildId;
use fabrique_operator::{Exit, Operator};
use fabrique_ports::PortResult;
use fabrique_ports::records::BuildPhase;
use futures::{Stream, StreamExt as _};
use serde::Serialize;

use crate::cli::BuildOrApp;
use crate::people::builds;
use crate::people::console::Console;

/// A log is closed a moment before the history knows how its build ended; this long at most.
const SETTLES: Duration = Duration::from_secs(5);
/// Between two looks at the history.
const PAUSE: Duration = Duration::from_millis(200);
/// A log that is silent for this long may be one that nobody could close: the history is asked whether its build is over.
const SILENT: Duration = Duration::from_secs(5);

/// One line of output, for programs.
#[derive(Serialize)]
struct Line<'a> {
    line: &'a str,
}

/// Prints the log of a build, or of an app's newest build; with `follow`, until the build ends: then it
/// ends well when an image came out.
pub(crate) async fn logs(
    console: Console,
    operator: &Operator,
    which: &BuildOrApp,
    follow: bool,
) -> anyhow::Result<Exit> {
    let build = builds::named(operator, which).await?;
    let mut lines = operator.logs(build.build.as_str(), follow).await?;
    while let Some(line) = next_line(operator, &build.build, &mut lines).await {
        let line = line?;
        if console.is_json() {
            console.json_line(&Line { line: &line })?;
        } else {
            console.line(&line)?;
        }
    }
    if !follow {
        return Ok(Exit::Ok);
    }
    Ok(Exit::ok_if(made_an_image(operator, &build.build).await?))
}

/// The next line; nothing when the log is closed, or silent although its build is over.
async fn next_line<S: Stream<Item = PortResult<String>> + Unpin>(
    operator: &Operator,
    build: &BuildId,
    lines: &mut S,
) -> Option<PortResult<String>> {
    loop {
        if let Ok(line) = tokio::time::timeout(SILENT, lines.next()).await {
            return line;
        }
        let entry = operator.build(build.as_str()).await;
        if entry.is_ok_and(|entry| entry.phase.is_final()) {
            return None;
        }
    }
}

async fn made_an_image(operator: &Operator, build: &BuildId) -> anyhow::Result<bool> {
    let patience = Instant::now() + SETTLES;
    loop {
        match operator.build(build.as_str()).await?.phase {
            BuildPhase::Pushed { .. } | BuildPhase::Committed { .. } | BuildPhase::NotCommitted { .. } => {
                return Ok(true);
            }
            BuildPhase::Failed { .. } | BuildPhase::Superseded { .. } => return Ok(false),
            BuildPhase::Queued | BuildPhase::Preparing | BuildPhase::Building
                if Instant::now() < patience =>
            {
                tokio::time::sleep(PAUSE).await;
            }
            BuildPhase::Queued | BuildPhase::Preparing | BuildPhase::Building => return Ok(false),
        }
    }
}
