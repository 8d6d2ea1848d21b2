//! What can go wrong before there is a build, or against all expectation.

use std::path::PathBuf;

use fabrique_ports::{Fault, Peer, PortError};

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
    #[error("{daemon} refused {what}: {}", status.message())]
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
            BuildkitError::Connect { .. } | BuildkitError::Slow { .. } => (Fault::Transient, None),
            BuildkitError::Call { status, .. } if status.code() == tonic::Code::Unimplemented => {
                (Fault::Unexpected, Some("is that buildkitd's address?"))
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

/// The innermost reason: tonic's own text is only "transport error".
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
