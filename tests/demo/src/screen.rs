//! What the demo writes on standard output: short, aligned, and coloured only for eyes.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

/// The width of a step's name.
const NAME: usize = 9;
/// The width of what a step did, so that the times stand below each other.
const WHAT: usize = 72;

const BOLD: &str = "1";
const DIM: &str = "2";
const GREEN: &str = "32";

/// Standard output, and what it can show.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Screen {
    /// Somebody reads and types.
    terminal: bool,
    colour: bool,
}

impl Screen {
    /// What this process was given.
    pub(crate) fn detect() -> Self {
        let terminal = io::stdout().is_terminal();
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let colour = terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb");
        Self { terminal: terminal && io::stdin().is_terminal(), colour }
    }

    /// Whether somebody reads and types.
    pub(crate) fn has_terminal(self) -> bool {
        self.terminal
    }

    /// Whether colours help.
    pub(crate) fn has_colour(self) -> bool {
        self.colour
    }

    /// A heading between empty lines.
    pub(crate) fn heading(self, text: &str) -> io::Result<()> {
        self.text(&format!("\n{}\n", self.paint(BOLD, text)))
    }

    /// Any text.
    pub(crate) fn text(self, text: &str) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{text}")
    }

    /// The one line that matters.
    pub(crate) fn result(self, text: &str) -> io::Result<()> {
        self.text(&self.paint(GREEN, text))
    }

    /// A step began; the line stands until [`Screen::did`] or [`Screen::forget`] replaces it.
    pub(crate) fn doing(self, step: &str) -> io::Result<()> {
        if !self.colour {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        write!(out, "  {}", self.paint(DIM, &format!("{step:<NAME$} …")))?;
        out.flush()
    }

    /// A step is done.
    pub(crate) fn did(self, step: &str, what: &str, took: Duration) -> io::Result<()> {
        self.forget()?;
        let took = self.paint(DIM, &format!("{:>5.1} s", took.as_secs_f32()));
        self.text(&format!("  {step:<NAME$} {what:<WHAT$} {took}"))
    }

    /// Takes the line of [`Screen::doing`] away.
    pub(crate) fn forget(self) -> io::Result<()> {
        if !self.colour {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        write!(out, "\r\x1b[K")?;
        out.flush()
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
