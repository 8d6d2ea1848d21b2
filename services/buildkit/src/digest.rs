//! The digest of a finished build.

use std::collections::HashMap;

use fabrique_core::id::Digest;
use serde::Deserialize;

/// The root of what was pushed: the manifest of a one-platform image without attestations, an index otherwise.
const ROOT: &str = "containerimage.digest";

/// Reads the digest out of the exporter's answer. `containerimage.config.digest`, which looks the same, names
/// the image's configuration: nothing can be pulled by it.
pub(crate) fn pushed_digest(answer: &HashMap<String, String>) -> Result<Digest, String> {
    let text = answer.get(ROOT).ok_or_else(|| format!("answered no {ROOT}"))?;
    Digest::parse(text).map_err(|error| format!("answered a {ROOT} that is none: {error}"))
}

/// What a cache exporter answers: a descriptor, as JSON.
const CACHE: &str = "cache.manifest";

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
}

/// Reads the digest of the exported cache; nothing when none was exported.
pub(crate) fn exported_cache(answer: &HashMap<String, String>) -> Option<Digest> {
    let descriptor: Descriptor = serde_json::from_str(answer.get(CACHE)?).ok()?;
    Digest::parse(&descriptor.digest).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(pairs: &[(&str, String)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    }

    #[test]
    fn the_root_counts_and_never_the_configuration() {
        let (root, config) = (format!("sha256:{}", "a".repeat(64)), format!("sha256:{}", "b".repeat(64)));
        let both = answer(&[("containerimage.config.digest", config.clone()), (ROOT, root.clone())]);
        assert_eq!(pushed_digest(&both).unwrap().as_str(), root);
        let only = answer(&[("containerimage.config.digest", config.clone()), ("config.digest", config)]);
        assert!(pushed_digest(&only).is_err());
    }

    #[test]
    fn a_cache_that_was_not_exported_has_no_digest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let descriptor = format!(r#"{{"mediaType":"x","digest":"{digest}","size":7}}"#);
        assert_eq!(exported_cache(&answer(&[(CACHE, descriptor)])).unwrap().as_str(), digest);
        for none in ["", "{}", r#"{"digest":"latest"}"#] {
            assert_eq!(exported_cache(&answer(&[(CACHE, none.to_owned())])), None, "{none}");
        }
        assert_eq!(exported_cache(&answer(&[(ROOT, digest)])), None);
    }

    #[test]
    fn anything_that_is_no_digest_is_refused() {
        for forged in ["", "sha256:", "latest", "sha512:aa", "sha256:AA"] {
            assert!(pushed_digest(&answer(&[(ROOT, forged.to_owned())])).is_err(), "{forged}");
        }
    }
}
