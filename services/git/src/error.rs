//! What can go wrong with git, and whose turn it is then.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use fabrique_core::id::{RepoName, Revision};
use fabrique_ports::{Fault, Peer, PortError};

/// What git, the forge behind it or the disk below it did instead of answering.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// A configuration that cannot work.
    #[error("the configuration's {key} must be {expected}")]
    Config {
        /// The key.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// Git could not be started or talked to.
    #[error("cannot run git {command}")]
    Run {
        /// The subcommand.
        command: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The state directory could not be used.
    #[error("cannot use {}", path.display())]
    State {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another process kept a clone locked.
    #[error("{} is in use for longer than {} s", path.display(), waited.as_secs())]
    Locked {
        /// The lock.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// Git took longer than it may, and was ended.
    #[error("git {command} took longer than {} s", after.as_secs())]
    TimedOut {
        /// The subcommand.
        command: String,
        /// Its timeout.
        after: Duration,
    },
    /// Git wrote more than it may, and was ended.
    #[error("git {command} wrote more than {limit} bytes")]
    TooMuchOutput {
        /// The subcommand.
        command: String,
        /// Its bound.
        limit: u64,
    },
    /// The disk below the state directory is full.
    #[error("no space is left for git {command}")]
    DiskFull {
        /// The subcommand.
        command: String,
    },
    /// The forge is not reachable, or answers with a server error.
    #[error("the forge does not answer: {0}")]
    Unreachable(String),
    /// The forge took the commits and could not write the branch.
    #[error("the forge did not move the branch: {0}")]
    NotMoved(String),
    /// The forge refuses: credentials, rights, or no such repository.
    #[error("the forge refuses: {0}")]
    Refused(String),
    /// The branch that should be there is not.
    #[error("there is no branch {branch} in {repo}")]
    NoBranch {
        /// The repository.
        repo: RepoName,
        /// The branch.
        branch: String,
    },
    /// Git failed for a reason that is not the forge's; a damaged clone is one.
    #[error("git {command} failed: {said}")]
    Failed {
        /// The subcommand.
        command: String,
        /// Its messages, cut and escaped.
        said: String,
    },
    /// A revision is neither in the clone nor on the forge.
    #[error("{repo} has no commit {revision}")]
    NoRevision {
        /// The repository.
        repo: RepoName,
        /// The revision.
        revision: Revision,
    },
    /// There is more than the adapter reads.
    #[error("{what} is more than fabrique reads: at most {files} files and {bytes} bytes")]
    TooBig {
        /// The directory.
        what: String,
        /// The bound on files.
        files: usize,
        /// The bound on bytes.
        bytes: u64,
    },
    /// A file's name cannot be carried.
    #[error("the path {0:?} has characters that fabrique does not accept")]
    HostilePath(String),
    /// A commit that must not be made.
    #[error("refused to commit: {0}")]
    Commit(String),
    /// Git wrote something that makes no sense.
    #[error("git {command} wrote something unexpected: {what}")]
    Malformed {
        /// The subcommand.
        command: &'static str,
        /// What.
        what: String,
    },
}

impl GitError {
    /// Whether a new clone may help.
    pub(crate) fn may_be_damage(&self) -> bool {
        matches!(self, GitError::Failed { .. } | GitError::Malformed { .. })
    }

    fn fault(&self) -> Fault {
        match self {
            GitError::Run { .. }
            | GitError::State { .. }
            | GitError::Locked { .. }
            | GitError::TimedOut { .. }
            | GitError::DiskFull { .. }
            | GitError::NotMoved(_)
            | GitError::Unreachable(_) => Fault::Transient,
            GitError::Refused(_) | GitError::NoBranch { .. } | GitError::Config { .. } => Fault::Denied,
            GitError::TooMuchOutput { .. }
            | GitError::Failed { .. }
            | GitError::NoRevision { .. }
            | GitError::TooBig { .. }
            | GitError::HostilePath(_)
            | GitError::Commit(_)
            | GitError::Malformed { .. } => Fault::Unexpected,
        }
    }

    fn remedy(&self) -> Option<&'static str> {
        match self {
            GitError::Refused(_) => Some(
                "check that the repository is there and its token not wrong, expired or revoked: `gitea.apps_token` \
                 for cluster/apps, `gitea.read_token` for sources",
            ),
            GitError::NoBranch { .. } => Some("push the branch, or name another one in the configuration"),
            GitError::State { .. } | GitError::DiskFull { .. } => {
                Some("check the state directory's rights and free space")
            }
            GitError::NotMoved(_) => Some("check the forge's log, disk and the rights of its repositories"),
            GitError::TooBig { .. } => Some("read a smaller directory, or raise the limit"),
            GitError::HostilePath(_) => Some("rename the file"),
            GitError::Config { .. }
            | GitError::Run { .. }
            | GitError::Locked { .. }
            | GitError::TimedOut { .. }
            | GitError::TooMuchOutput { .. }
            | GitError::Unreachable(_)
            | GitError::Failed { .. }
            | GitError::NoRevision { .. }
            | GitError::Commit(_)
            | GitError::Malformed { .. } => None,
        }
    }
}

impl From<GitError> for PortError {
    fn from(error: GitError) -> Self {
        let port = PortError::new(Peer::Git, error.fault(), error.to_string());
        let is_of_content = matches!(error, GitError::TooBig { .. } | GitError::HostilePath(_));
        let port = if is_of_content { port.of_content() } else { port };
        let port = match error.remedy() {
            Some(remedy) => port.remedy(remedy),
            None => port,
        };
        port.caused_by(error)
    }
}
