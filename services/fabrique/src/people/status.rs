//! `status`: every app at a glance.

use fabrique_operator::{AppStatus, EnvironmentStatus, Exit, Operator, Status};

use crate::people::console::Console;
use crate::people::table::{Cell, Table, Tone};
use crate::people::{validate, words};

/// Prints how every app stands.
pub(crate) async fn status(console: Console, operator: &Operator) -> anyhow::Result<Exit> {
    let status = operator.status().await?;
    if console.is_json() {
        console.json(&status)?;
    } else {
        print(console, &status)?;
    }
    Ok(status.exit())
}

fn print(console: Console, status: &Status) -> anyhow::Result<()> {
    if status.apps.is_empty() {
        console.line("no app is registered; push apps/<app>/app.yaml to cluster/apps")?;
    } else {
        let mut table = Table::new(&["APP", "TARGET", "DEPLOYED", "STATE", "WHY"]);
        for app in &status.apps {
            let why = app.error.as_ref().unwrap_or(&app.reason);
            table.row([
                app.app.as_str().into(),
                words::short(app.target.as_ref()).into(),
                deployed(app).into(),
                state(app),
                why.into(),
            ]);
        }
        console.table(&table)?;
    }
    validate::findings(console, &status.findings)
}

/// Where which revision is deployed; the environment's name only where there are several.
fn deployed(app: &AppStatus) -> String {
    let one = |environment: &EnvironmentStatus| words::short(environment.image.deployed.as_ref());
    match app.environments.as_slice() {
        [only] => one(only),
        several => {
            let named =
                several.iter().map(|environment| format!("{}:{}", environment.environment, one(environment)));
            named.collect::<Vec<_>>().join(" ")
        }
    }
}

/// The one word that says whether anybody has to act.
pub(crate) fn state(app: &AppStatus) -> Cell {
    let is_dead = app.failures().any(|failure| failure.dead);
    let (tone, word) = match app {
        AppStatus { error: Some(_), .. } => (Tone::Bad, "unknown"),
        AppStatus { running: Some(running), .. } if running.pushed => (Tone::Busy, "pushed"),
        AppStatus { running: Some(_), .. } => (Tone::Busy, "building"),
        AppStatus { .. } if is_dead => (Tone::Bad, "dead"),
        AppStatus { failure: Some(_), needs_person: true, .. } => (Tone::Bad, "failed"),
        AppStatus { needs_person: true, .. } => (Tone::Bad, "held up"),
        AppStatus { failure: Some(_), .. } | AppStatus { waiting_until: Some(_), .. } => {
            (Tone::Busy, "waiting")
        }
        AppStatus { due: true, .. } => (Tone::Busy, "due"),
        AppStatus { action, .. } if action != "nothing" => (Tone::Busy, "behind"),
        AppStatus { target: None, .. } => (Tone::Faint, "idle"),
        AppStatus { .. } => (Tone::Good, "ok"),
    };
    Cell::toned(tone, word)
}
