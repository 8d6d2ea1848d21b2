//! The reconciler's metrics.

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

use crate::sweep::Sweep;

const SWEEP: &str = "fabrique_sweep_seconds";
const WOKEN: &str = "fabrique_sweep_apps_woken_total";
const FAILED: &str = "fabrique_sweep_apps_failed_total";

/// Describes the metrics to the installed recorder. Once, at the start.
pub fn describe() {
    describe_histogram!(SWEEP, Unit::Seconds, "How long a sweep takes.");
    describe_counter!(WOKEN, "Apps that a sweep woke.");
    describe_counter!(FAILED, "Apps that a sweep could not look at.");
}

pub(crate) fn sweep(sweep: &Sweep) {
    histogram!(SWEEP).record(Duration::from_millis(sweep.took_ms).as_secs_f64());
    counter!(WOKEN).increment(sweep.woken.len() as u64);
    counter!(FAILED).increment(sweep.failed.len() as u64);
}
