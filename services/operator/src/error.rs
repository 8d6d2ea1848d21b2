//! Why a use case has no answer.

use fabrique_ports::PortError;

use crate::exit::Exit;

/// Why a use case has no answer.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// No app of that name is registered.
    #[error("{name} is not a registered app; {hint}")]
    UnknownApp {
        /// The name as it was given, control characters escaped.
        name: String,
        /// Near names, or what else to do.
        hint: String,
    },
    /// There is no such build, or it is too old to be remembered.
    #[error("there is no build {0}; `fabrique builds` lists those that are remembered")]
    UnknownBuild(String),
    /// A local directory cannot be read.
    #[error("{path} cannot be read: {source}")]
    Directory {
        /// The directory, or the file in it.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A local directory is too big to be a copy of `cluster/apps`.
    #[error("{path} holds more than {limit}; is it a copy of cluster/apps?")]
    TooBig {
        /// The directory.
        path: String,
        /// The bound that was passed.
        limit: String,
    },
    /// A peer did not answer as expected.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl OperatorError {
    /// How the process ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            OperatorError::UnknownApp { .. }
            | OperatorError::UnknownBuild(_)
            | OperatorError::Directory { .. }
            | OperatorError::TooBig { .. } => Exit::Usage,
            OperatorError::Port(error) => Exit::from(error),
        }
    }
}
