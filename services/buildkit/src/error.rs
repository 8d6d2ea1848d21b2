//! What can go wrong before there is a build, or against all expectation.

use std::error::Error as _;
use std::path::PathBuf;

use fabrique_ports::{Fault, Peer, PortError};

use crate::handshake::Handshake;
use crate::version::Version;

/// A call that never became a build, or an answer that makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum BuildkitError {
    /// A daemon's address that is neither `tcp://host:port` nor `unix:///path`.
    #[error("{address:?} is no daemon address (tcp://host:port or unix:///path)")]
    Address {
        /// What was given.
        address: String,
    },
    /// A configured value that cannot be used.
    #[error("{key}: {problem}")]
    Config {
        /// The setting.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate or key that cannot be read.
    #[error("cannot read {}", path.display())]
    TlsFile {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Certificates that cannot be used.
    #[error("the TLS settings for {daemon} do not work")]
    Tls {
        /// The daemon's name.
        daemon: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// No connection.
    #[error("cannot connect to {daemon} at {address}: {}", root_cause(source))]
    Connect {
        /// The daemon's name.
        daemon: String,
        /// Where it should be.
        address: String,
        /// Why not.
        source: tonic::transport::Error,
    },
    /// A daemon that could not be trusted, or that does not trust us.
    #[error("no TLS with {daemon} at {address}: {}", handshake.found)]
    Handshake {
        /// The daemon's name.
        daemon: String,
        /// Where it is.
        address: String,
        /// Why, and what helps.
        handshake: Handshake,
    },
    /// No connection, or no answer, in time.
    #[error("{daemon} did not answer {what} within {} s", limit.as_secs_f32())]
    Slow {
        /// The daemon's name.
        daemon: String,
        /// What was asked.
        what: &'static str,
        /// How long was waited.
        limit: std::time::Duration,
    },
    /// A call that failed.
    #[error("{daemon} did not answer {what}: {}", words(status))]
    Call {
        /// The daemon's name.
        daemon: String,
        /// What was asked.
        what: &'static str,
        /// Its answer.
        status: Box<tonic::Status>,
    },
    /// A daemon below the floor, or one that does not say what it is.
    #[error("{daemon} runs BuildKit {version:?}, and the floor is {floor}")]
    TooOld {
        /// The daemon's name.
        daemon: String,
        /// Its version, as it prints it.
        version: String,
        /// The oldest that is used.
        floor: Version,
    },
    /// A finished build without a digest that can be believed.
    #[error("{daemon} finished the build but {problem}")]
    Digest {
        /// The daemon's name.
        daemon: String,
        /// What is wrong with the answer.
        problem: String,
    },
}

impl From<BuildkitError> for PortError {
    fn from(error: BuildkitError) -> Self {
        let (fault, remedy) = match &error {
            BuildkitError::Address { .. } | BuildkitError::Config { .. } | BuildkitError::TlsFile { .. } => {
                (Fault::Denied, Some("correct the builder's configuration"))
            }
            BuildkitError::Tls { .. } => {
                (Fault::Denied, Some("check the certificate files of the builder's configuration"))
            }
            BuildkitError::Handshake { handshake, .. } => (Fault::Denied, Some(handshake.remedy)),
            BuildkitError::Connect { source, .. } if root_cause(source).contains(HANDSHAKE_ENDED) => {
                (Fault::Transient, Some(BOTH_OR_NEITHER))
            }
            BuildkitError::Connect { .. } | BuildkitError::Slow { .. } => (Fault::Transient, None),
            BuildkitError::Call { status, .. } if status.code() == tonic::Code::Unimplemented => {
                (Fault::Unexpected, Some("is that buildkitd's address?"))
            }
            // The connection broke, and no answer was read.
            BuildkitError::Call { status, .. } if status.source().is_some() => {
                (Fault::Transient, Some(BOTH_OR_NEITHER))
            }
            BuildkitError::Call { .. } => (Fault::Transient, None),
            BuildkitError::TooOld { .. } => {
                (Fault::Denied, Some("upgrade buildkitd, or the builders' image"))
            }
            BuildkitError::Digest { .. } => {
                (Fault::Unexpected, Some("report this with the daemon's version"))
            }
        };
        let port = PortError::new(Peer::Builder, fault, error.to_string());
        let port = if let Some(remedy) = remedy { port.remedy(remedy) } else { port };
        port.caused_by(error)
    }
}

/// What the TLS library says of a peer that hangs up instead of greeting back.
const HANDSHAKE_ENDED: &str = "tls handshake eof";
/// One side that speaks TLS with one that does not looks like a daemon that hangs up.
const BOTH_OR_NEITHER: &str = "is it up, and does it speak TLS just where `buildkit.tls` is set?";

/// A daemon's own words, or what the connection broke of.
fn words(status: &tonic::Status) -> String {
    status.source().map_or_else(|| status.message().to_owned(), root_cause)
}

/// The innermost reason: tonic's own text is only "transport error".
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
