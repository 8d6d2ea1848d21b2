//! What only the outermost layer may draw: the clock and randomness.

use fabrique_core::time::Timestamp;

/// The clock and the source of randomness.
pub trait Ambient: Send + Sync {
    /// Now, by the wall clock.
    fn now(&self) -> Timestamp;
    /// A new ULID, lowercase; never the same twice, since the bus tells events apart by it.
    fn ulid(&self) -> String;
    /// A number between zero and one.
    fn jitter(&self) -> f64;
    /// Sixteen random bytes, for a trace.
    fn random(&self) -> [u8; 16];
}
