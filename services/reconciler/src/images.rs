//! The images that must not be lost: which they are, and what the registry says of them.

use fabrique_core::app::App;
use fabrique_core::build::BuildInputs;
use fabrique_core::id::{BuildKey, Channel, Digest, EnvironmentName, ImageRepository, Revision};
use fabrique_core::memory::Memory;
use fabrique_gitops::composition;
use fabrique_observer::Apps;
use fabrique_ports::PortResult;
use fabrique_ports::records::Records;
use fabrique_ports::registry::Registry;

/// An image of one app that something refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) repository: ImageRepository,
    pub(crate) digest: Digest,
    pub(crate) revision: Revision,
    /// The key it was built under, where that is known.
    pub(crate) key: Option<BuildKey>,
    /// The environments whose composition shows it; none for one that is only recorded.
    pub(crate) shown_in: Vec<EnvironmentName>,
}

impl Image {
    /// Whether this is the image that the tag of `key` keeps, being on `kept`. Where its own key is not known it may be.
    fn is_kept_by(&self, key: &BuildKey, kept: &Digest) -> bool {
        self.digest == *kept && self.key.as_ref().is_none_or(|own| own == key)
    }
}

/// What was found about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Its tag was missing, or was on something else, and is there again.
    Restored { tag: String, digest: Digest },
    /// Deployed, and the registry does not have it.
    Lost { image: Image },
}

/// The images of `app` that its compositions show, then the last one recorded.
pub(crate) fn referred_to(app: &App, apps: &Apps, memory: &Memory) -> Vec<Image> {
    let mut images: Vec<Image> = Vec::new();
    for environment in &app.environments {
        let Ok(Some(composition)) = composition::load(&apps.tree, app, &environment.name) else { continue };
        let Some(deployed) = composition.image.deployed else { continue };
        let known = images
            .iter_mut()
            .find(|image| image.digest == deployed.digest && image.repository == deployed.repository);
        match known {
            Some(image) => image.shown_in.push(environment.name.clone()),
            None => images.push(Image {
                key: key_of(memory, &deployed.digest),
                repository: deployed.repository,
                digest: deployed.digest,
                revision: deployed.revision,
                shown_in: vec![environment.name.clone()],
            }),
        }
    }
    if let Some(built) = &memory.built
        && !images.iter().any(|image| image.digest == built.digest)
    {
        images.push(Image {
            repository: app.image.clone(),
            digest: built.digest.clone(),
            revision: built.revision.clone(),
            key: Some(built.key.clone()),
            shown_in: Vec::new(),
        });
    }
    images
}

fn key_of(memory: &Memory, digest: &Digest) -> Option<BuildKey> {
    let committed = memory.environments.values().filter_map(|environment| {
        let committed = environment.channel(Channel::Image).committed.as_ref()?;
        (committed.digest.as_ref() == Some(digest)).then(|| committed.key.clone()).flatten()
    });
    let built = memory.built.iter().filter(|built| built.digest == *digest).map(|built| built.key.clone());
    built.chain(committed).next()
}

/// Looks after the images of one app, with one request where all is as it should be: one of them is asked about, the
/// next one at the next `turn`, and the others as well once that one is not as it should be.
pub(crate) async fn look_after(
    app: &App,
    apps: &Apps,
    memory: &Memory,
    records: &dyn Records,
    registry: &dyn Registry,
    turn: usize,
) -> PortResult<Vec<Finding>> {
    let mut images = with_keys(app, apps, memory, records).await?;
    let first = turn.checked_rem(images.len()).unwrap_or_default();
    images.rotate_left(first);
    let mut findings = Vec::new();
    for (number, image) in images.iter().enumerate() {
        match check(image, &images, registry).await? {
            Some(finding) => findings.push(finding),
            None if number == 0 => break,
            None => {}
        }
    }
    Ok(findings)
}

/// The images, each with the key it was built under as far as that is known.
async fn with_keys(app: &App, apps: &Apps, memory: &Memory, records: &dyn Records) -> PortResult<Vec<Image>> {
    let mut images = referred_to(app, apps, memory);
    for image in &mut images {
        if image.key.is_none() {
            image.key = recorded_key(app, image, memory, records).await?;
        }
    }
    Ok(images)
}

/// Asks for an image, by its tag where it has one, and sets that again where it is missing. A tag that keeps another one of
/// `all` stays there: two images of one key have a tag each.
async fn check(image: &Image, all: &[Image], registry: &dyn Registry) -> PortResult<Option<Finding>> {
    let Image { repository, digest, .. } = image;
    let tag = match &image.key {
        None => None,
        Some(key) => match registry.resolve(repository, &key.keep_tag()).await? {
            Some(kept) if kept == *digest => return Ok(None),
            Some(kept) if all.iter().any(|other| other.is_kept_by(key, &kept)) => {
                let beside = key.keep_tag_beside(digest);
                if registry.resolve(repository, &beside).await?.as_ref() == Some(digest) {
                    return Ok(None);
                }
                Some(beside)
            }
            Some(_) | None => Some(key.keep_tag()),
        },
    };
    if !registry.has(repository, digest).await? {
        return Ok((!image.shown_in.is_empty()).then(|| Finding::Lost { image: image.clone() }));
    }
    let Some(tag) = tag else { return Ok(None) };
    registry.tag(repository, digest, &tag).await?;
    Ok(Some(Finding::Restored { tag, digest: digest.clone() }))
}

/// The key under the present registration, if the record of it names this very digest.
async fn recorded_key(
    app: &App,
    image: &Image,
    memory: &Memory,
    records: &dyn Records,
) -> PortResult<Option<BuildKey>> {
    let key = BuildInputs::of(app, &image.revision, memory.rebuild).key();
    let record = records.record(&key).await?;
    Ok(record.filter(|record| record.digest == image.digest && record.image == image.repository).map(|_| key))
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::{BuildId, RelPath};
    use fabrique_core::memory::{Built, Committed};
    use fabrique_gitops::{Entry, Rules, Tree};

    use super::*;

    const APP: &str = "apiVersion: fabrique/v1
kind: App
metadata: { name: a }
spec:
  source: { repo: o/a }
  image: registry:80/a
  environments:
    - { name: prod }
    - { name: test }
";

    fn revision() -> Revision {
        Revision::parse(&"1".repeat(40)).unwrap()
    }

    fn key(digits: &str) -> BuildKey {
        BuildKey::parse(&digits.repeat(32)).unwrap()
    }

    fn composition(environment: &str, digest: &Digest) -> (RelPath, Entry) {
        let text = format!(
            "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: a, environment: {environment} }}\n\
             image: {{ repository: registry:80/a, digest: \"{digest}\", revision: {} }}\n",
            revision()
        );
        let path = RelPath::parse(&format!("apps/a/{environment}/composition.yaml")).unwrap();
        (path, Entry::regular(text))
    }

    fn apps(files: Vec<(RelPath, Entry)>) -> Apps {
        let registration = (RelPath::parse("apps/a/app.yaml").unwrap(), Entry::regular(APP));
        let tree: Tree = files.into_iter().chain([registration]).collect();
        let apps = Apps::parse(revision(), tree, &Rules { registries: vec!["registry:80".to_owned()] });
        assert_eq!(apps.registrations.findings, []);
        apps
    }

    fn images(apps: &Apps, memory: &Memory) -> Vec<Image> {
        referred_to(apps.registrations.apps.values().next().unwrap(), apps, memory)
    }

    #[test]
    fn one_digest_in_two_environments_is_one_image() {
        let digest = Digest::of(b"1");
        let images = images(
            &apps(vec![composition("prod", &digest), composition("test", &digest)]),
            &Memory::default(),
        );
        assert_eq!(images.len(), 1);
        assert_eq!(images[0].shown_in.len(), 2);
        assert_eq!(images[0].key, None);
    }

    #[test]
    fn deployed_images_come_before_the_last_one_built() {
        let (deployed, built) = (Digest::of(b"1"), Digest::of(b"2"));
        let mut memory = Memory {
            built: Some(Built {
                build: BuildId::parse("a-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap(),
                key: key("cd"),
                revision: revision(),
                digest: built.clone(),
            }),
            ..Memory::default()
        };
        let prod = EnvironmentName::parse("prod").unwrap();
        memory.channel_mut(&prod, Channel::Image).committed = Some(Committed {
            commit: None,
            revision: revision(),
            digest: Some(deployed.clone()),
            key: Some(key("ab")),
        });
        let images = images(&apps(vec![composition("prod", &deployed)]), &memory);
        let found: Vec<_> = images.iter().map(|image| (&image.digest, image.key.clone())).collect();
        assert_eq!(found, [(&deployed, Some(key("ab"))), (&built, Some(key("cd")))]);
        assert!(images[1].shown_in.is_empty());
    }
}
