//! The clock and randomness of the process: the only place that draws them.

use std::time::{SystemTime, UNIX_EPOCH};

use fabrique_core::time::Timestamp;
use fabrique_ports::Ambient;
use rand::RngExt;

/// The system's.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct System;

impl Ambient for System {
    fn now(&self) -> Timestamp {
        now()
    }

    fn ulid(&self) -> String {
        ulid()
    }

    fn jitter(&self) -> f64 {
        rand::rng().random_range(0.0..=1.0)
    }

    fn random(&self) -> [u8; 16] {
        rand::random()
    }
}

/// Now.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A new ULID, lowercase.
pub(crate) fn ulid() -> String {
    ulid::Ulid::generate().to_string().to_ascii_lowercase()
}
