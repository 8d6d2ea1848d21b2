//! Secrets that are copies of parts of others.

use async_trait::async_trait;

use crate::PortResult;

/// A secret by its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretPlace {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for SecretPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What is derived from what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Derivation {
    /// What is written: exactly `keys`.
    pub target: SecretPlace,
    /// Where their values are.
    pub source: SecretPlace,
    /// The keys.
    pub keys: Vec<String>,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The target is as it should be.
    None,
    /// It was made, or would be.
    Made,
    /// It was changed, or would be.
    Changed,
}

/// Why a target is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// There is no source.
    #[error("there is no secret {0}; make it, or correct `from` in contract.yaml")]
    NoSource(SecretPlace),
    /// The source lacks a key.
    #[error("{source_place} has no key {key}; add it, or correct `keys` in contract.yaml")]
    NoKey {
        /// The source.
        source_place: SecretPlace,
        /// The key.
        key: String,
    },
    /// The source has a key without a value.
    #[error("{source_place} has nothing under {key}; whoever writes it is not done, or failed")]
    Empty {
        /// The source.
        source_place: SecretPlace,
        /// The key.
        key: String,
    },
    /// The target has keys that somebody else wrote.
    #[error(
        "{target} has the key {key} too, which nobody derived; remove it, or the secret, which is then made anew"
    )]
    Foreign {
        /// The target.
        target: SecretPlace,
        /// The key.
        key: String,
    },
    /// The target may not be changed.
    #[error("{0} says immutable: true and has to change; delete it, and it is made anew")]
    Immutable(SecretPlace),
}

/// Writes derived secrets. No value ever leaves an implementation.
#[async_trait]
pub trait DerivedSecrets: Send + Sync {
    /// Brings the target in line with the source, or with `dry_run` tells what would be done. What is unfit is left as
    /// it is.
    async fn derive(&self, derivation: &Derivation, dry_run: bool) -> PortResult<Result<Change, Unfit>>;
}
