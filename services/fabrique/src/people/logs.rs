//! `logs`: what a build printed.

use fabrique_core::id::AppName;
use fabrique_operator::{Exit, Operator};
use fabrique_ports::records::{BuildEntry, BuildPhase};
use futures::StreamExt as _;
use serde::Serialize;

use crate::cli::BuildOrApp;
use crate::people::console::Console;
use crate::people::trouble::Complaint;

/// One line of output, for programs.
#[derive(Serialize)]
struct Line<'a> {
    line: &'a str,
}

/// Prints the log of a build, or of an app's newest build; with `follow`, until the build ends, and then its
/// failure is the command's.
pub(crate) async fn logs(
    console: Console,
    operator: &Operator,
    which: &BuildOrApp,
    follow: bool,
) -> anyhow::Result<Exit> {
    let build = match which {
        BuildOrApp::Build(build) => operator.build(build.as_str()).await?,
        BuildOrApp::App(app) => newest(operator, app).await?,
    };
    let mut lines = operator.logs(build.build.as_str(), follow).await?;
    while let Some(line) = lines.next().await {
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
    let ended = operator.build(build.build.as_str()).await?;
    Ok(Exit::ok_if(!matches!(ended.phase, BuildPhase::Failed { .. })))
}

async fn newest(operator: &Operator, app: &AppName) -> anyhow::Result<BuildEntry> {
    if let Some(newest) = operator.builds(Some(app.as_str()), 1).await?.pop() {
        return Ok(newest);
    }
    operator.app(app.as_str()).await?;
    Err(Complaint::usage(format!("{app} has no build yet; `fabrique why {app}` says what it waits for"))
        .into())
}
