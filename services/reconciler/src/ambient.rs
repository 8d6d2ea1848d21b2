//! What only the outermost layer may draw.

use fabrique_core::time::Timestamp;

/// The clock and the source of randomness.
pub trait Ambient: Send + Sync {
    /// Now, by the wall clock.
    fn now(&self) -> Timestamp;
    /// A new ULID, lowercase.
    fn ulid(&self) -> String;
    /// A number between zero and one.
    fn jitter(&self) -> f64;
}
