//! What makes two builds the same build.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use crate::app::App;
use crate::id::{BuildKey, Platform, RelPath, RepoName, Revision, SecretName};

/// Everything that decides an image. Two equal inputs are one build, whoever asks and however often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildInputs {
    /// The source repository.
    pub repo: RepoName,
    /// The source revision.
    pub revision: Revision,
    /// The context directory.
    pub context: RelPath,
    /// The Dockerfile, relative to the context.
    pub dockerfile: RelPath,
    /// The stage, or the last one.
    pub target: Option<String>,
    /// Build arguments.
    pub args: BTreeMap<String, String>,
    /// Names of mountable secrets.
    pub secrets: Vec<SecretName>,
    /// Platforms.
    pub platforms: Vec<Platform>,
    /// How often a person asked for this app to be built anew.
    pub rebuild: u32,
}

impl BuildInputs {
    /// The inputs of `app` at `revision`.
    #[must_use]
    pub fn of(app: &App, revision: &Revision, rebuild: u32) -> Self {
        let build = &app.build;
        Self {
            repo: app.source.repo.clone(),
            revision: revision.clone(),
            context: build.context.clone(),
            dockerfile: build.dockerfile.clone(),
            target: build.target.clone(),
            args: build.args.clone(),
            secrets: build.secrets.clone(),
            platforms: build.platforms.clone(),
            rebuild,
        }
    }

    /// The build key: a SHA-256 over every field, each with its length so that no two inputs share an
    /// encoding. The image's name is not part of it, since it does not change the image; the order of
    /// secrets and platforms is not either.
    #[must_use]
    pub fn key(&self) -> BuildKey {
        let mut hash = FieldHash::new("fabrique build key v1");
        hash.field(&self.repo.to_string().to_ascii_lowercase());
        hash.field(self.revision.as_str());
        hash.field(self.context.as_str());
        hash.field(self.dockerfile.as_str());
        hash.field(self.target.as_deref().unwrap_or_default());
        hash.count(self.args.len());
        for (name, value) in &self.args {
            hash.field(name);
            hash.field(value);
        }
        hash.sorted(self.secrets.iter().map(SecretName::as_str).collect());
        hash.sorted(self.platforms.iter().map(Platform::as_str).collect());
        hash.field(&self.rebuild.to_string());
        BuildKey::from_hash(hex::encode(hash.0.finalize()))
    }
}

struct FieldHash(Sha256);

impl FieldHash {
    fn new(domain: &str) -> Self {
        let mut hash = Self(Sha256::new());
        hash.field(domain);
        hash
    }

    fn count(&mut self, n: usize) {
        self.0.update((n as u64).to_be_bytes());
    }

    fn field(&mut self, text: &str) {
        self.count(text.len());
        self.0.update(text.as_bytes());
    }

    fn sorted(&mut self, mut texts: Vec<&str>) {
        texts.sort_unstable();
        texts.dedup();
        self.count(texts.len());
        for text in texts {
            self.field(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn inputs() -> BuildInputs {
        BuildInputs {
            repo: RepoName::parse("atlas/atlas").unwrap(),
            revision: Revision::parse(&"1b".repeat(20)).unwrap(),
            context: RelPath::parse("dataops/citation").unwrap(),
            dockerfile: RelPath::parse("Dockerfile").unwrap(),
            target: None,
            args: BTreeMap::new(),
            secrets: vec![],
            platforms: vec![Platform::parse("linux/amd64").unwrap()],
            rebuild: 0,
        }
    }

    #[test]
    fn every_field_changes_the_key() {
        let base = inputs();
        let mut variants = vec![base.clone(); 9];
        variants[1].repo = RepoName::parse("atlas/other").unwrap();
        variants[2].revision = Revision::parse(&"2b".repeat(20)).unwrap();
        variants[3].context = RelPath::root();
        variants[4].dockerfile = RelPath::parse("Containerfile").unwrap();
        variants[5].target = Some("prod".into());
        variants[6].args.insert("A".into(), "B".into());
        variants[7].secrets.push(SecretName::parse("pypi").unwrap());
        variants[8].rebuild = 1;
        let mut keys: Vec<_> = variants.iter().map(BuildInputs::key).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), variants.len());
    }

    #[test]
    fn the_order_of_platforms_and_secrets_does_not_matter() {
        let (mut a, mut b) = (inputs(), inputs());
        a.platforms = ["linux/amd64", "linux/arm64"].map(|p| Platform::parse(p).unwrap()).to_vec();
        b.platforms = ["linux/arm64", "linux/amd64"].map(|p| Platform::parse(p).unwrap()).to_vec();
        assert_eq!(a.key(), b.key());
    }

    proptest! {
        #[test]
        fn args_cannot_be_shifted_into_one_another(a in "[a-c=]{0,4}", b in "[a-c=]{0,4}", c in "[a-c=]{0,4}", d in "[a-c=]{0,4}") {
            let (mut x, mut y) = (inputs(), inputs());
            x.args.insert(a.clone(), b.clone());
            y.args.insert(c.clone(), d.clone());
            prop_assert_eq!(x.key() == y.key(), (a, b) == (c, d));
        }
    }
}
