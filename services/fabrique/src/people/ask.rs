//! `retry`, `rebuild`, `cancel`, `release`, `repair`: asking a worker.

use fabrique_operator::{Exit, Operator};
use fabrique_ports::bus::Command;

use crate::people::caller::caller;
use crate::people::console::Console;

/// Asks for `command` about `app` and prints the answer.
pub(crate) async fn ask(
    console: Console,
    operator: &Operator,
    app: &str,
    command: Command,
) -> anyhow::Result<Exit> {
    let outcome = operator.command(app, command, &caller()).await?;
    if console.is_json() {
        console.json(&outcome)?;
    } else {
        let refused = if outcome.done { "" } else { "refused: " };
        console.line(&format!("{}: {refused}{}", outcome.app, outcome.message))?;
    }
    Ok(outcome.exit())
}
