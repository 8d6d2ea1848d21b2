//! What the bus needs to know; read from a file or the environment elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::token;

const MIB: u64 = 1 << 20;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How to reach the bus and how much of it to use.
#[derive(Debug, Clone)]
pub struct BusConfig {
    /// `nats://host:port` or `tls://host:port`, one or more of the same cluster. Without user information: that goes
    /// in `credentials`, since addresses end up in logs.
    pub servers: Vec<String>,
    /// Who connects; nobody on a server that lets anyone in, which `doctor` objects to.
    pub credentials: Option<Credentials>,
    /// Transport security.
    pub tls: Tls,
    /// The name of this connection for people (`nats server report connections`), and the last part of `ce-source`.
    pub name: String,
    /// The base of the server's monitoring endpoint, like `http://nats:8222`. Only `inspect` asks it, for
    /// `sync_interval`, which clients cannot see.
    pub monitoring: Option<String>,
    /// How long each kind of call may take.
    pub timeouts: Timeouts,
    /// Copies of every stream: 1, or 3 in a cluster. Only used when a stream is made.
    pub replicas: usize,
    /// How much is kept. Only used when a stream is made, except for the caps per build and per app.
    pub limits: Limits,
}

impl BusConfig {
    /// The usual settings for `servers`, with no credentials.
    #[must_use]
    pub fn new(servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            servers: servers.into_iter().map(Into::into).collect(),
            credentials: None,
            tls: Tls::default(),
            name: "fabrique".to_owned(),
            monitoring: None,
            timeouts: Timeouts::default(),
            replicas: 1,
            limits: Limits::default(),
        }
    }

    /// The same, as `user`, who also names the connection.
    #[must_use]
    pub fn as_user(mut self, user: impl Into<String>, password: SecretString) -> Self {
        let user = user.into();
        self.name.clone_from(&user);
        self.credentials = Some(Credentials { user, password });
        self
    }

    /// Where answers to this user's requests arrive: `_INBOX_<user>`, a prefix of its own per user, so that no role can
    /// read another's answers.
    #[must_use]
    pub fn inbox_prefix(&self) -> String {
        match &self.credentials {
            Some(Credentials { user, .. }) => format!("_INBOX_{}", token::encode(user)),
            None => "_INBOX".to_owned(),
        }
    }
}

/// A user of the bus.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The user's name: the role's.
    pub user: String,
    /// The password.
    pub password: SecretString,
}

/// Transport security.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// Refuse to speak without it. A `tls://` address does so by itself.
    pub required: bool,
    /// A file with the authorities to trust, instead of the system's.
    pub authority: Option<PathBuf>,
    /// Files with this client's certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// How long each kind of call may take.
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// A publish, from the call to the acknowledgement. Gitea gives a webhook five seconds, so two leave room for
    /// an answer.
    pub ack: Duration,
    /// A question to JetStream.
    pub request: Duration,
    /// A command, until a worker has answered.
    pub command: Duration,
    /// One attempt to connect.
    pub connect: Duration,
    /// All attempts to connect at the start.
    pub start: Duration,
    /// Silence between a client and the server after which one asks whether the other lives; a dead connection is
    /// noticed after three of them.
    pub ping: Duration,
    /// For whoever follows events or a log, to go on while the bus is away.
    pub outage: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            ack: Duration::from_secs(2),
            request: Duration::from_secs(5),
            command: Duration::from_secs(10),
            connect: Duration::from_secs(5),
            start: Duration::from_secs(30),
            ping: Duration::from_secs(5),
            outage: Duration::from_secs(600),
        }
    }
}

/// How much is kept, in bytes on disk per replica. Zero bytes means no limit of its own; the server reserves the sum
/// of the others out of its `max_file_store`. The defaults add up to 2.8 GiB and hold some thousand apps.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Wakes: one small message per app.
    pub wake_bytes: u64,
    /// Work records: one per app.
    pub work_bytes: u64,
    /// Memories: one per app.
    pub memory_bytes: u64,
    /// Image records, about 600 bytes each; the oldest go first, which costs a rebuild.
    pub records_bytes: u64,
    /// The history of builds.
    pub builds_bytes: u64,
    /// How long a build stays in the history.
    pub builds_age: Duration,
    /// Builds kept per app.
    pub builds_per_app: usize,
    /// What is known of sources on GitHub: one small message per app.
    pub upstream_bytes: u64,
    /// Events.
    pub events_bytes: u64,
    /// How long an event is kept.
    pub events_age: Duration,
    /// Logs of all builds.
    pub logs_bytes: u64,
    /// How long a log is kept.
    pub logs_age: Duration,
    /// Bytes of one build's log; what follows is dropped.
    pub log_bytes_per_build: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            wake_bytes: 64 * MIB,
            work_bytes: 64 * MIB,
            memory_bytes: 128 * MIB,
            records_bytes: 256 * MIB,
            builds_bytes: 256 * MIB,
            builds_age: 180 * DAY,
            builds_per_app: 100,
            upstream_bytes: 32 * MIB,
            events_bytes: 1024 * MIB,
            events_age: 30 * DAY,
            logs_bytes: 1024 * MIB,
            logs_age: 30 * DAY,
            log_bytes_per_build: 8 * MIB,
        }
    }
}
