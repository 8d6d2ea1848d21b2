//! `builds`: attempts, newest first.

use fabrique_operator::{Exit, Operator, tail};
use fabrique_ports::records::{BuildEntry, BuildPhase};

use crate::ambient;
use crate::cli::BuildOrApp;
use crate::people::console::Console;
use crate::people::table::{Cell, Table, Tone};
use crate::people::trouble::Complaint;
use crate::people::words;

/// Prints the newest builds of an app or of all, or the one that is named.
pub(crate) async fn builds(
    console: Console,
    operator: &Operator,
    which: Option<&BuildOrApp>,
    limit: usize,
) -> anyhow::Result<Exit> {
    let builds = match which {
        None => operator.builds(None, limit).await?,
        Some(BuildOrApp::Build(build)) => vec![operator.build(build.as_str()).await?],
        Some(BuildOrApp::App(app)) => {
            let builds = operator.builds(Some(app.as_str()), limit).await?;
            if builds.is_empty() {
                // Nothing was built of it, or there is no such app: the second is an error with near names.
                operator.app(app.as_str()).await?;
            }
            builds
        }
    };
    if console.is_json() {
        console.json(&builds)?;
    } else if builds.is_empty() {
        console.line("nothing was built yet")?;
    } else {
        console.table(&table(&builds))?;
    }
    Ok(Exit::Ok)
}

/// The build that is named, or the newest one of the app.
pub(crate) async fn named(operator: &Operator, which: &BuildOrApp) -> anyhow::Result<BuildEntry> {
    let app = match which {
        BuildOrApp::Build(build) => return Ok(operator.build(build.as_str()).await?),
        BuildOrApp::App(app) => app,
    };
    if let Some(newest) = operator.builds(Some(app.as_str()), 1).await?.pop() {
        return Ok(newest);
    }
    operator.app(app.as_str()).await?;
    Err(Complaint::usage(format!("{app} has no build yet; `fabrique why {app}` says what it waits for"))
        .into())
}

fn table(builds: &[BuildEntry]) -> Table {
    let mut table = Table::new(&["BUILD", "REVISION", "STATE", "QUEUED", "TOOK", "DAEMON", "WHAT"]);
    for build in builds {
        let end = build.ended.unwrap_or_else(ambient::now);
        table.row([
            build.build.as_str().into(),
            build.revision.short().into(),
            state(&build.phase),
            words::when(build.queued).into(),
            words::took(build.queued.until(end)).into(),
            build.daemon.as_deref().unwrap_or_default().into(),
            what(build).into(),
        ]);
    }
    table
}

fn state(phase: &BuildPhase) -> Cell {
    let (tone, word) = match phase {
        BuildPhase::Queued => (Tone::Busy, "queued"),
        BuildPhase::Preparing => (Tone::Busy, "preparing"),
        BuildPhase::Building => (Tone::Busy, "building"),
        BuildPhase::Pushed { .. } => (Tone::Busy, "pushed"),
        BuildPhase::Committed { commits, .. } if commits.is_empty() => (Tone::Good, "built"),
        BuildPhase::Committed { .. } => (Tone::Good, "committed"),
        BuildPhase::NotCommitted { .. } => (Tone::Busy, "not committed"),
        BuildPhase::Failed { .. } => (Tone::Bad, "failed"),
        BuildPhase::Superseded { .. } => (Tone::Faint, "superseded"),
    };
    Cell::toned(tone, word)
}

/// How it ended; why it was started, until then.
fn what(build: &BuildEntry) -> String {
    match &build.phase {
        BuildPhase::Queued | BuildPhase::Preparing | BuildPhase::Building => build.reason.clone(),
        BuildPhase::Pushed { digest } | BuildPhase::Committed { digest, .. } => digest.to_string(),
        BuildPhase::NotCommitted { reason, .. } => reason.clone(),
        BuildPhase::Failed { kind, message } => format!("{kind}: {message}"),
        phase @ BuildPhase::Superseded { .. } => tail::phase_text(phase),
    }
}
