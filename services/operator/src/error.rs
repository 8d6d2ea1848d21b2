//! Why a use case has no answer.

use std::time::Duration;

use fabrique_core::id::AppName;
use fabrique_ports::PortError;

use crate::exit::Exit;
use crate::seed::Elsewhere;

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
    /// An app waits until its registration can be used.
    #[error(
        "{name} waits until its registration is right: {wrong}; `fabrique validate` tells all that is wrong"
    )]
    WrongRegistration {
        /// The app.
        name: AppName,
        /// What is wrong, with its place and what to do.
        wrong: String,
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
    /// A file that holds a secret cannot be read or made.
    #[error("{path}: {source}; name another file, or get the right to it")]
    SecretFile {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file that is to hold a secret holds none: what would be signed with it would be signed with nothing.
    #[error("{path}: the file is empty; write the secret into it, or remove it, and a new one is made")]
    EmptySecret {
        /// The file.
        path: String,
    },
    /// A local directory is too big to be a copy of `cluster/apps`.
    #[error("{path} holds more than {limit}; is it a copy of cluster/apps?")]
    TooBig {
        /// The directory.
        path: String,
        /// The bound that was passed.
        limit: String,
    },
    /// A local directory is something else than a copy of `cluster/apps`.
    #[error(
        "{path} is no copy of cluster/apps: neither apps/<app>/app.yaml nor a contract.yaml of fabrique is there; name one with --path"
    )]
    NotApps {
        /// The directory.
        path: String,
    },
    /// What is missing in a local directory may only be left out there.
    #[error(
        "{path} {why}, so that nobody can tell what is gone; remove in a whole checkout of cluster/apps, or the files in applications/ by hand; nothing was written"
    )]
    PartOfApps {
        /// The directory.
        path: String,
        /// What it is.
        why: String,
    },
    /// Everything would be removed, since nothing is registered in a local directory.
    #[error(
        "{path} registers no app, so that every Application would be removed; check out apps/ as well, or remove the files in applications/ by hand; nothing was written"
    )]
    NothingRegistered {
        /// The directory.
        path: String,
    },
    /// A cluster is asked, and it is not known which environment it is.
    #[error("which environment is this cluster? Name it with --environment: the contract has {known}")]
    WhichEnvironment {
        /// Those of the contract.
        known: String,
    },
    /// No derived secret of that name is in the contract.
    #[error("{name} is no derived secret of contract.yaml; {hint}")]
    UnknownSecret {
        /// The name as it was given, control characters escaped.
        name: String,
        /// Those that there are.
        hint: String,
    },
    /// What the cluster offers is not known.
    #[error("contract.yaml of cluster/apps cannot be read: {0}; `fabrique validate` tells all that is wrong")]
    NoContract(String),
    /// Apps are not seeded here.
    #[error(transparent)]
    Elsewhere(#[from] Elsewhere),
    /// It takes longer than it may.
    #[error("not over after {} s; what was begun goes on, and so does the same command", .0.as_secs())]
    Late(Duration),
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
            | OperatorError::UnknownSecret { .. }
            | OperatorError::Directory { .. }
            | OperatorError::SecretFile { .. }
            | OperatorError::EmptySecret { .. }
            | OperatorError::TooBig { .. }
            | OperatorError::NotApps { .. }
            | OperatorError::NothingRegistered { .. }
            | OperatorError::PartOfApps { .. }
            | OperatorError::Elsewhere(_)
            | OperatorError::WhichEnvironment { .. } => Exit::Usage,
            OperatorError::NoContract(_) | OperatorError::WrongRegistration { .. } => Exit::Findings,
            OperatorError::Late(_) => Exit::Unreachable,
            OperatorError::Port(error) => Exit::from(error),
        }
    }
}
