//! The receiver's metrics. Labels are words of this crate only, never anything from a delivery.

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

const DELIVERIES: &str = "fabrique_receiver_deliveries_total";
const ANSWER: &str = "fabrique_receiver_answer_seconds";
const WAKES: &str = "fabrique_receiver_wakes_total";
const RELOADS: &str = "fabrique_receiver_reloads_total";
const EVENTS_DROPPED: &str = "fabrique_receiver_events_dropped_total";
const IN_FLIGHT: &str = "fabrique_receiver_in_flight";
const CONNECTIONS: &str = "fabrique_receiver_connections";

/// Describes the metrics to the installed recorder. Once, at the start.
pub fn describe() {
    describe_counter!(DELIVERIES, "Deliveries by outcome.");
    describe_histogram!(ANSWER, Unit::Seconds, "From the head of a delivery to its answer.");
    describe_counter!(WAKES, "Wakes by result: acknowledged or failed.");
    describe_counter!(RELOADS, "Readings of the registrations by result: done or failed.");
    describe_counter!(EVENTS_DROPPED, "Events lost by cause: queue_full or not_published.");
    describe_gauge!(IN_FLIGHT, "Deliveries at work.");
    describe_gauge!(CONNECTIONS, "Open connections.");
}

pub(crate) fn delivery(outcome: &'static str, took: Duration) {
    counter!(DELIVERIES, "outcome" => outcome).increment(1);
    histogram!(ANSWER).record(took.as_secs_f64());
}

pub(crate) fn wake(acknowledged: bool) {
    counter!(WAKES, "result" => if acknowledged { "acknowledged" } else { "failed" }).increment(1);
}

pub(crate) fn reload(done: bool) {
    counter!(RELOADS, "result" => if done { "done" } else { "failed" }).increment(1);
}

pub(crate) fn events_dropped(cause: &'static str, count: usize) {
    counter!(EVENTS_DROPPED, "cause" => cause).increment(u64::try_from(count).unwrap_or(u64::MAX));
}

/// One more of something, for as long as it lives.
pub(crate) struct Counted(&'static str);

impl Counted {
    /// A delivery at work.
    pub(crate) fn delivery() -> Self {
        Self::new(IN_FLIGHT)
    }

    /// An open connection.
    pub(crate) fn connection() -> Self {
        Self::new(CONNECTIONS)
    }

    fn new(name: &'static str) -> Self {
        gauge!(name).increment(1);
        Self(name)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        gauge!(self.0).decrement(1);
    }
}
