//! A person's word before what cannot be undone.

use std::io::{self, IsTerminal as _, Write as _};

use crate::people::console::Console;

/// Whether somebody is there to be asked: a program that reads the result is nobody.
pub(crate) fn can_be_had(console: Console) -> bool {
    !console.is_json() && io::stdin().is_terminal()
}

/// What the person at the terminal answers.
pub(crate) fn answer(question: &str) -> io::Result<String> {
    let mut stderr = io::stderr().lock();
    stderr.write_all(question.as_bytes())?;
    stderr.flush()?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(line)
}
