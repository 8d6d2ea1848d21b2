//! What the adapter is told at the start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use fabrique_core::id::{BranchName, RepoName};
use secrecy::SecretString;
use url::Url;

use crate::error::GitError;

/// Everything about git that an installation decides.
#[derive(Debug, Clone)]
pub struct GitConfig {
    /// Where clones live. They are a cache; the directory may be empty at every start.
    pub state_dir: PathBuf,
    /// The forge, as in `https://gitea.example.org/`: http or https, without credentials. Repositories are
    /// below it as `<organisation>/<name>.git`.
    pub base_url: Url,
    /// Certificates to trust instead of the system's, as a PEM file.
    pub ca_file: Option<PathBuf>,
    /// Tokens for reading sources.
    pub read: ReadTokens,
    /// The repository that holds what is deployed.
    pub apps: AppsRepository,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// How much is read.
    pub limits: Limits,
    /// Whether `base_url` may be a `file:` URL: for tests and for trying things out on one machine.
    pub allow_file: bool,
}

impl GitConfig {
    /// A configuration with the usual timeouts and limits, and no token for sources.
    #[must_use]
    pub fn new(state_dir: PathBuf, base_url: Url, apps: AppsRepository) -> Self {
        Self {
            state_dir,
            base_url,
            ca_file: None,
            read: ReadTokens::default(),
            apps,
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            allow_file: false,
        }
    }

    /// Checks what types cannot.
    ///
    /// # Errors
    /// [`GitError::Config`], naming the key and what it should be.
    pub fn check(&self) -> Result<(), GitError> {
        let url = &self.base_url;
        let allowed = match url.scheme() {
            "http" | "https" => true,
            "file" => self.allow_file,
            _ => false,
        };
        let refuse = |key, expected| Err(GitError::Config { key, expected });
        if !allowed {
            return refuse("base_url", "an http or https URL");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("base_url", "a URL without credentials: tokens have their own keys");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return refuse("base_url", "a URL without query and fragment");
        }
        if !self.apps.identity.is_sound() {
            return refuse("apps.identity", "a name and an address without '<', '>' or control characters");
        }
        if !self.state_dir.is_absolute() {
            return refuse("state_dir", "an absolute path");
        }
        Ok(())
    }
}

/// Tokens for reading sources: one per organisation, so that a trust domain's token reads only its own
/// repositories, and one for all the others.
#[derive(Debug, Clone, Default)]
pub struct ReadTokens {
    /// By organisation, in any case.
    pub by_org: BTreeMap<String, SecretString>,
    /// For organisations without one of their own; without it they are read anonymously.
    pub default: Option<SecretString>,
}

impl ReadTokens {
    pub(crate) fn of(&self, repo: &RepoName) -> Option<&SecretString> {
        let own = self.by_org.iter().find(|(org, _)| org.eq_ignore_ascii_case(repo.org()));
        own.map(|(_, token)| token).or(self.default.as_ref())
    }
}

/// `cluster/apps`: where, and as whom.
#[derive(Debug, Clone)]
pub struct AppsRepository {
    /// The repository.
    pub repo: RepoName,
    /// The branch that is deployed.
    pub branch: BranchName,
    /// A token that may push to it.
    pub token: Option<SecretString>,
    /// Author and committer of fabrique's commits.
    pub identity: Identity,
}

/// Who makes commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub name: String,
    /// The e-mail address.
    pub email: String,
}

impl Identity {
    fn is_sound(&self) -> bool {
        let sound = |text: &str| !text.chars().any(|c| c.is_control() || matches!(c, '<' | '>'));
        !self.name.trim().is_empty() && sound(&self.name) && sound(&self.email)
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self { name: "fabrique".to_owned(), email: "fabrique@localhost".to_owned() }
    }
}

/// How long git may take. What is late is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// A command that only touches the clone.
    pub local: Duration,
    /// Bringing a clone up to date.
    pub fetch: Duration,
    /// Making a clone; everybody else who needs it waits for as long.
    pub clone: Duration,
    /// Until there is a connection for a push.
    pub connect: Duration,
    /// A push, of which the forge's hooks are most.
    pub push: Duration,
    /// Tidying a clone up, in the background.
    pub tidy: Duration,
    /// The least time between two new clones in place of one that seems damaged: what is damaged again so soon is not
    /// damaged, but something else is wrong.
    pub healing: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            local: Duration::from_secs(30),
            fetch: Duration::from_secs(60),
            clone: Duration::from_secs(600),
            connect: Duration::from_secs(10),
            push: Duration::from_secs(60),
            tidy: Duration::from_secs(600),
            healing: Duration::from_secs(60),
        }
    }
}

/// How much is read and kept. To read more is an error, or "cannot tell" where the port has that answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Paths in one difference.
    pub changed_paths: usize,
    /// Files in a directory of a source.
    pub directory_files: usize,
    /// Bytes in a directory of a source.
    pub directory_bytes: u64,
    /// Files in a snapshot of `cluster/apps`.
    pub snapshot_files: usize,
    /// Bytes in a snapshot of `cluster/apps`.
    pub snapshot_bytes: u64,
    /// Packs of a clone beyond which it is tidied up.
    pub packs: usize,
    /// Loose objects of a clone beyond which it is tidied up.
    pub loose_objects: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            changed_paths: 20_000,
            directory_files: 2_000,
            directory_bytes: 16 << 20,
            snapshot_files: 50_000,
            snapshot_bytes: 128 << 20,
            packs: 40,
            loose_objects: 6_000,
        }
    }
}
