//! `dlq`: apps that automation gave up on, or that only a person can move on.

use fabrique_core::id::AppName;
use fabrique_operator::{DeadLetter, Exit, Operator, Stuck};
use futures::StreamExt as _;
use serde::Serialize;

use crate::people::console::Console;
use crate::people::table::{Cell, Table, Tone};
use crate::people::{why, words};

/// How much of a log is shown with a dead letter.
const LOG_LINES: usize = 20;

/// A dead letter with the end of its log.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    letter: DeadLetter,
    log: Vec<String>,
}

/// Lists every app that is stuck. The list is the answer: it ends well however long it is.
pub(crate) async fn list(console: Console, operator: &Operator) -> anyhow::Result<Exit> {
    let letters = operator.dead_letters().await?;
    if console.is_json() {
        console.json(&letters)?;
    } else if letters.is_empty() {
        console.line("no app is stuck")?;
    } else {
        let mut table = Table::new(&["APP", "STUCK", "SINCE", "ATTEMPTS", "WHAT"]);
        letters.iter().for_each(|letter| row(&mut table, letter));
        console.table(&table)?;
    }
    Ok(Exit::Ok)
}

fn row(table: &mut Table, letter: &DeadLetter) {
    let app = letter.app.as_str();
    match &letter.stuck {
        Stuck::Dead { failure } => table.row([
            app.into(),
            Cell::toned(Tone::Bad, "dead"),
            words::when(failure.at).into(),
            failure.attempts.to_string().into(),
            format!("{}: {}", failure.kind, failure.message).into(),
        ]),
        Stuck::Trouble { environment, why } => table.row([
            app.into(),
            Cell::toned(Tone::Bad, "trouble"),
            "".into(),
            "".into(),
            format!("{environment}: {why}").into(),
        ]),
    }
}

/// Shows how one app is stuck.
pub(crate) async fn show(console: Console, operator: &Operator, app: &AppName) -> anyhow::Result<Exit> {
    let mut shown = Vec::new();
    for letter in operator.dead_letter(app.as_str()).await? {
        let log = end_of_log(operator, &letter).await?;
        shown.push(Shown { letter, log });
    }
    if console.is_json() {
        console.json(&shown)?;
    } else if shown.is_empty() {
        console.line(&format!("{app} is not stuck; `fabrique why {app}` says how it stands"))?;
    }
    if !console.is_json() {
        for shown in &shown {
            print(console, shown)?;
        }
    }
    Ok(Exit::Ok)
}

fn print(console: Console, shown: &Shown) -> anyhow::Result<()> {
    let Shown { letter, log } = shown;
    let mut table = Table::facts();
    table.fact("app", letter.app.as_str());
    match &letter.stuck {
        Stuck::Dead { failure } => {
            why::failure_facts(&mut table, failure);
            table.fact("build", failure.build.as_ref().map(ToString::to_string).unwrap_or_default());
            table.fact("tried again", words::when(failure.not_before));
        }
        Stuck::Trouble { environment, why } => table.fact(&format!("{environment} trouble"), why),
    }
    table.fact("remedy", &letter.remedy);
    console.wrapped_table(&table)?;
    for line in log {
        console.line(&format!("  {line}"))?;
    }
    Ok(())
}

/// The last lines of the attempt that failed. Logs are kept shorter than dead letters may live.
async fn end_of_log(operator: &Operator, letter: &DeadLetter) -> anyhow::Result<Vec<String>> {
    let Stuck::Dead { failure } = &letter.stuck else { return Ok(Vec::new()) };
    let Some(build) = &failure.build else { return Ok(Vec::new()) };
    let Ok(mut lines) = operator.logs(build.as_str(), false).await else { return Ok(Vec::new()) };
    let mut last = std::collections::VecDeque::with_capacity(LOG_LINES);
    while let Some(line) = lines.next().await {
        if last.len() == LOG_LINES {
            last.pop_front();
        }
        last.push_back(line?);
    }
    Ok(last.into())
}
