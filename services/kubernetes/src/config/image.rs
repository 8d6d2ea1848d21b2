//! Images by digest.

use std::fmt;

use fabrique_core::id::{Digest, ImageRepository, InvalidId};
use serde::{Deserialize, Serialize};

/// An image pinned by its digest: `registry:80/buildkit@sha256:…`. A tag could be moved under a running pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PinnedImage {
    repository: ImageRepository,
    digest: Digest,
}

impl PinnedImage {
    /// An image by its parts.
    #[must_use]
    pub fn new(repository: ImageRepository, digest: Digest) -> Self {
        Self { repository, digest }
    }
}

impl fmt::Display for PinnedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repository, self.digest)
    }
}

impl TryFrom<String> for PinnedImage {
    type Error = InvalidId;
    fn try_from(text: String) -> Result<Self, InvalidId> {
        let (repository, digest) =
            text.split_once('@').ok_or_else(|| InvalidId::new(&text, "an image by digest (…@sha256:…)"))?;
        Ok(Self { repository: ImageRepository::parse(repository)?, digest: Digest::parse(digest)? })
    }
}

impl From<PinnedImage> for String {
    fn from(image: PinnedImage) -> Self {
        image.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_without_a_digest_is_refused() {
        let digest = Digest::of(b"");
        let pinned = format!("registry:80/buildkit@{digest}");
        assert_eq!(PinnedImage::try_from(pinned.clone()).map(String::from), Ok(pinned));
        for loose in ["registry:80/buildkit", "registry:80/buildkit:v1", "registry:80/buildkit@latest"] {
            assert!(PinnedImage::try_from(loose.to_owned()).is_err(), "{loose}");
        }
    }
}
