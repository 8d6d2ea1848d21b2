//! The worker's metrics. Labels are words of fabrique only.

use fabrique_core::id::Channel;
use fabrique_ports::Peer;
use metrics::{counter, describe_counter};

const DECISIONS: &str = "fabrique_decisions_total";
const COMMITS: &str = "fabrique_commits_total";
const TROUBLES: &str = "fabrique_troubles_total";
const EVENTS_DROPPED: &str = "fabrique_events_dropped_total";
const LOG_LINES_DROPPED: &str = "fabrique_log_lines_dropped_total";

/// Describes the metrics to the installed recorder. Once, at the start.
pub fn describe() {
    describe_counter!(DECISIONS, "Decisions by action.");
    describe_counter!(COMMITS, "Automatic commits by channel: image or infra.");
    describe_counter!(TROUBLES, "Looks in vain by the peer that did not answer.");
    describe_counter!(
        EVENTS_DROPPED,
        "Events and entries of the history that were not told; no work is lost."
    );
    describe_counter!(LOG_LINES_DROPPED, "Lines of build logs that were not stored.");
}

pub(crate) fn decision(action: &'static str) {
    counter!(DECISIONS, "action" => action).increment(1);
}

pub(crate) fn commit(channel: Channel) {
    counter!(COMMITS, "channel" => channel.as_str()).increment(1);
}

pub(crate) fn trouble(peer: Peer) {
    counter!(TROUBLES, "peer" => peer.to_string()).increment(1);
}

pub(crate) fn event_dropped() {
    counter!(EVENTS_DROPPED).increment(1);
}

pub(crate) fn log_lines_dropped(lines: usize) {
    counter!(LOG_LINES_DROPPED).increment(lines as u64);
}
