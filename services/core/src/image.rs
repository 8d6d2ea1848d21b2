//! Image references, told apart by what they name and not by how their text begins.

/// The parts of `repository[:tag][@digest]`, as written. Nothing is validated, and nothing is completed as a daemon
/// would: text that people wrote is compared, and what is deployed has types of its own
/// ([`ImageRepository`](crate::id::ImageRepository), [`Digest`](crate::id::Digest)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageReference<'t> {
    /// `registry:80/app`: the port belongs to it.
    pub repository: &'t str,
    /// The tag.
    pub tag: Option<&'t str>,
    /// The digest.
    pub digest: Option<&'t str>,
}

impl<'t> ImageReference<'t> {
    /// Splits a text. Any text has a repository.
    #[must_use]
    pub fn split(text: &'t str) -> Self {
        let (name, digest) = text.split_once('@').map_or((text, None), |(name, digest)| (name, Some(digest)));
        // A colon before the last slash is a port, not a tag.
        let last = name.rfind('/').map_or(0, |slash| slash + 1);
        let (repository, tag) = match name[last..].find(':') {
            Some(colon) => (&name[..last + colon], Some(&name[last + colon + 1..])),
            None => (name, None),
        };
        Self { repository, tag, digest }
    }

    /// The registry that the repository begins with; nothing where every container tool would add its own.
    #[must_use]
    pub fn registry(&self) -> Option<&'t str> {
        let (host, _) = self.repository.split_once('/')?;
        is_registry(host).then_some(host)
    }
}

/// Whether the first part of a name is a registry, and not a folder of the default one: the rule of
/// `distribution/reference`, which Docker, containerd and BuildKit share. `registry/app` is an image of the Docker Hub.
#[must_use]
pub fn is_registry(host: &str) -> bool {
    host.contains(['.', ':']) || host == "localhost"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invariant_11_a_port_is_no_tag_and_a_prefix_is_no_match() {
        let split = |text| {
            let r = ImageReference::split(text);
            (r.repository, r.tag, r.digest)
        };
        assert_eq!(split("registry:80/app"), ("registry:80/app", None, None));
        assert_eq!(split("registry:80/app2"), ("registry:80/app2", None, None));
        assert_eq!(split("registry:80/app:1.2"), ("registry:80/app", Some("1.2"), None));
        assert_eq!(split("registry:80/app:1@sha256:00"), ("registry:80/app", Some("1"), Some("sha256:00")));
        assert_eq!(split("registry/app@sha256:00"), ("registry/app", None, Some("sha256:00")));
        assert_eq!(split("app:1"), ("app", Some("1"), None));
        assert_eq!(split(""), ("", None, None));
    }

    #[test]
    fn a_registry_has_a_dot_or_a_port_or_is_this_machine() {
        let registry = |text| ImageReference::split(text).registry();
        assert_eq!(registry("registry:80/app:1"), Some("registry:80"));
        assert_eq!(registry("ghcr.io/org/app"), Some("ghcr.io"));
        assert_eq!(registry("localhost/app"), Some("localhost"));
        assert_eq!(registry("127.0.0.1:5000/a/b@sha256:00"), Some("127.0.0.1:5000"));
        for of_the_hub in ["registry/app", "library/busybox", "busybox", "busybox:1.36", "app:80"] {
            assert_eq!(registry(of_the_hub), None, "{of_the_hub}");
        }
    }

    proptest! {
        #[test]
        fn splitting_loses_nothing(text in "[a-c0-1./:@_-]{0,16}") {
            let ImageReference { repository, tag, digest } = ImageReference::split(&text);
            let tag = tag.map(|tag| format!(":{tag}")).unwrap_or_default();
            let digest = digest.map(|digest| format!("@{digest}")).unwrap_or_default();
            prop_assert_eq!(format!("{repository}{tag}{digest}"), text);
        }

        #[test]
        fn whatever_is_joined_is_split_again(
            host in "([a-z]{1,4}(\\.[a-z]{1,3}|:[0-9]{1,4})/)?",
            name in "[a-z]{1,4}(/[a-z]{1,4}){0,2}",
            tag in prop::option::of("[a-zA-Z0-9._-]{1,8}"),
            digest in prop::option::of("sha256:[0-9a-f]{4}"),
        ) {
            let repository = format!("{host}{name}");
            let with_tag = tag.iter().fold(repository.clone(), |text, tag| format!("{text}:{tag}"));
            let text = digest.iter().fold(with_tag, |text, digest| format!("{text}@{digest}"));
            let expected = ImageReference {
                repository: &repository,
                tag: tag.as_deref(),
                digest: digest.as_deref(),
            };
            let split = ImageReference::split(&text);
            prop_assert_eq!(split, expected);
            prop_assert_eq!(split.registry(), host.strip_suffix('/'));
        }

        #[test]
        fn no_text_makes_splitting_panic(text in "\\PC{0,40}") {
            let _ = ImageReference::split(&text).registry();
        }
    }
}
