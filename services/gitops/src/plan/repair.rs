//! Rewriting bindings that people changed.

use fabrique_core::app::App;
use fabrique_core::id::EnvironmentName;

use super::{Plan, Site};
use crate::message::CommitMessage;
use crate::tree::Tree;

/// Makes every binding of the environment show what its composition says, by a person's word.
///
/// # Errors
/// Whatever is wrong with a file or a binding.
pub fn repair(tree: &Tree, app: &App, environment: &EnvironmentName) -> Plan {
    let site = Site::open(tree, app, environment)?;
    if site.awaits_overlay() {
        return Ok(None);
    }
    let drifts = site.drift(tree, &site.before)?;
    let body: Vec<String> = drifts.iter().map(ToString::to_string).collect();
    let mut changes = site.changes();
    site.write_bindings(&mut changes, &site.before, None)?;
    let subject = format!("Repair the bindings of {} in {environment}", app.name);
    let message = CommitMessage::new(&subject, &body.join("\n"), site.trailers());
    site.finish(changes, &site.before, message)
}
