//! `config`: the configuration as it is here, and the page of all keys.

use fabrique_operator::Exit;

use crate::config::{self, Setting};
use crate::people::console::Console;
use crate::people::table::{Cell, Table, Tone};

/// Prints every key with its value here, and who says so.
pub(crate) fn effective(console: Console, settings: &[Setting]) -> anyhow::Result<Exit> {
    if console.is_json() {
        console.json(&settings)?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["KEY", "VALUE", "FROM"]);
    for setting in settings {
        let tone = if setting.from == "default" { Tone::Faint } else { Tone::Plain };
        let cells = [&setting.key, &setting.value, &setting.from];
        table.row(cells.map(|cell| Cell::toned(tone, cell)));
    }
    console.wrapped_table(&table)?;
    Ok(Exit::Ok)
}

/// Prints the page of all keys.
pub(crate) fn reference(console: Console) -> anyhow::Result<Exit> {
    console.text(&config::reference())?;
    Ok(Exit::Ok)
}
