//! What the adapter is told once, at the start.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fabrique_core::app::RegistryCache;
use fabrique_core::id::AppName;
use secrecy::SecretString;
use url::Url;

use crate::version::{FLOOR, Version};

/// Where sources come from, what builds may use, and how long anything is waited for.
#[derive(Debug, Clone)]
pub struct BuildkitConfig {
    /// Gitea's base URL as the *daemons* reach it: `http://gitea.example:3000/`. Sources are
    /// `<base>/<org>/<repo>.git`.
    pub git_base: Url,
    /// The read token for repositories whose organisation has none of its own. Without any token only public
    /// repositories build.
    pub git_token: Option<SecretString>,
    /// Read tokens by organisation (compared without case, as Gitea does). A step of a build can read the token
    /// that its session answers, so each should open nothing but its own organisation's sources.
    pub git_tokens: BTreeMap<String, SecretString>,
    /// The registries that base images may come from: `host[:port]`, or `host[:port]/prefix` for a part of one.
    /// Anything else fails the build; none at all leaves `FROM scratch`.
    pub permitted_bases: Vec<String>,
    /// Hosts (`host[:port]`, 443 unless said otherwise) that `ADD https://…`, and RUN steps behind the daemon's proxy
    /// network, may reach.
    pub permitted_hosts: Vec<String>,
    /// What single apps may reach beyond these.
    pub permitted_hosts_of: BTreeMap<AppName, Vec<String>>,
    /// The oldest BuildKit that builds are sent to; nothing below [`FLOOR`] counts.
    pub floor: Version,
    /// TLS for `tcp://` daemons. Unix sockets never use it.
    pub tls: Option<Tls>,
    /// Build secrets, one file each: `<dir>/<app>/<name>`.
    pub secrets_dir: Option<PathBuf>,
    /// Bounds on what a build may print.
    pub logs: LogLimits,
    /// Whether images carry a provenance attestation.
    pub provenance: Provenance,
    /// Where the results of steps are kept beside the daemons, for apps that do not say it themselves. They are kept in
    /// the image's repository (`mode=max`: the steps of all stages), under one tag an app, and taken from there by the
    /// digest that was recorded. That the export fails fails no build.
    pub cache: RegistryCache,
    /// The most processes and threads of a step's user, those of the daemon included where it is the same one. Absent:
    /// the machine's own limits. It has to be well below these, or the daemon is what they end.
    pub step_processes: Option<NonZeroU32>,
    /// How long things are waited for.
    pub patience: Patience,
}

impl BuildkitConfig {
    /// A configuration with no tokens, no permitted bases, no TLS and default limits.
    #[must_use]
    pub fn new(git_base: Url) -> Self {
        Self {
            git_base,
            git_token: None,
            git_tokens: BTreeMap::new(),
            permitted_bases: Vec::new(),
            permitted_hosts: Vec::new(),
            permitted_hosts_of: BTreeMap::new(),
            floor: FLOOR,
            tls: None,
            secrets_dir: None,
            logs: LogLimits::default(),
            provenance: Provenance::Off,
            cache: RegistryCache::Off,
            step_processes: None,
            patience: Patience::default(),
        }
    }
}

/// Where certificates come from.
#[derive(Debug, Clone)]
pub enum Tls {
    /// From files.
    Files(TlsFiles),
    /// From whoever issues them, asked for every connection.
    Issued(Arc<dyn IssueTls>),
}

/// Issues what a client of daemons needs, from memory.
pub trait IssueTls: fmt::Debug + Send + Sync {
    /// A certificate that is good for now.
    ///
    /// # Errors
    /// Why there is none, for people.
    fn issue(&self) -> Result<IssuedTls, String>;
}

/// A client's identity and whom it believes, in PEM.
#[derive(Debug, Clone)]
pub struct IssuedTls {
    /// The authorities that may have signed a daemon's certificate.
    pub ca: String,
    /// What we show.
    pub cert: String,
    /// Its private key.
    pub key: SecretString,
}

/// Certificates in PEM files, read again for every connection so that rotated ones count at once.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The authorities that may have signed a daemon's certificate.
    pub ca: PathBuf,
    /// What we show to a daemon that asks (mTLS).
    pub identity: Option<TlsIdentity>,
}

/// A client certificate.
#[derive(Debug, Clone)]
pub struct TlsIdentity {
    /// The certificate, with its intermediates.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Bounds on a build's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// The longest line in bytes; the rest of it is cut.
    pub line: usize,
    /// The most bytes of output that one build reports; the tails of failing steps are kept beyond it.
    pub total: usize,
    /// How many of its last lines a step keeps for the failure report.
    pub tail: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { line: 4 * 1024, total: 16 * 1024 * 1024, tail: 40 }
    }
}

/// Whether an attestation says how the image was made. With one, the digest is an index's, and two builds of the
/// same key differ in it (it carries times).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Provenance {
    /// None: the digest of a one-platform image is its manifest's.
    #[default]
    Off,
    /// `mode=min`: materials and builder, without build arguments and secrets.
    Min,
}

/// How long things are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For an answer about the daemon itself.
    pub probe: Duration,
    /// For any sign of life during a build. The daemon checks the session every 5 s, so a minute of silence means
    /// a daemon that hangs or a network that swallows packets.
    pub silence: Duration,
    /// For a cancelled build to stop, and for the last output after a build's end.
    pub ending: Duration,
    /// For the registry to say whether a base image exists that the daemon could not resolve.
    pub base: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            probe: Duration::from_secs(10),
            silence: Duration::from_secs(60),
            ending: Duration::from_secs(5),
            base: Duration::from_secs(15),
        }
    }
}
