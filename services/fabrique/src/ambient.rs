//! The clock and randomness of the process: the only place that draws them.

use std::sync::{Mutex, PoisonError};
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

/// A new ULID, lowercase; of two, the later one is the larger, even within a millisecond.
pub(crate) fn ulid() -> String {
    static GENERATOR: Mutex<ulid::Generator> = Mutex::new(ulid::Generator::new());
    let mut generator = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    let ulid = generator.generate().unwrap_or_else(|overflow| overflow.commit_overflow_increment());
    ulid.to_string().to_ascii_lowercase()
}
