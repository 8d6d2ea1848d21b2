//! What can go wrong with a registry, and whose turn it is then.

use fabrique_core::id::Digest;
use fabrique_ports::{Fault, Peer, PortError};

/// What the registry did instead of answering.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// It was not reached, or did not answer in time.
    #[error("{host} does not answer")]
    Unreachable {
        /// The registry, or its token service.
        host: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// It is overloaded or broken for now: 408, 429 or 5xx.
    #[error("{host} answered {status} to {what}")]
    Unwell {
        /// The registry.
        host: String,
        /// The status.
        status: u16,
        /// The request.
        what: String,
    },
    /// It refuses: 401 or 403.
    #[error("{host} refuses {what} ({status})")]
    Denied {
        /// The registry.
        host: String,
        /// The status.
        status: u16,
        /// The request.
        what: String,
    },
    /// It takes no push into this repository, whoever asks: 404 or 405 to the beginning of one.
    #[error("{image} takes no push: {host} answered {status}")]
    NoPush {
        /// The registry.
        host: String,
        /// The status.
        status: u16,
        /// The image repository.
        image: String,
    },
    /// It has no such manifest, where one must be.
    #[error("{image} has no manifest {digest}")]
    NoManifest {
        /// The image repository.
        image: String,
        /// The digest.
        digest: Digest,
    },
    /// It answered with another content than the one it was asked for.
    #[error("{image} has something else under {digest}: {found}")]
    WrongContent {
        /// The image repository.
        image: String,
        /// The digest that was asked for.
        digest: Digest,
        /// The digest of what came, or what is wrong with it.
        found: String,
    },
    /// An answer that makes no sense: another status, no digest, too long, a media type that is none of an image.
    #[error("{host} answered {what}")]
    Odd {
        /// The registry.
        host: String,
        /// What is odd.
        what: String,
    },
    /// Not a tag.
    #[error(
        "{0:?} is not a tag (letters, digits, '_', '.' and '-', at most 128, not starting with '.' or '-')"
    )]
    BadTag(String),
    /// Not a registry's host.
    #[error("{0:?} is not the host of a registry (host or host:port)")]
    BadHost(String),
    /// The http client could not be made.
    #[error("cannot make an http client")]
    Client(#[source] reqwest::Error),
}

impl RegistryError {
    fn fault(&self) -> Fault {
        match self {
            RegistryError::Unreachable { .. } | RegistryError::Unwell { .. } => Fault::Transient,
            RegistryError::Denied { .. } | RegistryError::NoPush { .. } => Fault::Denied,
            RegistryError::NoManifest { .. }
            | RegistryError::WrongContent { .. }
            | RegistryError::Odd { .. }
            | RegistryError::BadTag(_)
            | RegistryError::BadHost(_)
            | RegistryError::Client(_) => Fault::Unexpected,
        }
    }

    fn remedy(&self) -> Option<&'static str> {
        match self {
            RegistryError::Denied { .. } => {
                Some("check the credentials configured for this registry and what they may do")
            }
            RegistryError::NoPush { status: 404, .. } => {
                Some("make the repository, or its project, at the registry: it makes none by itself")
            }
            RegistryError::NoPush { .. } => Some(
                "is the registry read-only, or a cache of another one? Let it take pushes, or push elsewhere",
            ),
            RegistryError::Unreachable { .. }
            | RegistryError::Unwell { .. }
            | RegistryError::NoManifest { .. }
            | RegistryError::WrongContent { .. }
            | RegistryError::Odd { .. }
            | RegistryError::BadTag(_)
            | RegistryError::BadHost(_)
            | RegistryError::Client(_) => None,
        }
    }
}

impl From<RegistryError> for PortError {
    fn from(error: RegistryError) -> Self {
        let port = PortError::new(Peer::Registry, error.fault(), error.to_string());
        let port = match error.remedy() {
            Some(remedy) => port.remedy(remedy),
            None => port,
        };
        port.caused_by(error)
    }
}
