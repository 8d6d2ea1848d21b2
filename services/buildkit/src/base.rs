//! Base images that could not be resolved: missing, or unreachable.

use std::time::Duration;

use fabrique_core::failure::FailureKind;
use fabrique_core::id::{Digest, ImageRepository};
use fabrique_core::image::ImageReference;
use fabrique_ports::builder::BuildFailure;
use fabrique_ports::registry::Registry;

/// A base image's reference, as the daemon writes it in full: `registry:80/base/python:3.13@sha256:…`.
#[derive(Debug, PartialEq, Eq)]
struct Reference {
    image: ImageRepository,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    fn parse(text: &str) -> Option<Self> {
        let ImageReference { repository, tag, digest } = ImageReference::split(text);
        let digest = digest.map(Digest::parse).transpose().ok()?;
        Some(Self { image: ImageRepository::parse(repository).ok()?, tag: tag.map(str::to_owned), digest })
    }
}

/// Completes the failure of a base image that the daemon could not resolve. The daemon says the same for "no such
/// image" and "registry down", so the registry itself is asked, and waited for as long as `within`, whatever its own
/// adapter would wait.
pub(crate) async fn settle(
    reference: &str,
    mut failure: BuildFailure,
    registry: Option<&dyn Registry>,
    within: Duration,
) -> BuildFailure {
    match there(reference, registry, within).await {
        Some(true) => {
            failure.kind = FailureKind::Infrastructure;
        }
        Some(false) => {
            failure.kind = FailureKind::Source;
            failure.message = format!("base image {reference} does not exist");
        }
        None => {
            // Without an answer the text is all there is. It ends like this when a registry answered 404.
            let missing = failure.message.contains(": not found");
            failure.kind = if missing { FailureKind::Source } else { FailureKind::Infrastructure };
        }
    }
    failure
}

/// Whether the registry has the image, or nothing when it cannot be asked.
async fn there(reference: &str, registry: Option<&dyn Registry>, within: Duration) -> Option<bool> {
    let asking = ask(registry?, Reference::parse(reference)?);
    tokio::time::timeout(within, asking).await.ok().flatten()
}

async fn ask(registry: &dyn Registry, reference: Reference) -> Option<bool> {
    let answer = match (&reference.digest, &reference.tag) {
        (Some(digest), _) => registry.has(&reference.image, digest).await,
        (None, tag) => {
            let tag = tag.as_deref().unwrap_or("latest");
            registry.resolve(&reference.image, tag).await.map(|found| found.is_some())
        }
    };
    answer.inspect_err(|error| tracing::debug!(%error, "the registry does not answer either")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(text: &str) -> Option<(String, Option<String>, bool)> {
        Reference::parse(text).map(|r| (r.image.to_string(), r.tag, r.digest.is_some()))
    }

    #[test]
    fn a_port_is_no_tag() {
        let tag = |tag: &str| Some(tag.to_owned());
        assert_eq!(reference("registry:80/a/b"), Some(("registry:80/a/b".into(), None, false)));
        assert_eq!(reference("registry:80/a:1"), Some(("registry:80/a".into(), tag("1"), false)));
        let pinned = format!("registry:80/a:1@sha256:{}", "a".repeat(64));
        assert_eq!(reference(&pinned), Some(("registry:80/a".into(), tag("1"), true)));
        assert_eq!(reference("a:1"), None);
    }
}
