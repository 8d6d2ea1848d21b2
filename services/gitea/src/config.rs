//! What the adapter is told at the start.

use std::fmt;
use std::time::Duration;

use fabrique_core::id::RepoName;
use secrecy::SecretString;
use url::Url;

/// What a token is for. Each purpose has its own, so that none can do more than its use needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Reading the sources of one trust domain. The only token that a build session ever hands out.
    Read,
    /// Setting commit statuses, for which Gitea demands write access to code.
    Status,
    /// Looking after webhooks, for which Gitea demands administration of the repository.
    Hooks,
    /// Reading and writing `cluster/apps`.
    Apps,
    /// Setting an installation up, as an administrator with a password: Gitea makes tokens for nothing else.
    Admin,
}

impl Purpose {
    /// All that have tokens.
    pub const ALL: [Purpose; 4] = [Purpose::Read, Purpose::Status, Purpose::Hooks, Purpose::Apps];

    /// The word in configuration and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Purpose::Read => "read",
            Purpose::Status => "status",
            Purpose::Hooks => "hooks",
            Purpose::Apps => "apps",
            Purpose::Admin => "admin",
        }
    }

    /// The right and the token scope that the purpose needs, for remedies.
    pub(crate) fn needs(self) -> &'static str {
        match self {
            Purpose::Read => "read access to the repository's code and the scope read:repository",
            Purpose::Status | Purpose::Apps => {
                "write access to the repository's code and the scope write:repository"
            }
            Purpose::Hooks => "administration of the repository and the scope write:repository",
            Purpose::Admin => "administration of the server",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The tokens. A missing one means that requests of its purpose carry no credentials, which is enough to
/// read public repositories.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    /// See [`Purpose::Read`].
    pub read: Option<SecretString>,
    /// See [`Purpose::Status`].
    pub status: Option<SecretString>,
    /// See [`Purpose::Hooks`].
    pub hooks: Option<SecretString>,
    /// See [`Purpose::Apps`].
    pub apps: Option<SecretString>,
}

impl Tokens {
    pub(crate) fn of(&self, purpose: Purpose) -> Option<&SecretString> {
        match purpose {
            Purpose::Read => self.read.as_ref(),
            Purpose::Status => self.status.as_ref(),
            Purpose::Hooks => self.hooks.as_ref(),
            Purpose::Apps => self.apps.as_ref(),
            Purpose::Admin => None,
        }
    }
}

/// Where Gitea is, and as whom to talk to it.
#[derive(Debug, Clone)]
pub struct GiteaConfig {
    /// The root of the web interface, like `https://gitea.example.org/`. A path is kept; credentials in it
    /// are refused.
    pub base_url: Url,
    /// The tokens by purpose.
    pub tokens: Tokens,
    /// `cluster/apps`, whose head is read with the token [`Purpose::Apps`] instead of [`Purpose::Read`].
    pub apps_repo: Option<RepoName>,
    /// The secret that webhooks made here sign with: the newest of those that the receiver accepts.
    pub hook_secret: Option<SecretString>,
    /// The one that they signed with before, while secrets are rotated: hooks made with it are recognised.
    pub former_hook_secret: Option<SecretString>,
    /// What new pull mirrors are cloned with; Gitea keeps it with each of them.
    pub clone_token: Option<SecretString>,
    /// Certificates in PEM to trust instead of the system's, for a forge with an authority of its own.
    pub authority: Option<Vec<u8>>,
    /// How long things may take.
    pub timeouts: Timeouts,
}

/// How long requests may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until there is a connection.
    pub connect: Duration,
    /// A request as a whole, connection and body included.
    pub request: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(3), request: Duration::from_secs(10) }
    }
}

impl GiteaConfig {
    /// The configuration for a server, without tokens and with the usual timeouts.
    #[must_use]
    pub fn new(base_url: Url) -> Self {
        Self {
            base_url,
            tokens: Tokens::default(),
            apps_repo: None,
            hook_secret: None,
            former_hook_secret: None,
            clone_token: None,
            authority: None,
            timeouts: Timeouts::default(),
        }
    }
}
