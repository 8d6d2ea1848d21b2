//! What the placement is told once, at the start: typed, without unknown keys, and checked as a whole by
//! [`Settings::validate`].

mod image;
mod quantity;
mod resources;
mod validate;

use std::collections::BTreeMap;
use std::time::Duration;

use fabrique_core::id::{AppName, TrustDomain};
pub use fabrique_core::quantity::{Bytes, Millicores};
use humantime_serde::re::humantime::format_duration;
use k8s_openapi::api::core::v1::{HostAlias, Toleration, TopologySpreadConstraint};
use serde::{Deserialize, Serialize};

pub use self::image::PinnedImage;
pub(crate) use self::quantity::Amount;
pub use self::resources::{AppMemory, Ceiling, Resources};

/// Everything about builder pods that an operator decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The builders' own namespace; nothing else should run there.
    pub namespace: String,
    /// The images that pods run.
    pub images: Images,
    /// How builds are kept apart from the daemon and the node.
    #[serde(default)]
    pub isolation: IsolationSetting,
    /// How many pods there are and how long they live.
    #[serde(default)]
    pub pool: PoolSettings,
    /// What a pod asks for and is held to, unless an app's registration wishes for more.
    #[serde(default)]
    pub resources: Resources,
    /// The most that a registration may wish for.
    #[serde(default)]
    pub max: Ceiling,
    /// Apps that need more memory than [`Resources::memory`], where their registrations do not say so.
    #[serde(default)]
    pub apps: BTreeMap<AppName, AppMemory>,
    /// Where pods may run.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// Where the daemon keeps its cache.
    #[serde(default)]
    pub cache: Cache,
    /// `buildkitd.toml`.
    #[serde(default)]
    pub daemon: DaemonSettings,
    /// What a pod waits for before its daemon starts.
    pub gate: Gate,
    /// The proxy by which `rootless` builds leave, where there is one. In `userns` BuildKit's own is in its place.
    #[serde(default)]
    pub proxy: Option<EgressProxy>,
    /// Names that the cluster's DNS does not know: the registry, Gitea.
    #[serde(default)]
    pub host_aliases: Vec<HostAlias>,
    /// How images are pulled.
    #[serde(default)]
    pub pull: Pull,
    /// How long the API server is waited for.
    #[serde(default)]
    pub patience: Patience,
}

/// The images that pods run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Images {
    /// `buildkitd`, `buildctl`, and for `rootless` also `rootlesskit` with its helpers.
    pub builder: PinnedImage,
    /// Runs the gate: needs `bash` (with `/dev/tcp`) and `timeout`. The builder's image when absent.
    #[serde(default)]
    pub gate: Option<PinnedImage>,
}

impl Images {
    /// The image of the init container.
    #[must_use]
    pub fn gate(&self) -> &PinnedImage {
        self.gate.as_ref().unwrap_or(&self.builder)
    }
}

/// Which isolation is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IsolationSetting {
    /// Kubernetes user namespaces.
    Userns,
    /// rootlesskit inside the pod.
    Rootless,
    /// `userns` where every node that builders may run on offers it, else `rootless`.
    #[default]
    Auto,
}

/// How builds are kept apart from the daemon and the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// The pod has its own user namespace (`hostUsers: false`), the process sandbox is on and RUN steps have no
    /// network but BuildKit's proxy. One trust domain per daemon.
    Userns,
    /// rootlesskit, UID 1000, no process sandbox, the pod's own network. One app per daemon.
    Rootless,
}

impl Isolation {
    /// The word used in labels and records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Isolation::Userns => "userns",
            Isolation::Rootless => "rootless",
        }
    }

    /// Reads what [`Isolation::as_str`] wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Isolation::Userns, Isolation::Rootless].into_iter().find(|isolation| isolation.as_str() == text)
    }
}

/// How many pods there are and how long they live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolSettings {
    /// The most pods at once, those that end included; one build each.
    pub total: u16,
    /// The most pods of one trust domain.
    pub per_domain: u16,
    /// Idle daemons kept ready for a trust domain that built something within [`PoolSettings::idle`].
    pub warm: u16,
    /// Idle daemons kept ready whether or not anybody builds, by trust domain.
    pub always_warm: BTreeMap<TrustDomain, u16>,
    /// How long an app waits for the daemon that has its cache before it takes, or gets, another.
    #[serde(with = "humantime_serde")]
    pub warm_wait: Duration,
    /// An idle daemon beyond those kept ready is retired after this, which is at least [`PoolSettings::start`].
    #[serde(with = "humantime_serde")]
    pub idle: Duration,
    /// A daemon older than this gets no further build.
    #[serde(with = "humantime_serde")]
    pub life: Duration,
    /// A daemon that ran this many builds gets no further one.
    pub builds: u32,
    /// The longest a build may take: a pod is ended by Kubernetes itself after `life` and this. An app whose
    /// registration says more is not built.
    #[serde(with = "humantime_serde")]
    pub longest_build: Duration,
    /// A pod that is not ready after this is given up: images that cannot be pulled, nodes without room.
    #[serde(with = "humantime_serde")]
    pub start: Duration,
    /// A daemon whose worker has not renewed its claim for this long, by the observer's own clock, is recycled.
    /// Renewed three times as often.
    #[serde(with = "humantime_serde")]
    pub claim: Duration,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            total: 4,
            per_domain: 4,
            warm: 1,
            always_warm: BTreeMap::new(),
            warm_wait: Duration::from_secs(3),
            idle: Duration::from_mins(30),
            life: Duration::from_hours(12),
            builds: 200,
            longest_build: Duration::from_hours(2),
            start: Duration::from_mins(2),
            claim: Duration::from_secs(90),
        }
    }
}

impl PoolSettings {
    /// How many idle daemons are kept for `trust`, which is `active` when it built something lately.
    #[must_use]
    pub fn warm_for(&self, trust: &TrustDomain, active: bool) -> u16 {
        let always = self.always_warm.get(trust).copied().unwrap_or(0);
        always.max(if active { self.warm } else { 0 })
    }

    /// What is too long about a build that may take `timeout`, for people; nothing when every pod lasts for it.
    #[must_use]
    pub fn refusal(&self, timeout: Duration) -> Option<String> {
        let most = self.longest_build;
        (timeout > most).then(|| {
            let (timeout, most) = (format_duration(timeout), format_duration(most));
            format!("the build may take {timeout}, and pool.longest_build permits {most} at the most")
        })
    }

    /// `activeDeadlineSeconds`: Kubernetes' own end to a pod that nobody looks after.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.start + self.life + self.longest_build
    }
}

/// Where pods may run, beyond what is always so: never on nodes of the control plane.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scheduling {
    /// Labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that are tolerated; each must name its key, and none the control plane's.
    pub tolerations: Vec<Toleration>,
    /// The priority class.
    pub priority_class: Option<String>,
    /// The runtime class.
    pub runtime_class: Option<String>,
    /// How pods are spread. A constraint without a selector counts all builders.
    pub topology_spread: Vec<TopologySpreadConstraint>,
}

/// Where the daemon keeps its cache. It never outlives its pod: a cache belongs to a trust domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Its size; a build that fills it fails.
    pub size: Bytes,
    /// The class of a volume made for each pod; the node's own disk when absent.
    pub storage_class: Option<String>,
}

impl Default for Cache {
    fn default() -> Self {
        Self { size: Bytes::gibi(20), storage_class: None }
    }
}

/// What goes into `buildkitd.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonSettings {
    /// Registries spoken to without TLS. There is no `insecure` here on purpose: with both, HTTPS is tried first.
    pub http_registries: Vec<String>,
    /// Mirrors by registry: `docker.io: ["registry:80/mirror"]`.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// The cache beyond this is collected; four fifths of its volume when absent.
    pub max_used: Option<Bytes>,
    /// Steps of one build that run at once; unlimited when absent.
    pub max_parallelism: Option<u16>,
    /// Certificates, in PEM, that the daemon believes besides its image's own: of registries and listed hosts that
    /// show one of a private authority. A RUN step behind the proxy network needs none of them.
    pub authorities: Option<String>,
}

impl Default for DaemonSettings {
    fn default() -> Self {
        Self {
            http_registries: vec!["registry:80".to_owned()],
            mirrors: BTreeMap::new(),
            max_used: None,
            max_parallelism: None,
            authorities: None,
        }
    }
}

/// What a pod waits for before its daemon starts: proof that its network policy is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Answers without a policy and must not with one; an address, because a name that cannot be resolved for a
    /// moment would look closed. The API server, by the address that Kubernetes gives every pod, when absent.
    #[serde(default)]
    pub forbidden: Option<HostPort>,
    /// Must answer: the registry.
    pub needed: HostPort,
    /// A pod that has not seen both after this fails.
    #[serde(with = "humantime_serde", default = "Gate::default_limit")]
    pub limit: Duration,
}

impl Gate {
    fn default_limit() -> Duration {
        Duration::from_mins(1)
    }
}

/// A proxy that alone may leave, such as `k8s/components/egress-proxy`. Programs have to ask it: the daemon and RUN steps
/// are told of it by `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EgressProxy {
    /// `http://host:port`.
    pub url: String,
    /// Hosts that are reached without it besides the registries: Gitea.
    #[serde(default)]
    pub except: Vec<String>,
}

/// A host and a TCP port: `registry:80`, `198.19.0.1:443`, `[fd00::1]:443`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPort {
    /// A DNS name or an address, without brackets.
    pub host: String,
    /// The port, never zero.
    pub port: u16,
}

/// A text that is no host and port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not host:port")]
pub struct NotAHostPort(String);

impl TryFrom<String> for HostPort {
    type Error = NotAHostPort;
    fn try_from(text: String) -> Result<Self, NotAHostPort> {
        let parts = text.rsplit_once(':').and_then(|(host, port)| {
            let host = match host.strip_prefix('[') {
                Some(rest) => {
                    rest.strip_suffix(']').filter(|host| host.parse::<std::net::Ipv6Addr>().is_ok())?
                }
                None => host,
            };
            let plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:".contains(&byte));
            let port = port.parse().ok().filter(|&port| port != 0)?;
            (plain && !host.is_empty()).then(|| (host.to_owned(), port))
        });
        match parts {
            Some((host, port)) => Ok(Self { host, port }),
            None => Err(NotAHostPort(text)),
        }
    }
}

impl From<HostPort> for String {
    fn from(endpoint: HostPort) -> Self {
        let HostPort { host, port } = endpoint;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// How images are pulled.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pull {
    /// When the node's own copy is enough. Images are pinned by digest, so that it always is.
    pub policy: PullPolicy,
    /// Secrets with registry credentials, in the builders' namespace.
    pub secrets: Vec<String>,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PullPolicy {
    /// When the node does not have it.
    #[default]
    IfNotPresent,
    /// Each time, so that the registry's credentials are checked.
    Always,
    /// Nodes are loaded beforehand.
    Never,
}

impl PullPolicy {
    /// Kubernetes' word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PullPolicy::IfNotPresent => "IfNotPresent",
            PullPolicy::Always => "Always",
            PullPolicy::Never => "Never",
        }
    }
}

/// How long things are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Patience {
    /// One request to the API server.
    #[serde(with = "humantime_serde")]
    pub request: Duration,
    /// The longest pause between attempts at the API server.
    #[serde(with = "humantime_serde")]
    pub longest_pause: Duration,
    /// After a build failed oddly, for the pod's status to tell why: the node reports within seconds.
    #[serde(with = "humantime_serde")]
    pub autopsy: Duration,
    /// After that, when nothing listens at the daemon's address, for its node to be taken for lost: Kubernetes waits
    /// for 50 s by default (`--node-monitor-grace-period`).
    #[serde(with = "humantime_serde")]
    pub node: Duration,
    /// Between looks at the nodes, which may come to offer more or less: with `isolation: auto`.
    #[serde(with = "humantime_serde")]
    pub nodes: Duration,
    /// For a pod to end by itself once deleted. A running build is lost in any case.
    #[serde(with = "humantime_serde")]
    pub ending: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(10),
            longest_pause: Duration::from_secs(30),
            autopsy: Duration::from_secs(5),
            node: Duration::from_mins(1),
            nodes: Duration::from_mins(5),
            ending: Duration::from_secs(5),
        }
    }
}
