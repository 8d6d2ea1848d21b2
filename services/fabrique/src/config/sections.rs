//! One typed struct per concern, with its defaults.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::check::Problem;
use super::secret::Secret;

/// Everything that an installation decides.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) gitea: GiteaSection,
    pub(crate) nats: NatsSection,
    pub(crate) registry: RegistrySection,
    pub(crate) buildkit: BuildkitSection,
    pub(crate) kubernetes: KubernetesSection,
    pub(crate) receiver: ReceiverSection,
    pub(crate) worker: WorkerSection,
    pub(crate) reconciler: ReconcilerSection,
    pub(crate) state: StateSection,
}

/// The forge.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GiteaSection {
    /// The root of the web interface.
    pub(crate) url: String,
    /// `cluster/apps`.
    pub(crate) apps_repo: String,
    /// Its deployed branch.
    pub(crate) apps_branch: String,
    /// Reads sources; the only token that a build session answers.
    pub(crate) read_token: Secret,
    pub(crate) read_token_file: Option<PathBuf>,
    /// Sets commit statuses.
    pub(crate) status_token: Secret,
    pub(crate) status_token_file: Option<PathBuf>,
    /// Administers webhooks; only `hooks` and `doctor` use it.
    pub(crate) hooks_token: Secret,
    pub(crate) hooks_token_file: Option<PathBuf>,
    /// Reads and pushes `cluster/apps`.
    pub(crate) apps_token: Secret,
    pub(crate) apps_token_file: Option<PathBuf>,
    /// A read token for each organisation that has its own: files named after organisations.
    pub(crate) read_tokens_dir: Option<PathBuf>,
    /// The author of automatic commits.
    pub(crate) author_name: String,
    pub(crate) author_email: String,
    /// A PEM file to trust instead of the system's certificates.
    pub(crate) ca_file: Option<PathBuf>,
}

impl Default for GiteaSection {
    fn default() -> Self {
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
            author_name: "fabrique".to_owned(),
            author_email: "fabrique@localhost".to_owned(),
            ca_file: None,
        }
    }
}

/// A user of the bus, one per role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    Receiver,
    Worker,
    Reconciler,
    Operator,
    Observer,
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
            Role::Admin => "admin",
        }
    }
}

/// The bus.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NatsSection {
    /// Addresses of one cluster.
    pub(crate) servers: Vec<String>,
    /// The monitoring endpoint, asked by `doctor` for `sync_interval`.
    pub(crate) monitoring: Option<String>,
    /// Copies of each stream, when they are made.
    pub(crate) replicas: usize,
    /// Credentials by role. The user's name is the role's unless it says otherwise.
    pub(crate) users: BTreeMap<Role, NatsUser>,
    /// How long the first connection is tried.
    #[serde(with = "humantime_serde")]
    pub(crate) start_timeout: Duration,
    /// TLS files.
    pub(crate) tls: TlsSection,
}

impl Default for NatsSection {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            monitoring: None,
            replicas: 1,
            users: BTreeMap::new(),
            start_timeout: Duration::from_secs(30),
            tls: TlsSection::default(),
        }
    }
}

/// One user of the bus.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NatsUser {
    pub(crate) user: Option<String>,
    pub(crate) password: Secret,
    pub(crate) password_file: Option<PathBuf>,
}

/// Files for TLS, in PEM.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TlsSection {
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) cert_file: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
}

/// Image registries.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RegistrySection {
    /// Where apps may push: `registry:80`, or `registry:80/team`.
    pub(crate) allowed: Vec<String>,
    /// Hosts reached over http.
    pub(crate) plain_http: Vec<String>,
    /// Where base images may come from; `allowed` when empty.
    pub(crate) bases: Vec<String>,
    /// For registries that ask: who.
    pub(crate) user: Option<String>,
    pub(crate) password: Secret,
    pub(crate) password_file: Option<PathBuf>,
}

/// Where and how builds run.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BuildkitSection {
    /// The daemons of the static placement.
    pub(crate) daemons: Vec<DaemonSection>,
    /// Gitea as the daemons reach it; `gitea.url` when absent.
    pub(crate) git_url: Option<String>,
    /// Hosts that `ADD https://…` and proxied RUN steps may reach.
    pub(crate) permitted_hosts: Vec<String>,
    /// The list of such hosts, with the purpose of each and what single apps have beyond them.
    pub(crate) allow_list_file: Option<PathBuf>,
    /// Build secrets: `<dir>/<app>/<name>`.
    pub(crate) secrets_dir: Option<PathBuf>,
    /// Attach a provenance attestation (`mode=min`), which makes every digest an index's.
    pub(crate) provenance: bool,
    /// How long a daemon may give no sign of life during a build; a minute when absent. It gives one every 5 s.
    #[serde(with = "humantime_serde::option")]
    pub(crate) silence: Option<Duration>,
    /// mTLS with the daemons.
    pub(crate) tls: TlsSection,
}

/// Builds in pods.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct KubernetesSection {
    /// The settings of builder pods. With it, there are no static daemons.
    pub(crate) builders_file: Option<PathBuf>,
    /// The authority of builders' and workers' certificates. Only workers have its key.
    pub(crate) ca_cert_file: Option<PathBuf>,
    pub(crate) ca_key_file: Option<PathBuf>,
}

/// One daemon.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DaemonSection {
    pub(crate) name: String,
    /// `tcp://host:port` or `unix:///path`.
    pub(crate) address: String,
    /// Builds at once.
    #[serde(default = "one")]
    pub(crate) slots: usize,
    /// The name in its certificate, where it differs from the host.
    #[serde(default)]
    pub(crate) tls_name: Option<String>,
}

fn one() -> usize {
    1
}

/// The webhook receiver.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReceiverSection {
    pub(crate) listen: String,
    /// The receiver as Gitea reaches it: what webhook #2 delivers to.
    pub(crate) public_url: Option<String>,
    /// The webhook secret.
    pub(crate) secret: Secret,
    pub(crate) secret_file: Option<PathBuf>,
    /// A second one that is accepted too, while secrets are rotated; new hooks sign with it.
    pub(crate) next_secret: Secret,
    pub(crate) next_secret_file: Option<PathBuf>,
    /// Bounds on what is taken and waited for.
    pub(crate) limits: fabrique_receiver::ReceiverConfig,
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
            limits: fabrique_receiver::ReceiverConfig::default(),
        }
    }
}

/// The worker.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkerSection {
    /// The name in work records; host name and process id when absent.
    pub(crate) name: Option<String>,
    /// Metrics and health of a worker that runs alone; off when absent.
    pub(crate) listen: Option<String>,
    #[serde(with = "humantime_serde")]
    pub(crate) lease: Duration,
    pub(crate) looks: usize,
    #[serde(with = "humantime_serde")]
    pub(crate) patience: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) backoff_base: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) backoff_max: Duration,
    #[serde(with = "humantime_serde")]
    pub(crate) grace: Duration,
    /// Attempts at one build before it becomes a dead letter.
    pub(crate) max_attempts: u32,
    #[serde(with = "humantime_serde")]
    pub(crate) dead_letter_rest: Duration,
    /// Builds in a row that may be superseded.
    pub(crate) max_supersedes: u32,
    /// Where people read about a build: the link of commit statuses.
    pub(crate) status_link: Option<String>,
}

impl Default for WorkerSection {
    fn default() -> Self {
        let policy = fabrique_core::policy::Policy::default();
        Self {
            name: None,
            listen: None,
            lease: Duration::from_secs(30),
            looks: 8,
            patience: Duration::from_mins(1),
            backoff_base: policy.backoff_base,
            backoff_max: policy.backoff_max,
            grace: Duration::from_secs(20),
            max_attempts: policy.max_attempts,
            dead_letter_rest: policy.dead_letter_rest,
            max_supersedes: policy.max_supersedes,
            status_link: None,
        }
    }
}

/// The reconciler.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReconcilerSection {
    /// The time between two sweeps.
    #[serde(with = "humantime_serde")]
    pub(crate) every: Duration,
    /// Metrics and health of a reconciler that runs alone; off when absent.
    pub(crate) listen: Option<String>,
    /// Apps looked at at once.
    pub(crate) concurrency: NonZeroUsize,
    /// Every how many sweeps the registry and the history are looked at too.
    pub(crate) full_every: NonZeroU32,
}

impl Default for ReconcilerSection {
    fn default() -> Self {
        let config = fabrique_reconciler::Config::default();
        let (concurrency, full_every) = (config.concurrency, config.full_every);
        Self { every: Duration::from_mins(5), listen: None, concurrency, full_every }
    }
}

/// What is kept between two starts; all of it can be lost.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StateSection {
    /// Clones.
    pub(crate) dir: PathBuf,
}

impl Default for StateSection {
    fn default() -> Self {
        Self { dir: PathBuf::from("/var/lib/fabrique") }
    }
}

impl Config {
    /// Replaces every secret that has a file by the file's content.
    pub(super) fn read_secret_files(&mut self) -> Vec<Problem> {
        let gitea = &mut self.gitea;
        let receiver = &mut self.receiver;
        let registry = &mut self.registry;
        let mut problems = vec![
            gitea.read_token.read("gitea.read_token", gitea.read_token_file.as_ref()),
            gitea.status_token.read("gitea.status_token", gitea.status_token_file.as_ref()),
            gitea.hooks_token.read("gitea.hooks_token", gitea.hooks_token_file.as_ref()),
            gitea.apps_token.read("gitea.apps_token", gitea.apps_token_file.as_ref()),
            receiver.secret.read("receiver.secret", receiver.secret_file.as_ref()),
            receiver.next_secret.read("receiver.next_secret", receiver.next_secret_file.as_ref()),
            registry.password.read("registry.password", registry.password_file.as_ref()),
        ];
        for (role, user) in &mut self.nats.users {
            let key = format!("nats.users.{}.password", role.as_str());
            problems.push(user.password.read(&key, user.password_file.as_ref()));
        }
        problems.into_iter().flatten().collect()
    }
}
