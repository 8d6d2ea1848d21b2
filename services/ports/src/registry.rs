//! The image registry.

use async_trait::async_trait;
use fabrique_core::id::{Digest, ImageRepository};

use crate::PortResult;

/// Asking and tagging. Digests are checked against the content they name.
#[async_trait]
pub trait Registry: Send + Sync {
    /// Whether the registry has a manifest or index of that digest.
    async fn has(&self, image: &ImageRepository, digest: &Digest) -> PortResult<bool>;

    /// The digest a tag points to, or nothing when there is no such tag.
    async fn resolve(&self, image: &ImageRepository, tag: &str) -> PortResult<Option<Digest>>;

    /// Makes `tag` point to `digest`, which the registry must have.
    async fn tag(&self, image: &ImageRepository, digest: &Digest, tag: &str) -> PortResult<()>;

    /// Whether the registry at `host` answers its API root; for `doctor`.
    async fn ping(&self, host: &str) -> PortResult<()>;
}

/// What came of an upload that was begun only to see whether it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushTrial {
    /// The registry took it and has cancelled it: nothing is left.
    Cancelled,
    /// The registry took it, but it could not be cancelled, for this reason. Nothing was sent, and no registry shows
    /// an upload that was never finished.
    Left(String),
}

/// Asking a registry about itself: for `doctor`.
#[async_trait]
pub trait RegistryInspection: Registry {
    /// Begins the upload of a layer to `image`'s repository, which is what every push begins with, and cancels it. A
    /// registry that takes no push there refuses it with an error that no waiting helps against.
    async fn try_push(&self, image: &ImageRepository) -> PortResult<PushTrial>;
}
