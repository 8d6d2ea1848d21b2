//! Where results go: standard output for what was asked, standard error for everything else.

use std::env;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::cli::Output;
use crate::people::table::{Fit, Look, Table, clean};

/// The way results are printed. Standard output holds the result or nothing, so that a program can read it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Console {
    /// What the caller asked for.
    pub(crate) output: Output,
    look: Look,
}

impl Console {
    /// The console of this process.
    pub(crate) fn new(output: Output) -> Self {
        let terminal = io::stdout().is_terminal();
        let width = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
        let colour = terminal && colours_wanted();
        let look = Look { width: width.filter(|_| terminal), fit: Fit::Cut, colour };
        Self { output, look }
    }

    /// Whether a program reads the result.
    pub(crate) fn is_json(self) -> bool {
        self.output == Output::Json
    }

    /// One line of a result, with what others wrote made harmless.
    pub(crate) fn line(self, text: &str) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{}", clean(text))
    }

    /// Text that this program made, as it is.
    pub(crate) fn text(self, text: &str) -> io::Result<()> {
        io::stdout().lock().write_all(text.as_bytes())
    }

    /// A result for people.
    pub(crate) fn table(self, table: &Table) -> io::Result<()> {
        self.text(&table.render(self.look))
    }

    /// A result for people in which every word counts: nothing is cut off.
    pub(crate) fn wrapped_table(self, table: &Table) -> io::Result<()> {
        self.text(&table.render(Look { fit: Fit::Wrap, ..self.look }))
    }

    /// A result for programs.
    pub(crate) fn json(self, value: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(value)?;
        text.push('\n');
        Ok(self.text(&text)?)
    }

    /// One of several results for programs, each on a line of its own.
    pub(crate) fn json_line(self, value: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_string(value)?;
        text.push('\n');
        Ok(self.text(&text)?)
    }
}

/// A remark that is no part of the result.
pub(crate) fn remark(text: &str) {
    // Nobody is left to tell when standard error is gone.
    drop(writeln!(io::stderr().lock(), "fabrique: {}", clean(text)));
}

/// <https://no-color.org>
fn colours_wanted() -> bool {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}
