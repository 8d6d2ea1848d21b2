//! Image references, compared by what they name and not by how their text begins.

/// The parts of `repository[:tag][@digest]`, as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference<'t> {
    /// `registry:80/app`: the port belongs to it.
    pub repository: &'t str,
    /// The tag.
    pub tag: Option<&'t str>,
    /// The digest, unchecked.
    pub digest: Option<&'t str>,
}

impl<'t> Reference<'t> {
    /// Splits a text. Any text has a repository; nothing is validated.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invariant_11_a_port_is_no_tag_and_a_prefix_is_no_match() {
        let split = |text| {
            let r = Reference::split(text);
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
}
