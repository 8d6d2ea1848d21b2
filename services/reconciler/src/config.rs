//! What the reconciler is given.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use fabrique_ports::bus::{Board, Events, Wakes};
use fabrique_ports::records::{BuildHistory, Logs, Memories, Records};
use fabrique_ports::registry::Registry;

/// The world, as far as the reconciler touches it beyond what its observer reads.
#[derive(Clone)]
pub struct Ports {
    /// Who works on what.
    pub board: Arc<dyn Board>,
    /// Asking for another look.
    pub wakes: Arc<dyn Wakes>,
    /// What each app remembers.
    pub memories: Arc<dyn Memories>,
    /// The history of builds, to be read and written.
    pub history: Arc<dyn BuildHistory>,
    /// Build output, to be closed.
    pub logs: Arc<dyn Logs>,
    /// Build key to digest.
    pub records: Arc<dyn Records>,
    /// The image registry.
    pub registry: Arc<dyn Registry>,
    /// What happened, for people.
    pub events: Arc<dyn Events>,
}

/// How the reconciler behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// How many apps are looked at at once.
    pub concurrency: NonZeroUsize,
    /// A holder whose record is the same for this long is dead: the lease of the workers, or more.
    pub lease: Duration,
    /// Every how many sweeps [`Reconciler::run_every`](crate::Reconciler::run_every) looks at everything, the
    /// first included. With a sweep every five minutes, 12 is once an hour.
    pub full_every: NonZeroU32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            concurrency: NonZeroUsize::MIN.saturating_add(7),
            lease: Duration::from_secs(30),
            full_every: NonZeroU32::MIN.saturating_add(11),
        }
    }
}
