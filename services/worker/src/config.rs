//! What a worker is given.

use std::sync::Arc;
use std::time::Duration;

use fabrique_core::id::RepoName;
use fabrique_core::policy::Policy;
use fabrique_gitops::render::Settings;
use fabrique_ports::builder::{Builder, Placement};
use fabrique_ports::bus::{Board, Commands, Events, Wakes};
use fabrique_ports::deployments::Deployments;
use fabrique_ports::forge::Forge;
use fabrique_ports::records::{BuildHistory, Logs, Memories, Records};
use fabrique_ports::registry::Registry;
use fabrique_ports::source::SourceHistory;

/// The world, as far as a worker touches it.
#[derive(Clone)]
pub struct Ports {
    /// Heads and statuses.
    pub forge: Arc<dyn Forge>,
    /// The apps' repositories.
    pub source: Arc<dyn SourceHistory>,
    /// `cluster/apps`.
    pub deployments: Arc<dyn Deployments>,
    /// The image registry.
    pub registry: Arc<dyn Registry>,
    /// Where builds run.
    pub placement: Arc<dyn Placement>,
    /// How they run.
    pub builder: Arc<dyn Builder>,
    /// Who wants what.
    pub board: Arc<dyn Board>,
    /// Asking for another look.
    pub wakes: Arc<dyn Wakes>,
    /// What each app remembers.
    pub memories: Arc<dyn Memories>,
    /// Build key to digest.
    pub records: Arc<dyn Records>,
    /// Attempts, for people.
    pub history: Arc<dyn BuildHistory>,
    /// Build output.
    pub logs: Arc<dyn Logs>,
    /// What happened, for people.
    pub events: Arc<dyn Events>,
    /// What people ask.
    pub commands: Arc<dyn Commands>,
}

/// Who a worker is, and its bounds.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// The worker's name, unique among all that run: the holder in work records.
    pub name: String,
    /// The repository `cluster/apps` on the forge.
    pub apps_repo: RepoName,
    /// Where people read about a build, if there is such a place.
    pub link: Option<String>,
    /// What Argo CD's Applications are rendered with, to be committed with what they deploy; absent where people do it.
    pub render: Option<Settings>,
    /// How long it waits, and how much it takes on.
    pub bounds: Bounds,
}

/// How long a worker waits, and how much it takes on. All of it is configuration and may be seconds in tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// A holder that leaves its record unchanged for this long is dead. Renewed three times as often.
    pub lease: Duration,
    /// How many apps are looked at at once, builds not counted.
    pub looks: usize,
    /// How long a build waits for a place before it gives others their turn; it counts as no attempt.
    pub patience: Duration,
    /// The first wait after a peer did not answer; it doubles.
    pub backoff_base: Duration,
    /// The longest such wait.
    pub backoff_max: Duration,
    /// How long a command of a person may take to begin; shorter than its caller waits, who is to hear the answer.
    pub command_patience: Duration,
    /// How long running work may go on after a request to stop.
    pub grace: Duration,
    /// A build that lasts for this long gets the commit status `pending`; a shorter one only its final status.
    pub pending_after: Duration,
    /// How long the last lines of a build's log may take to be stored.
    pub log_flush: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        // A peer that is away is waited for as a failed attempt is.
        let Policy { backoff_base, backoff_max, .. } = Policy::default();
        Self {
            lease: Duration::from_secs(30),
            looks: 8,
            patience: Duration::from_mins(1),
            backoff_base,
            backoff_max,
            command_patience: Duration::from_secs(5),
            grace: Duration::from_secs(20),
            pending_after: Duration::from_secs(1),
            log_flush: Duration::from_secs(5),
        }
    }
}
