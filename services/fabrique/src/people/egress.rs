//! `builds NAME --egress`: what a build fetched, from where, with what answer.

use fabrique_operator::{BuildEgress, Exit, Operator};
use fabrique_ports::egress::{Answer, Egress};
use fabrique_ports::records::BuildEntry;

use crate::cli::BuildOrApp;
use crate::people::builds;
use crate::people::console::{Console, remark};
use crate::people::table::{Cell, Table, Tone};
use crate::people::words;

/// Prints what a build, or an app's newest one, fetched.
pub(crate) async fn egress(
    console: Console,
    operator: &Operator,
    which: &BuildOrApp,
) -> anyhow::Result<Exit> {
    let entry = builds::named(operator, which).await?;
    let told = BuildEgress::of(&entry);
    if console.is_json() {
        console.json(&told)?;
        return Ok(Exit::Ok);
    }
    if let Some(egress) = told.egress.as_ref().filter(|egress| !egress.fetches.is_empty()) {
        console.wrapped_table(&table(&entry, egress))?;
    }
    told.notes.iter().for_each(|note| remark(note));
    Ok(Exit::Ok)
}

fn table(entry: &BuildEntry, egress: &Egress) -> Table {
    let mut table = Table::new(&["AFTER", "WHAT", "FROM", "METHOD", "ANSWER", "LOCATION", "STEP"]);
    for fetched in &egress.fetches {
        let fetch = &fetched.fetch;
        table.row([
            words::took(entry.queued.until(fetched.at)).into(),
            fetch.what.to_string().into(),
            fetch.place.as_deref().unwrap_or_default().into(),
            fetch.method.as_deref().unwrap_or_default().into(),
            answer(fetch.answer),
            fetch.location.as_str().into(),
            fetch.step.as_deref().unwrap_or_default().into(),
        ]);
    }
    table
}

fn answer(answer: Answer) -> Cell {
    let tone = match answer {
        Answer::Had | Answer::Status(..400) => Tone::Good,
        Answer::Status(_) | Answer::Failed | Answer::Refused => Tone::Bad,
        Answer::Unseen => Tone::Faint,
    };
    Cell::toned(tone, answer.to_string())
}
