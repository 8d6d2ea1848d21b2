//! The one error that crosses a port.

use std::fmt;

/// What an adapter answers when something unexpected happened.
pub type PortResult<T> = Result<T, PortError>;

/// The peer that an error came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Gitea's API.
    Forge,
    /// Git over http, or the git command line.
    Git,
    /// The image registry.
    Registry,
    /// The build daemon.
    Builder,
    /// NATS.
    Bus,
    /// GitHub's API.
    Origin,
    /// An app's PostgreSQL.
    Database,
    /// The API server of Kubernetes.
    Cluster,
    /// Argo CD.
    Deployer,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Peer::Forge => "Gitea",
            Peer::Git => "git",
            Peer::Registry => "the registry",
            Peer::Builder => "buildkitd",
            Peer::Bus => "NATS",
            Peer::Origin => "GitHub",
            Peer::Database => "PostgreSQL",
            Peer::Cluster => "the API server",
            Peer::Deployer => "Argo CD",
        })
    }
}

/// What helps against an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Trying again later: unreachable, timed out, overloaded, 5xx.
    Transient,
    /// A person: credentials refused, rights missing, repository archived.
    Denied,
    /// Neither: the answer makes no sense, or the request was wrong. A defect or an incompatible server.
    Unexpected,
}

/// A surprise at a port: what happened, where, and what to do next. Its text never carries a secret.
#[derive(Debug, thiserror::Error)]
#[error("{peer}: {message}{}", remedy.as_deref().map(|r| format!(" ({r})")).unwrap_or_default())]
pub struct PortError {
    peer: Peer,
    fault: Fault,
    message: String,
    remedy: Option<String>,
    of_content: bool,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl PortError {
    /// An error of `peer`.
    pub fn new(peer: Peer, fault: Fault, message: impl Into<String>) -> Self {
        Self { peer, fault, message: message.into(), remedy: None, of_content: false, source: None }
    }

    /// Says what a person can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Keeps the cause for the log.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Says that what was asked for is there and cannot be carried: there is too much of it, or it is called as nothing may
    /// be. The peer is well, and the same question about the same revision has the same answer.
    #[must_use]
    pub fn of_content(mut self) -> Self {
        self.of_content = true;
        self
    }

    /// Whether only another content helps.
    #[must_use]
    pub fn is_of_content(&self) -> bool {
        self.of_content
    }

    /// The same error for another of several callers that waited for one answer. The cause stays with the
    /// first.
    #[must_use]
    pub fn again(&self) -> Self {
        Self {
            peer: self.peer,
            fault: self.fault,
            message: self.message.clone(),
            remedy: self.remedy.clone(),
            of_content: self.of_content,
            source: None,
        }
    }

    /// What was found, without what helps.
    #[must_use]
    pub fn finding(&self) -> String {
        format!("{}: {}", self.peer, self.message)
    }

    /// What a person can do about it, where the peer's adapter knows.
    #[must_use]
    pub fn advice(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// Where it came from.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// What helps.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// Whether the same call may succeed later without anybody's help.
    #[must_use]
    pub fn transient(&self) -> bool {
        self.fault == Fault::Transient
    }
}
