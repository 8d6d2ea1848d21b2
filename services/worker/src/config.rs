//! What a worker is given.

use std::sync::Arc;
use std::time::Duration;

use fabrique_core::id::RepoName;
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

/// How a worker behaves. All durations are configuration and may be seconds in tests.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// The worker's name, unique among all that run: the holder in work records.
    pub name: String,
    /// The repository `cluster/apps` on the forge.
    pub apps_repo: RepoName,
    /// A holder that leaves its record unchanged for this long is dead. Renewed three times as often.
    pub lease: Duration,
    /// How many apps are looked at at once, builds not counted.
    pub looks: usize,
    /// How long a build waits for a place before the attempt counts as failed.
    pub patience: Duration,
    /// The first wait after a peer did not answer; it doubles.
    pub backoff_base: Duration,
    /// The longest such wait.
    pub backoff_max: Duration,
    /// How long running work may go on after a request to stop.
    pub grace: Duration,
    /// Where people read about a build, if there is such a place.
    pub link: Option<String>,
}

impl WorkerConfig {
    /// The defaults of a worker called `name`.
    #[must_use]
    pub fn named(name: String, apps_repo: RepoName) -> Self {
        Self {
            name,
            apps_repo,
            lease: Duration::from_secs(30),
            looks: 8,
            patience: Duration::from_mins(1),
            backoff_base: Duration::from_secs(1),
            backoff_max: Duration::from_mins(2),
            grace: Duration::from_secs(20),
            link: None,
        }
    }
}
