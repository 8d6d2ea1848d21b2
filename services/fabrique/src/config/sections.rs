//! One typed struct per concern, with its defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use fabrique_ports::bus::BusRole;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::adapters::{
    BuildkitLogs, BuildkitPlacement, BuildkitTimeouts, DoctorSection, GitLimits, GitTimeouts, GiteaTimeouts,
    NatsLimits, NatsTimeouts, ReceiverLimits, RegistryTimeouts,
};
use super::bounded::{Count, DAY, HOUR, MILLISECOND, SECOND, Wait};
use super::github::GithubSection;
use super::init::InitSection;
use super::render::RenderSection;
use super::secret::Secret;
use super::seed::SeedSection;

/// Everything that an installation decides.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) gitea: GiteaSection,
    pub(crate) git: GitSection,
    pub(crate) github: GithubSection,
    pub(crate) nats: NatsSection,
    pub(crate) registry: RegistrySection,
    pub(crate) buildkit: BuildkitSection,
    pub(crate) kubernetes: KubernetesSection,
    pub(crate) render: RenderSection,
    pub(crate) init: InitSection,
    pub(crate) seed: SeedSection,
    pub(crate) receiver: ReceiverSection,
    pub(crate) worker: WorkerSection,
    pub(crate) reconciler: ReconcilerSection,
    pub(crate) doctor: DoctorSection,
    pub(crate) state: StateSection,
}

/// The forge.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GiteaSection {
    /// The root of the web interface, like `http://gitea:3000/`.
    #[schemars(extend("x-required" = true))]
    pub(crate) url: String,
    /// The repository of what is deployed.
    pub(crate) apps_repo: String,
    /// The branch of `apps_repo` that is deployed.
    pub(crate) apps_branch: String,
    /// Reads sources; the only token that a build session answers.
    pub(crate) read_token: Secret,
    /// Holds `read_token`.
    pub(crate) read_token_file: Option<PathBuf>,
    /// Sets commit statuses.
    pub(crate) status_token: Secret,
    /// Holds `status_token`.
    pub(crate) status_token_file: Option<PathBuf>,
    /// Administers webhooks and mirrors; only `hooks`, `mirror` and `doctor` use it.
    pub(crate) hooks_token: Secret,
    /// Holds `hooks_token`.
    pub(crate) hooks_token_file: Option<PathBuf>,
    /// Reads and pushes `cluster/apps`.
    pub(crate) apps_token: Secret,
    /// Holds `apps_token`.
    pub(crate) apps_token_file: Option<PathBuf>,
    /// A read token for each organisation that has its own: files named after organisations.
    pub(crate) read_tokens_dir: Option<PathBuf>,
    /// The author of automatic commits.
    pub(crate) author_name: String,
    /// The author's e-mail address.
    pub(crate) author_email: String,
    /// Certificates in PEM to trust instead of the system's, for the API and for git.
    pub(crate) ca_file: Option<PathBuf>,
    /// How long requests to the API may take.
    pub(crate) timeouts: GiteaTimeouts,
}

impl Default for GiteaSection {
    fn default() -> Self {
        let author = fabrique_git::Identity::default();
        Self {
            url: String::new(),
            apps_repo: "cluster/apps".to_owned(),
            apps_branch: "main".to_owned(),
            read_token: Secret::default(),
            read_token_file: None,
            status_token: Secret::default(),
            status_token_file: None,
            hooks_token: Secret::default(),
            hooks_token_file: None,
            apps_token: Secret::default(),
            apps_token_file: None,
            read_tokens_dir: None,
            author_name: author.name,
            author_email: author.email,
            ca_file: None,
            timeouts: GiteaTimeouts::default(),
        }
    }
}

/// The git command line: clones, fetches and pushes.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GitSection {
    /// How long it may take.
    pub(crate) timeouts: GitTimeouts,
    /// How much is read and kept.
    pub(crate) limits: GitLimits,
}

/// A user of the bus, one per role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    Receiver,
    Worker,
    Reconciler,
    Operator,
    Observer,
    Mirror,
    Admin,
}

impl Role {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Role::Receiver => "receiver",
            Role::Worker => "worker",
            Role::Reconciler => "reconciler",
            Role::Operator => "operator",
            Role::Observer => "observer",
            Role::Mirror => "mirror",
            Role::Admin => "admin",
        }
    }
}

impl From<BusRole> for Role {
    fn from(role: BusRole) -> Self {
        match role {
            BusRole::Receiver => Role::Receiver,
            BusRole::Worker => Role::Worker,
            BusRole::Reconciler => Role::Reconciler,
            BusRole::Operator => Role::Operator,
            BusRole::Observer => Role::Observer,
            BusRole::Mirror => Role::Mirror,
        }
    }
}

/// The bus.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NatsSection {
    /// Addresses of one cluster, like `nats://nats:4222`.
    #[schemars(extend("x-required" = true))]
    pub(crate) servers: Vec<String>,
    /// The monitoring endpoint, asked by `doctor` for `sync_interval`.
    pub(crate) monitoring: Option<String>,
    /// Copies of each stream, when they are made: 3 on a cluster, 1 elsewhere.
    pub(crate) replicas: Count<1, 5>,
    /// Credentials by role.
    #[schemars(extend("x-name" = "role"))]
    pub(crate) users: BTreeMap<Role, NatsUser>,
    /// TLS with the servers.
    pub(crate) tls: TlsSection,
    /// How long each kind of call may take.
    pub(crate) timeouts: NatsTimeouts,
    /// How much is kept.
    pub(crate) limits: NatsLimits,
}

impl Default for NatsSection {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            monitoring: None,
            replicas: fabrique_bus::BusConfig::new([""; 0]).replicas.into(),
            users: BTreeMap::new(),
            tls: TlsSection::default(),
            timeouts: NatsTimeouts::default(),
            limits: NatsLimits::default(),
        }
    }
}

/// One user of the bus.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NatsUser {
    /// The user's name, where it is not the role's.
    pub(crate) user: Option<String>,
    /// The user's password.
    pub(crate) password: Secret,
    /// Holds `password`.
    pub(crate) password_file: Option<PathBuf>,
}

/// Files for TLS, in PEM.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TlsSection {
    /// The authorities to trust.
    pub(crate) ca_file: Option<PathBuf>,
    /// The certificate to show; with `key_file`, or neither.
    pub(crate) cert_file: Option<PathBuf>,
    /// Its private key.
    pub(crate) key_file: Option<PathBuf>,
}

/// Image registries.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RegistrySection {
    /// Where apps may push: `registry:80`, or `registry:80/team`.
    #[schemars(extend("x-required" = true))]
    pub(crate) allowed: Vec<String>,
    /// Hosts reached over http.
    pub(crate) plain_http: Vec<String>,
    /// Where hosts of `plain_http` are reached from here, where that is not their name: by a port-forward, say.
    pub(crate) addresses: Vec<AddressSection>,
    /// Where base images may come from; `allowed` when empty.
    pub(crate) bases: Vec<String>,
    /// The user, for registries that ask; with `password`, or neither.
    pub(crate) user: Option<String>,
    /// The user's password.
    pub(crate) password: Secret,
    /// Holds `password`.
    pub(crate) password_file: Option<PathBuf>,
    /// How long requests may take.
    pub(crate) timeouts: RegistryTimeouts,
}

/// Where a registry is reached.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddressSection {
    /// The host as image names have it: `registry:80`.
    #[schemars(extend("x-required" = true))]
    pub(crate) host: String,
    /// Where it answers: `127.0.0.1:5000`.
    #[schemars(extend("x-required" = true))]
    pub(crate) address: String,
}

/// Where and how builds run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BuildkitSection {
    /// The daemons of the static placement.
    pub(crate) daemons: Vec<DaemonSection>,
    /// Gitea as the daemons reach it; `gitea.url` when absent.
    pub(crate) git_url: Option<String>,
    /// Hosts that `ADD https://…` and proxied RUN steps may reach.
    pub(crate) permitted_hosts: Vec<String>,
    /// The hosts that builds may reach, with the purpose of each, and what single apps have beyond them.
    pub(crate) allow_list_file: Option<PathBuf>,
    /// Build secrets: `<dir>/<app>/<name>`.
    pub(crate) secrets_dir: Option<PathBuf>,
    /// Attach a provenance attestation (`mode=min`), which makes every digest an index's.
    pub(crate) provenance: bool,
    /// Keep the results of steps in each image's repository too (`mode=max`), for daemons that lack them. An app's
    /// `build.registry_cache` counts before it.
    pub(crate) registry_cache: bool,
    /// The most processes and threads of the user that a RUN step is, those of a daemon of the same user included; the
    /// machine's own limits when absent. Well below these (`podPidsLimit`), or the daemon is what they end.
    pub(crate) step_processes: Option<Count<1, 1_000_000>>,
    /// TLS with the daemons on `tcp://`, once `ca_file` is set; mutual with a certificate to show.
    pub(crate) tls: TlsSection,
    /// How long a daemon is waited for.
    pub(crate) timeouts: BuildkitTimeouts,
    /// How much of a build's output is reported.
    pub(crate) logs: BuildkitLogs,
    /// How one of `daemons` is chosen.
    pub(crate) placement: BuildkitPlacement,
}

/// Builds in pods.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct KubernetesSection {
    /// The settings of builder pods. With it, there are no static daemons.
    pub(crate) builders_file: Option<PathBuf>,
    /// The authority of builders' and workers' certificates.
    pub(crate) ca_cert_file: Option<PathBuf>,
    /// Its private key. Only workers have it.
    pub(crate) ca_key_file: Option<PathBuf>,
}

/// One daemon.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DaemonSection {
    /// What people call it, in builds and in `doctor`.
    #[schemars(extend("x-required" = true))]
    pub(crate) name: String,
    /// `tcp://host:port` or `unix:///path`.
    #[schemars(extend("x-required" = true))]
    pub(crate) address: String,
    /// Builds at once. One keeps builds apart.
    #[serde(default = "one")]
    pub(crate) slots: Count<1, 64>,
    /// The name in its certificate, where it differs from the host.
    #[serde(default)]
    pub(crate) tls_name: Option<String>,
}

fn one() -> Count<1, 64> {
    1_usize.into()
}

/// The webhook receiver.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReceiverSection {
    /// Where webhooks, health and metrics are served.
    pub(crate) listen: String,
    /// The receiver as Gitea reaches it: what webhook #2 delivers to.
    pub(crate) public_url: Option<String>,
    /// The webhook secret.
    pub(crate) secret: Secret,
    /// Holds `secret`.
    pub(crate) secret_file: Option<PathBuf>,
    /// A second one that is accepted too, while secrets are rotated; new hooks sign with it.
    pub(crate) next_secret: Secret,
    /// Holds `next_secret`.
    pub(crate) next_secret_file: Option<PathBuf>,
    /// Bounds on what is taken and waited for.
    pub(crate) limits: ReceiverLimits,
}

impl Default for ReceiverSection {
    fn default() -> Self {
        Self {
            listen: "0.0.0.0:8080".to_owned(),
            public_url: None,
            secret: Secret::default(),
            secret_file: None,
            next_secret: Secret::default(),
            next_secret_file: None,
            limits: ReceiverLimits::default(),
        }
    }
}

/// The worker.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkerSection {
    /// The name in work records, with an id of the process after it; host name and process id when absent.
    pub(crate) name: Option<String>,
    /// Metrics and health of a worker that runs alone; off when absent.
    pub(crate) listen: Option<String>,
    /// A worker that leaves the record of an app unchanged for this long counts as dead. Renewed three times as often.
    pub(crate) lease: Wait<{ 300 * MILLISECOND }, HOUR>,
    /// Apps looked at at once, builds not counted.
    pub(crate) looks: Count<1, 1_024>,
    /// How long a build waits for a place before it gives others their turn; it counts as no attempt.
    pub(crate) patience: Wait<{ 100 * MILLISECOND }, DAY>,
    /// The first wait after a failed attempt, or a peer that did not answer; it doubles.
    pub(crate) backoff_base: Wait<{ 10 * MILLISECOND }, HOUR>,
    /// The longest such wait.
    pub(crate) backoff_max: Wait<{ 10 * MILLISECOND }, DAY>,
    /// How long running work may go on after a request to stop.
    pub(crate) grace: Wait<0, HOUR>,
    /// A build that lasts for this long gets the commit status `pending`; a shorter one only its final status.
    pub(crate) pending_after: Wait<0, { 10 * 60 * SECOND }>,
    /// How long the last lines of a build's log may take to be stored.
    pub(crate) log_flush: Wait<{ 100 * MILLISECOND }, { 5 * 60 * SECOND }>,
    /// Attempts at one build before it becomes a dead letter.
    pub(crate) max_attempts: Count<1, 1_000>,
    /// How long a dead letter rests between two attempts.
    pub(crate) dead_letter_rest: Wait<SECOND, { 30 * DAY }>,
    /// Builds in a row that may be superseded before one is finished whatever comes.
    pub(crate) max_supersedes: Count<0, 100>,
    /// Where people read about a build: the link of commit statuses.
    pub(crate) status_link: Option<String>,
}

impl Default for WorkerSection {
    fn default() -> Self {
        let bounds = fabrique_worker::Bounds::default();
        let policy = fabrique_core::policy::Policy::default();
        Self {
            name: None,
            listen: None,
            lease: bounds.lease.into(),
            looks: bounds.looks.into(),
            patience: bounds.patience.into(),
            backoff_base: policy.backoff_base.into(),
            backoff_max: policy.backoff_max.into(),
            grace: bounds.grace.into(),
            pending_after: bounds.pending_after.into(),
            log_flush: bounds.log_flush.into(),
            max_attempts: policy.max_attempts.into(),
            dead_letter_rest: policy.dead_letter_rest.into(),
            max_supersedes: policy.max_supersedes.into(),
            status_link: None,
        }
    }
}

/// The reconciler.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReconcilerSection {
    /// The time between two sweeps, give or take a tenth.
    pub(crate) every: Wait<{ 100 * MILLISECOND }, { 7 * DAY }>,
    /// Metrics and health of a reconciler that runs alone; off when absent.
    pub(crate) listen: Option<String>,
    /// Apps looked at at once.
    pub(crate) concurrency: Count<1, 1_024>,
    /// Every how many sweeps the registry and the history are looked at too.
    pub(crate) full_every: Count<1, 10_000>,
}

impl Default for ReconcilerSection {
    fn default() -> Self {
        let config = fabrique_reconciler::Config::default();
        Self {
            every: Duration::from_mins(5).into(),
            listen: None,
            concurrency: config.concurrency.into(),
            full_every: config.full_every.into(),
        }
    }
}

/// What is kept between two starts; all of it can be lost.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StateSection {
    /// Clones; a cache.
    pub(crate) dir: PathBuf,
}

impl Default for StateSection {
    fn default() -> Self {
        Self { dir: PathBuf::from("/var/lib/fabrique") }
    }
}
