//! The media types that an image's digest can stand for.

/// Manifests and indexes, of OCI and of Docker.
const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// The value of `Accept`: without it a registry may convert what it stores, and so change its digest.
pub(crate) fn accept() -> String {
    ACCEPTED.join(", ")
}

/// Whether this is the media type of a manifest or index. Parameters are no part of it.
pub(crate) fn is_image(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    ACCEPTED.iter().any(|accepted| accepted.eq_ignore_ascii_case(essence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_manifests_and_indexes_are_images() {
        assert!(is_image("application/vnd.oci.image.index.v1+json"));
        assert!(is_image("application/vnd.docker.distribution.manifest.v2+json; charset=utf-8"));
        for other in
            ["", "text/html", "application/json", "application/vnd.docker.distribution.manifest.v1+json"]
        {
            assert!(!is_image(other), "{other}");
        }
    }
}
