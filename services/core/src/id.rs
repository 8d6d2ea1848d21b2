//! The identifiers of the domain, each parsed once at the edge and correct from then on.
//!
//! Every type here is a validated string: it can be compared, ordered, hashed, printed and read back
//! through serde, and it cannot be made from text that breaks its rule. The rules are strict on purpose,
//! since these values end up in git arguments, URLs, NATS subjects and file paths.

mod rules;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use crate::channel::Channel;

/// A text that does not follow the rule of the identifier it was parsed as.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct InvalidId {
    text: String,
    expected: &'static str,
}

impl InvalidId {
    /// Refuses `text`, shortened and escaped so that hostile input cannot flood or forge a log line.
    #[must_use]
    pub fn new(text: &str, expected: &'static str) -> Self {
        const SHOWN: usize = 80;
        let mut shown: String = text.chars().take(SHOWN).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        Self { text: shown, expected }
    }
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $expected:literal, $valid:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Parses `text`.
            ///
            /// # Errors
            /// When `text` breaks the rule of this type.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                if $valid(text) { Ok(Self(text.to_owned())) } else { Err(InvalidId::new(text, $expected)) }
            }

            /// The identifier as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                if $valid(&text) { Ok(Self(text)) } else { Err(InvalidId::new(&text, $expected)) }
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

identifier!(
    /// A full git object id: 40 lowercase hexadecimal digits (SHA-1) or 64 (SHA-256), never all zeros,
    /// which is how git and Gitea spell "no commit".
    Revision,
    "a full git revision (40 or 64 lowercase hexadecimal digits, not all zeros)",
    rules::is_revision
);

identifier!(
    /// What a registry calls a manifest or index: `sha256:` and 64 lowercase hexadecimal digits.
    /// The only thing that is ever deployed.
    Digest,
    "an image digest (sha256: and 64 lowercase hexadecimal digits)",
    rules::is_digest
);

identifier!(
    /// The name of an app: a DNS label of at most 40 characters, so that it fits in Kubernetes names,
    /// NATS subjects, image tags and file paths without escaping.
    AppName,
    "an app name (a-z, 0-9 and -, at most 40 characters, starting with a letter, not ending with -)",
    rules::is_app_name
);

identifier!(
    /// The name of an environment of an app, under the rule of [`AppName`].
    EnvironmentName,
    "an environment name (a-z, 0-9 and -, at most 40 characters, starting with a letter, not ending with -)",
    rules::is_app_name
);

identifier!(
    /// One attempt at a build key: `<app>-<26 characters of lowercase ULID>`, sortable by time within an app.
    BuildId,
    "a build id (the app's name, -, and a lowercase ULID)",
    rules::is_build_id
);

identifier!(
    /// The hash of everything that decides an image (see [`crate::build::BuildInputs::key`]): 64 hexadecimal digits.
    BuildKey,
    "a build key (64 lowercase hexadecimal digits)",
    rules::is_hex64
);

identifier!(
    /// A branch name without `refs/heads/`, under the rules of `git check-ref-format`.
    BranchName,
    "a branch name that git accepts",
    rules::is_branch
);

identifier!(
    /// An image name to push to, without tag or digest: `registry:80/citation-dagster`. The host part is
    /// mandatory, so that nothing ever means Docker Hub by accident.
    ImageRepository,
    "an image repository (host[:port]/name, lowercase, without tag or digest)",
    rules::is_image_repository
);

identifier!(
    /// A path inside a repository: relative, `/`-separated, without `.`, `..`, empty segments,
    /// backslashes or control characters. `.` alone means the root.
    RelPath,
    "a path inside the repository (relative, no '..', no leading '/', no backslash or control character)",
    rules::is_rel_path
);

identifier!(
    /// The id of a build secret, as a Dockerfile names it in `--mount=type=secret,id=…`.
    SecretName,
    "a secret name (A-Z, a-z, 0-9, '.', '_' and '-', at most 128 characters, starting with a letter or digit)",
    rules::is_secret_name
);

identifier!(
    /// An OCI platform, `os/architecture` with an optional variant: `linux/amd64`, `linux/arm/v7`.
    Platform,
    "a platform (os/architecture[/variant], lowercase)",
    rules::is_platform
);

identifier!(
    /// The set of apps that may use one build daemon in turn: the source's Gitea organisation, unless
    /// the registration narrows it.
    TrustDomain,
    "a trust domain (A-Z, a-z, 0-9, '.', '_' and '-', at most 100 characters)",
    rules::is_gitea_name
);

identifier!(
    /// The name of a check on GitHub: a check run, or the context of a commit status, like `ci` or `build (linux)`.
    CheckName,
    "the name of a check (1 to 200 characters on one line, no blank at its ends)",
    rules::is_check_name
);

impl Revision {
    /// The first twelve digits: the readable tag, never an identity.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[..12]
    }
}

impl Digest {
    /// The first twelve hexadecimal digits after `sha256:`, for people.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0["sha256:".len()..][..12]
    }

    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(format!("sha256:{}", crate::hash::sha256_hex(bytes)))
    }
}

impl BuildId {
    /// Joins an app's name and a ULID.
    ///
    /// # Errors
    /// When `ulid` is not 26 characters of lowercase Crockford base 32.
    pub fn new(app: &AppName, ulid: &str) -> Result<Self, InvalidId> {
        Self::parse(&format!("{app}-{ulid}"))
    }

    /// The app this build belongs to.
    #[must_use]
    pub fn app(&self) -> AppName {
        AppName(self.0[..self.0.len() - 27].to_owned())
    }
}

impl BuildKey {
    /// The tag that keeps this key's image from garbage collection.
    #[must_use]
    pub fn keep_tag(&self) -> String {
        format!("key-{}", &self.0[..40])
    }

    /// The tag that keeps a further image of this key, while [`keep_tag`](Self::keep_tag) keeps one that is still needed.
    #[must_use]
    pub fn keep_tag_beside(&self, digest: &Digest) -> String {
        format!("{}-{}", self.keep_tag(), digest.short())
    }

    pub(crate) fn from_hash(hex: String) -> Self {
        Self(hex)
    }
}

impl BranchName {
    /// The full reference: `refs/heads/<branch>`.
    #[must_use]
    pub fn full_ref(&self) -> String {
        format!("refs/heads/{}", self.0)
    }
}

impl ImageRepository {
    /// The registry's `host[:port]`.
    #[must_use]
    pub fn registry(&self) -> &str {
        self.0.split_once('/').map_or("", |(host, _)| host)
    }

    /// The name inside the registry.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, name)| name)
    }

    /// The immutable reference `repository@digest`.
    #[must_use]
    pub fn at(&self, digest: &Digest) -> String {
        format!("{self}@{digest}")
    }
}

impl RelPath {
    /// The root of the repository.
    #[must_use]
    pub fn root() -> Self {
        Self(".".to_owned())
    }

    /// Whether this is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0 == "."
    }

    /// `self/child`.
    #[must_use]
    pub fn join(&self, child: &RelPath) -> RelPath {
        match (self.is_root(), child.is_root()) {
            (_, true) => self.clone(),
            (true, false) => child.clone(),
            (false, false) => RelPath(format!("{}/{}", self.0, child.0)),
        }
    }

    /// Whether `self` is `ancestor` or lies below it.
    #[must_use]
    pub fn is_within(&self, ancestor: &RelPath) -> bool {
        ancestor.is_root()
            || self.0 == ancestor.0
            || self.0.strip_prefix(&ancestor.0).is_some_and(|rest| rest.starts_with('/'))
    }
}

/// A repository on the forge: organisation (or user) and name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RepoName {
    org: String,
    name: String,
}

impl RepoName {
    /// Parses `organisation/name`.
    ///
    /// # Errors
    /// When it is not two names of Gitea's alphabet joined by one slash.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        match text.split_once('/') {
            Some((org, name)) if rules::is_gitea_name(org) && rules::is_gitea_name(name) => {
                Ok(Self { org: org.to_owned(), name: name.to_owned() })
            }
            _ => Err(InvalidId::new(text, "a repository (organisation/name)")),
        }
    }

    /// The organisation or user.
    #[must_use]
    pub fn org(&self) -> &str {
        &self.org
    }

    /// The repository's own name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether both name the same repository: Gitea compares names without case.
    #[must_use]
    pub fn same_as(&self, other: &RepoName) -> bool {
        self.org.eq_ignore_ascii_case(&other.org) && self.name.eq_ignore_ascii_case(&other.name)
    }
}

impl FromStr for RepoName {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Self::parse(text)
    }
}

impl TryFrom<String> for RepoName {
    type Error = InvalidId;
    fn try_from(text: String) -> Result<Self, InvalidId> {
        Self::parse(&text)
    }
}

impl From<RepoName> for String {
    fn from(repo: RepoName) -> String {
        repo.to_string()
    }
}

impl fmt::Display for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.org, self.name))
    }
}

impl fmt::Debug for RepoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RepoName({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_revision_is_forty_or_sixty_four_hex_digits_and_not_zero() {
        assert!(Revision::parse(&"a1".repeat(20)).is_ok());
        assert!(Revision::parse(&"a1".repeat(32)).is_ok());
        for bad in
            ["", "-", "--upload-pack=x", &"A1".repeat(20), &"0".repeat(40), &"0".repeat(64), &"a".repeat(41)]
        {
            assert!(Revision::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_image_repository_names_its_registry_and_carries_no_tag() {
        for good in ["registry:80/citation-dagster", "127.0.0.1:5000/a/b_c", "ghcr.io/x", "localhost/app"] {
            assert!(ImageRepository::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "app",
            "library/busybox",
            "registry/app",
            "registry:80/app:1",
            "registry:80/app@sha256:0",
            "Registry:80/a",
            "registry:0/a",
            "registry:80/",
            "registry:80/../a",
        ] {
            assert!(ImageRepository::parse(bad).is_err(), "{bad}");
        }
        let image = ImageRepository::parse("registry:80/a/b").unwrap();
        assert_eq!((image.registry(), image.name()), ("registry:80", "a/b"));
    }

    #[test]
    fn a_branch_follows_git_check_ref_format() {
        for good in ["main", "feature/x", "release-1.2", "é"] {
            assert!(BranchName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-x", "a..b", "a b", "a.lock", "x/.y", "a/", "a//b", "@", "a@{b", "a^", "a:b", "a\n"]
        {
            assert!(BranchName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_build_id_gives_its_app_back() {
        let app = AppName::parse("citation-eu").unwrap();
        let id = BuildId::new(&app, "01k0000000000000000000000a").unwrap();
        assert_eq!(id.app(), app);
        assert!(BuildId::parse("citation").is_err());
        assert!(BuildId::parse("citation-01K0000000000000000000000A").is_err());
    }

    #[test]
    fn a_path_within_another_respects_segments() {
        let path = |text| RelPath::parse(text).unwrap();
        assert!(path("a/b/c").is_within(&path("a/b")));
        assert!(!path("a/bc").is_within(&path("a/b")));
        assert!(path("x").is_within(&RelPath::root()));
        assert_eq!(path("a").join(&path("b/c")), path("a/b/c"));
    }

    #[test]
    fn a_refusal_quotes_and_shortens_hostile_text() {
        let message = Revision::parse(&format!("-\n{}", "x".repeat(500))).unwrap_err().to_string();
        assert!(message.len() < 250 && !message.contains('\n'), "{message}");
    }

    proptest! {
        #[test]
        fn no_accepted_path_escapes_the_repository(text in "[a./\\\\-]{0,12}") {
            if let Ok(path) = RelPath::parse(&text) {
                prop_assert!(!path.as_str().starts_with(['/', '-']));
                prop_assert!(path.as_str().split('/').all(|p| p != ".."));
            }
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,70}") {
            let _ = Revision::parse(&text);
            let _ = Digest::parse(&text);
            let _ = BuildId::parse(&text);
            let _ = BranchName::parse(&text);
            let _ = ImageRepository::parse(&text);
            let _ = RepoName::parse(&text);
            let _ = RelPath::parse(&text);
        }
    }
}
