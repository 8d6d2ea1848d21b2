//! What the receiver cannot know by itself.

use fabrique_core::time::Timestamp;

/// The clock and the randomness, so that neither hides in here.
pub trait Ambient: Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;
    /// A new ULID, for an event.
    fn ulid(&self) -> String;
    /// Sixteen random bytes, for a trace.
    fn random(&self) -> [u8; 16];
}
