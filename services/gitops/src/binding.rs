//! Bindings: the places in an environment's files that must show what its composition says.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use fabrique_core::app::{App, Binding, BindingForm, Composition, Environment, InfraFrom};
use fabrique_core::id::{Channel, RelPath};
use fabrique_core::image::ImageReference;
use fabrique_yaml::path::{Path, PathError, resolve};
use fabrique_yaml::{Finding, Node, Replacement, Yaml, YamlError, escaped, replace_scalars};

use crate::refusal::Refusal;
use crate::tree::Tree;
use crate::{composition, layout, placeholder};

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
                BindingForm::Version => image.version.clone()?,
            })
        }
        Channel::Infra => {
            let infra = &composition.infra;
            match binding.form {
                BindingForm::Revision => {
                    infra.deployed.as_ref().map(|deployed| deployed.revision.to_string())
                }
                BindingForm::Version => infra.chart.as_ref().map(|chart| chart.version.clone()),
                BindingForm::Digest | BindingForm::Reference | BindingForm::KustomizeImage => None,
            }
        }
    }
}

/// Whether `found` means what `expected` says. References are compared by repository and digest: a tag
/// beside a digest decides nothing.
#[must_use]
pub fn agrees(form: BindingForm, found: &str, expected: &str) -> bool {
    let same = |found: &str, expected: &str| {
        let (found, expected) = (ImageReference::split(found), ImageReference::split(expected));
        found.repository == expected.repository && found.digest == expected.digest
    };
    match form {
        BindingForm::Digest | BindingForm::Revision | BindingForm::Version => found == expected,
        BindingForm::Reference => same(found, expected),
        BindingForm::KustomizeImage => match (found.split_once('='), expected.split_once('=')) {
            (Some((found_old, found)), Some((old, expected))) => found_old == old && same(found, expected),
            (None | Some(_), None | Some(_)) => false,
        },
    }
}

/// Every binding of an environment: those of its registration, and those that placeholders of its overlay became.
///
/// # Errors
/// When the places of the placeholders cannot be read, or are not there although nothing else shows the image.
pub fn all(tree: &Tree, app: &App, environment: &Environment) -> Result<Vec<Binding>, Refusal> {
    let bindings = known(tree, app, environment)?;
    if environment.infra.overlay().is_some() && !bindings.iter().any(placeholder::shows_image) {
        let path = layout::placeholders_of(&app.name, &environment.name);
        let what = "is missing, and no binding of app.yaml shows the image";
        return Err(Finding::of_file(path.as_str(), what, "restore it from git, or add bindings").into());
    }
    Ok(bindings)
}

/// As [`all`], whether or not any of them shows the image.
pub(crate) fn known(tree: &Tree, app: &App, environment: &Environment) -> Result<Vec<Binding>, Refusal> {
    let mut bindings = environment.bindings.clone();
    let kept = placeholder::load(tree, &app.name, &environment.name)?;
    let is_new = |binding: &Binding| {
        !environment.bindings.iter().any(|own| own.file == binding.file && own.path == binding.path)
    };
    bindings.extend(kept.into_iter().filter(is_new));
    Ok(bindings)
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
    let directory = layout::directory_of(&app.name, &environment.name);
    between(tree, &directory, &all(tree, app, environment)?, &composition)
}

pub(crate) fn between(
    tree: &Tree,
    directory: &RelPath,
    bindings: &[Binding],
    composition: &Composition,
) -> Result<Vec<Drift>, Refusal> {
    let mut drifts = Vec::new();
    for (file, wanted) in wanted_by_file(bindings, composition) {
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
    bindings: &[Binding],
    composition: &Composition,
) -> Vec<Drift> {
    let mut drifts = Vec::new();
    for (file, wanted) in wanted_by_file(bindings, composition) {
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
mod tests;
