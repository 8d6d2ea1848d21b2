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
