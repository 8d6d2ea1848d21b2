//! Bindings: the places in an environment's files that must show what its composition says.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use fabrique_core::app::{App, Binding, BindingForm, Composition, Environment, InfraFrom};
use fabrique_core::id::{Channel, RelPath};

use crate::path::{Path, PathError, resolve};
use crate::reference::Reference;
use crate::refusal::{Refusal, escaped};
use crate::tree::Tree;
use crate::yaml::{Node, Replacement, Yaml, YamlError, replace_scalars};
use crate::{composition, layout};

/// A binding that does not show its channel's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// The file, from the root of `cluster/apps`.
    pub file: RelPath,
    /// The line, from 1.
    pub line: usize,
    /// The binding's path in the file.
    pub path: String,
    /// What stands there.
    pub found: String,
    /// What the composition asks for.
    pub expected: String,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drift { file, line, path, found, expected } = self;
        write!(f, "{file}:{line}: {path} shows {}, the composition says {expected}", escaped(found))
    }
}

/// What a binding has to show, or nothing while its channel has nothing deployed.
#[must_use]
pub fn value(binding: &Binding, composition: &Composition) -> Option<String> {
    match binding.channel {
        Channel::Image => {
            let image = composition.image.deployed.as_ref()?;
            let reference = image.repository.at(&image.digest);
            Some(match binding.form {
                BindingForm::Digest => image.digest.to_string(),
                BindingForm::Reference => reference,
                // Without the part before `=`, Argo CD takes `registry` for the name of every image
                // of a registry with a port, and one entry overwrites the other.
                BindingForm::KustomizeImage => format!("{}={reference}", image.repository),
                BindingForm::Revision => image.revision.to_string(),
            })
        }
        Channel::Infra => {
            let infra = composition.infra.deployed.as_ref()?;
            matches!(binding.form, BindingForm::Revision).then(|| infra.revision.to_string())
        }
    }
}

/// Whether `found` means what `expected` says. References are compared by repository and digest: a tag
/// beside a digest decides nothing.
#[must_use]
pub fn agrees(form: BindingForm, found: &str, expected: &str) -> bool {
    let same = |found: &str, expected: &str| {
        let (found, expected) = (Reference::split(found), Reference::split(expected));
        found.repository == expected.repository && found.digest == expected.digest
    };
    match form {
        BindingForm::Digest | BindingForm::Revision => found == expected,
        BindingForm::Reference => same(found, expected),
        BindingForm::KustomizeImage => match (found.split_once('='), expected.split_once('=')) {
            (Some((found_old, found)), Some((old, expected))) => found_old == old && same(found, expected),
            (None | Some(_), None | Some(_)) => false,
        },
    }
}

/// Every binding that does not show its composition's value. Read-only.
///
/// Empty while nothing is deployed, and while the overlay of an environment was not copied yet.
///
/// # Errors
/// When a file or a place is missing, ambiguous or unreadable: that is not a difference but a broken
/// binding.
pub fn drift(tree: &Tree, app: &App, environment: &Environment) -> Result<Vec<Drift>, Refusal> {
    let composition = composition::load(tree, app, &environment.name)?
        .unwrap_or_else(|| composition::empty(&app.name, &environment.name));
    if awaits_overlay(tree, app, environment, &composition) {
        return Ok(Vec::new());
    }
    between(tree, &layout::directory_of(&app.name, &environment.name), environment, &composition)
}

pub(crate) fn between(
    tree: &Tree,
    directory: &RelPath,
    environment: &Environment,
    composition: &Composition,
) -> Result<Vec<Drift>, Refusal> {
    let mut drifts = Vec::new();
    for (file, wanted) in wanted_by_file(&environment.bindings, composition) {
        let path = directory.join(file);
        let yaml = parse(&path, file_bytes(tree, &path, &wanted)?)?;
        for (binding, expected) in wanted {
            drifts.extend(compare(&path, &yaml, binding, &expected)?);
        }
    }
    Ok(drifts)
}

/// As [`between`], passing over what is missing or unreadable: files that are about to be replaced need
/// not fit bindings that were declared for the new ones.
pub(crate) fn readable_drift(
    tree: &Tree,
    directory: &RelPath,
    environment: &Environment,
    composition: &Composition,
) -> Vec<Drift> {
    let mut drifts = Vec::new();
    for (file, wanted) in wanted_by_file(&environment.bindings, composition) {
        let path = directory.join(file);
        let Ok(yaml) = file_bytes(tree, &path, &wanted).and_then(|bytes| parse(&path, bytes)) else {
            continue;
        };
        let compared =
            wanted.iter().filter_map(|(binding, expected)| compare(&path, &yaml, binding, expected).ok());
        drifts.extend(compared.flatten());
    }
    drifts
}

fn compare(file: &RelPath, yaml: &Yaml, binding: &Binding, expected: &str) -> Result<Option<Drift>, Refusal> {
    let node = place(file, yaml, binding)?;
    let found = node.text().unwrap_or("null");
    Ok((!agrees(binding.form, found, expected)).then(|| Drift {
        file: file.clone(),
        line: node.line,
        path: binding.path.clone(),
        found: found.to_owned(),
        expected: expected.to_owned(),
    }))
}

/// Whether the environment's files come from an overlay that was not copied yet, so that its bindings do
/// not exist: nothing was recorded, or nothing lies beside the composition.
pub(crate) fn awaits_overlay(
    tree: &Tree,
    app: &App,
    environment: &Environment,
    composition: &Composition,
) -> bool {
    match environment.infra {
        InfraFrom::Files => false,
        InfraFrom::Head(_) | InfraFrom::Pinned(_) | InfraFrom::Environment(_) => {
            let directory = layout::directory_of(&app.name, &environment.name);
            let own = layout::composition_of(&app.name, &environment.name);
            composition.infra.deployed.is_none() || !tree.below(&directory).any(|(path, _)| *path != own)
        }
    }
}

/// The files of `tree` that change when every binding that has a value shows it.
///
/// # Errors
/// When a place is missing, ambiguous or cannot be edited: then no file is returned at all.
pub(crate) fn fill<'b>(
    bindings: impl IntoIterator<Item = &'b Binding>,
    directory: &RelPath,
    composition: &Composition,
    tree: &Tree,
) -> Result<BTreeMap<RelPath, Bytes>, Refusal> {
    let mut files = BTreeMap::new();
    for (file, wanted) in wanted_by_file(bindings, composition) {
        let path = directory.join(file);
        let filled = fill_file(&path, file_bytes(tree, &path, &wanted)?, &wanted)?;
        files.insert(path, Bytes::from(filled));
    }
    Ok(files)
}

fn fill_file(path: &RelPath, bytes: &[u8], wanted: &[(&Binding, String)]) -> Result<Vec<u8>, Refusal> {
    let yaml = parse(path, bytes)?;
    let mut replacements: Vec<Replacement<'_>> = Vec::new();
    for (binding, text) in wanted {
        let node = place(path, &yaml, binding)?;
        // Two spellings of one place: harmless when they ask for the same.
        if replacements.iter().any(|r| std::ptr::eq(r.node, node) && r.text == text) {
            continue;
        }
        replacements.push(Replacement { node, text });
    }
    replace_scalars(&yaml, &replacements).map_err(|e| unsupported(path, e))
}

type Wanted<'b> = Vec<(&'b Binding, String)>;

fn wanted_by_file<'b>(
    bindings: impl IntoIterator<Item = &'b Binding>,
    composition: &Composition,
) -> BTreeMap<&'b RelPath, Wanted<'b>> {
    let mut by_file: BTreeMap<&RelPath, Wanted<'_>> = BTreeMap::new();
    for binding in bindings {
        if let Some(value) = value(binding, composition) {
            by_file.entry(&binding.file).or_default().push((binding, value));
        }
    }
    by_file
}

fn file_bytes<'t>(tree: &'t Tree, path: &RelPath, wanted: &Wanted<'_>) -> Result<&'t Bytes, Refusal> {
    tree.read(path)?.ok_or_else(|| Refusal::BindingNotFound {
        file: path.clone(),
        path: wanted.iter().map(|(binding, _)| binding.path.as_str()).collect::<Vec<_>>().join(", "),
        found: "the file does not exist".to_owned(),
    })
}

fn parse(path: &RelPath, bytes: &[u8]) -> Result<Yaml, Refusal> {
    Yaml::parse(bytes).map_err(|e| unsupported(path, e))
}

fn place<'y>(file: &RelPath, yaml: &'y Yaml, binding: &Binding) -> Result<&'y Node, Refusal> {
    let (file, path) = (file.clone(), binding.path.clone());
    let parsed: Path = match path.parse() {
        Ok(parsed) => parsed,
        Err(error) => {
            return Err(Refusal::BindingNotFound { file, path, found: format!("not a path: {error}") });
        }
    };
    resolve(yaml, &parsed).map_err(|error| match error {
        PathError::NotFound { found } => Refusal::BindingNotFound { file, path, found },
        PathError::Ambiguous { lines } => Refusal::BindingAmbiguous { file, path, lines },
        PathError::Unsupported { line, what } => {
            Refusal::UnsupportedYaml { file, line, what, remedy: "write the value out".to_owned() }
        }
    })
}

fn unsupported(path: &RelPath, error: YamlError) -> Refusal {
    Refusal::UnsupportedYaml {
        file: path.clone(),
        line: error.line,
        what: error.what,
        remedy: error.remedy.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::app::DeployedImage;
    use fabrique_core::id::{AppName, Digest, EnvironmentName, ImageRepository, Revision};

    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn shown(channel: Channel, form: BindingForm) -> Option<String> {
        let name = (AppName::parse("a").unwrap(), EnvironmentName::parse("prod").unwrap());
        let mut composition = composition::empty(&name.0, &name.1);
        composition.image.deployed = Some(DeployedImage {
            repository: ImageRepository::parse("registry:80/app").unwrap(),
            digest: Digest::parse(&format!("sha256:{HEX}")).unwrap(),
            revision: Revision::parse(&HEX[..40]).unwrap(),
            version: None,
            build: None,
        });
        let file = RelPath::parse("x.yaml").unwrap();
        value(&Binding { channel, file, path: "x".to_owned(), form }, &composition)
    }

    #[test]
    fn each_form_spells_the_value_its_reader_understands() {
        let image = |form| shown(Channel::Image, form).unwrap();
        assert_eq!(image(BindingForm::Digest), format!("sha256:{HEX}"));
        assert_eq!(image(BindingForm::Reference), format!("registry:80/app@sha256:{HEX}"));
        assert_eq!(
            image(BindingForm::KustomizeImage),
            format!("registry:80/app=registry:80/app@sha256:{HEX}")
        );
        assert_eq!(image(BindingForm::Revision), HEX[..40]);
        assert_eq!(shown(Channel::Infra, BindingForm::Revision), None, "nothing is deployed there");
    }

    #[test]
    fn invariant_11_references_agree_by_identity() {
        let digest = format!("sha256:{HEX}");
        let reference = format!("registry:80/app@{digest}");
        let agree = |found: &str| agrees(BindingForm::Reference, found, &reference);
        assert!(agree(&reference));
        assert!(agree(&format!("registry:80/app:1.2@{digest}")), "the digest decides");
        for other in [
            format!("registry:80/app2@{digest}"),
            format!("registry:80/ap@{digest}"),
            format!("registry/app@{digest}"),
            format!("registry:81/app@{digest}"),
            format!("app@{digest}"),
            "registry:80/app:1.2".to_owned(),
            "registry:80/app".to_owned(),
            digest.clone(),
            reference.to_uppercase(),
        ] {
            assert!(!agree(&other), "{other}");
        }
        let entry = format!("registry:80/app={reference}");
        let listed = |found: &str| agrees(BindingForm::KustomizeImage, found, &entry);
        assert!(listed(&entry));
        assert!(!listed(&reference), "without the old name, entries of one registry overwrite one another");
        assert!(!listed(&format!("registry:80/app2={reference}")));
    }
}
