//! How the history shows the end of a build.

use fabrique_core::time::Timestamp;
use fabrique_ports::PortResult;
use fabrique_ports::records::{BuildEntry, BuildPhase};

use crate::config::Ports;
use crate::session::Context;

/// Ends a build of our own: queued behind what was told of it before, so that its end cannot be overtaken.
pub(crate) fn tell(context: &Context, mut entry: BuildEntry, end: BuildPhase, trace: Option<String>) {
    entry.enter(end, context.ambient.now());
    context.announcer.enter(&entry, trace);
}

/// Ends a build that another worker left, which nobody else tells of, before anything goes on.
pub(crate) async fn note(
    ports: &Ports,
    mut entry: BuildEntry,
    end: BuildPhase,
    now: Timestamp,
) -> PortResult<()> {
    entry.enter(end, now);
    ports.history.put_build(&entry).await
}
