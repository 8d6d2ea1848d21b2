//! Builds: where they run and what they answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fabrique_core::app::{BuildResources, RegistryCache};
use fabrique_core::build::BuildInputs;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{AppName, BuildId, BuildKey, Digest, ImageRepository, TrustDomain};
use tokio_util::sync::CancellationToken;

use crate::PortResult;
use crate::egress::Fetch;

/// Everything a daemon needs to build one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRequest {
    /// The attempt.
    pub build: BuildId,
    /// The key of its inputs; becomes a label.
    pub key: BuildKey,
    /// The app.
    pub app: AppName,
    /// Everything that decides the image. The source's URL comes from configuration, never from a payload;
    /// values of secrets come from the builder's own store.
    pub inputs: BuildInputs,
    /// Where the image is pushed, by digest only.
    pub image: ImageRepository,
    /// Ignore the cache.
    pub no_cache: bool,
    /// The cache that an earlier build of the app exported, by its digest in the image's repository: for a daemon that
    /// does not have the app's steps itself. Only ever one that was recorded here, since whoever can write to the
    /// registry can write a tag.
    pub cache: Option<Digest>,
    /// Whether the app's steps go to the registry and come from there; as the builder is configured when absent.
    pub registry_cache: Option<RegistryCache>,
    /// `SOURCE_DATE_EPOCH`: the commit's time in seconds.
    pub epoch: i64,
    /// The longest it may take.
    pub timeout: Duration,
}

/// How a build ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildOutcome {
    /// The image is in the registry under this digest. The caller asks the registry before it believes it.
    Pushed(Digest),
    /// It failed.
    Failed(BuildFailure),
    /// The cancellation token was cancelled before the push.
    Cancelled,
}

/// Why a build failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildFailure {
    /// Whose turn it is.
    pub kind: FailureKind,
    /// One sentence: which step, with which exit code, or what was unreachable.
    pub message: String,
    /// The failing step's last lines, in order.
    pub log_tail: Vec<String>,
    /// The failing step was ended by SIGKILL, by the exit code that the daemon reports: for want of memory, or by
    /// itself. Where the kernel ends one process and not its container, this is all that shows of it.
    pub killed: bool,
}

impl BuildFailure {
    /// A failure of nothing that printed anything.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), log_tail: Vec::new(), killed: false }
    }
}

/// What a build reports while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A step started.
    StepStarted {
        /// The daemon's name of the step: `[2/3] RUN make`.
        name: String,
    },
    /// A step ended.
    StepEnded {
        /// The step.
        name: String,
        /// Whether its result came from the cache.
        cached: bool,
        /// How long it took.
        took: Duration,
        /// Its error, if it failed.
        error: Option<String>,
    },
    /// Output, whole lines in order.
    Log {
        /// One line without its end, control characters escaped.
        line: String,
    },
    /// The build's steps were exported to the image's repository under this digest.
    CacheExported {
        /// The cache manifest.
        digest: Digest,
    },
    /// What the build fetched, once, before it ends.
    Egress {
        /// The fetches in the order in which they were asked for, each with how long ago that was.
        fetches: Vec<(Duration, Fetch)>,
        /// How many more there were.
        left_out: u64,
    },
}

/// Receives a build's progress. It must not block: implementations queue, with a bound.
pub trait ProgressSink: Send + Sync {
    /// Takes one report.
    fn report(&self, progress: Progress);
}

/// A build daemon that may be used for a while.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Daemon {
    /// Its stable name, for logs and records.
    pub name: String,
    /// `tcp://host:port` or `unix:///path`.
    pub address: String,
    /// The TLS name to expect when it differs from the host; TLS material is the builder's own.
    pub tls_name: Option<String>,
    /// How builds on it are kept apart, where whoever placed it knows: `userns`, `rootless`, and why.
    pub isolation: Option<String>,
    /// The proxy by which its builds leave, where RUN steps have to be told of one.
    pub proxy: Option<Proxy>,
}

/// A forward proxy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Proxy {
    /// `http://host:port`.
    pub url: String,
    /// Hosts and domains that are reached without it, as `NO_PROXY` lists them.
    pub except: Vec<String>,
}

/// For records and people: `builder-3 (userns)`.
impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.isolation {
            Some(isolation) => write!(f, "{} ({isolation})", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// What a build needs of the place it runs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The app; apps go back to the daemon that has their cache.
    pub app: AppName,
    /// Who may share the daemon.
    pub trust: TrustDomain,
    /// What the app's registration wishes for beyond what all have. A placement that does not make its daemons gives
    /// what they have.
    pub resources: BuildResources,
    /// The longest that the build may take: the place has to last for it.
    pub timeout: Duration,
    /// The longest the caller waits for a place.
    pub patience: Duration,
}

/// A place to build, to be given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementLease {
    /// The daemon.
    pub daemon: Daemon,
    /// The slot of the daemon, from zero.
    pub slot: usize,
}

/// What came of asking for a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// There.
    Lease(PlacementLease),
    /// Every place was taken for as long as the caller would wait, or none can be had; the text says which.
    Full(String),
    /// What the registration asks for is more than the placement gives to anybody; the text says which, with the key.
    Refused(String),
}

/// How a place is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The daemon is as good as before.
    Clean,
    /// Something is odd about it: probe or recycle it before anybody uses it again.
    Doubt,
}

/// What became of a daemon under a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Autopsy {
    /// It is well: the failure is the build's own.
    Alive,
    /// It died, or is being ended.
    Died {
        /// Whose turn it is: where it ran (the node, the scheduler, a person with `kubectl`), or what it needed.
        kind: FailureKind,
        /// Continues a sentence that begins with the daemon's name.
        why: String,
    },
    /// It, or what ran in it, was killed for want of memory: by its container's own status, or because a step was
    /// killed and the next daemon of the app has more.
    OutOfMemory,
}

/// Where builds run.
#[async_trait]
pub trait Placement: Send + Sync {
    /// A place, waited for at most as long as the need says.
    async fn acquire(&self, need: &Need) -> PortResult<Placed>;
    /// Gives a place back.
    async fn release(&self, lease: PlacementLease, condition: Condition);
    /// What became of a daemon whose build failed oddly, in the light of how it failed.
    async fn autopsy(&self, daemon: &Daemon, failure: &BuildFailure) -> Autopsy;
    /// How many builds can run at once.
    fn capacity(&self) -> usize;
    /// Every daemon there is, for `doctor`.
    fn daemons(&self) -> Vec<Daemon>;
}

/// What a daemon says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonInfo {
    /// Its version, as it prints it.
    pub version: String,
    /// Whether the version is at or above the floor.
    pub supported: bool,
    /// Its snapshotter: `overlayfs`, `fuse-overlayfs`, `native`.
    pub snapshotter: Option<String>,
    /// The platforms it can build for.
    pub platforms: Vec<String>,
}

/// Running builds on a daemon.
#[async_trait]
pub trait Builder: Send + Sync {
    /// Builds and pushes by digest. Returns when the daemon is done, the token is cancelled or the
    /// request's timeout passed. A daemon that dies mid-build is a failure of kind infrastructure, not an
    /// error: errors are for calls that never became a build.
    async fn build(
        &self,
        daemon: &Daemon,
        request: &BuildRequest,
        progress: Arc<dyn ProgressSink>,
        cancel: CancellationToken,
    ) -> PortResult<BuildOutcome>;

    /// What any daemon would refuse about the build by its Dockerfile's text alone: an image from outside the permitted
    /// registries. Nothing where only a daemon can tell. Asks nobody, so that no daemon is spent on it.
    fn refuses(&self, inputs: &BuildInputs, dockerfile: &str) -> Option<BuildFailure>;

    /// Asks a daemon about itself.
    async fn probe(&self, daemon: &Daemon) -> PortResult<DaemonInfo>;
}
