//! `apps/<app>/<environment>/placeholders.yaml`: where the placeholders of a copied overlay stood.
//!
//! A placeholder is found once: filled, it looks like any other value. So the copy keeps the way to each as a binding,
//! in the words of `app.yaml`, beside the files that it is about. Like them it is written by every copy and by nobody
//! else, and all that is done at a commit is decided on the files of that commit.

use std::collections::BTreeMap;

use fabrique_core::app::{App, Binding, BindingForm, Environment};
use fabrique_core::id::{AppName, Channel, EnvironmentName, RelPath};
use fabrique_declarations::contract::{self, Contract, Form, Placeholder};
use fabrique_declarations::overlay::{File, KUSTOMIZATIONS, Placed, Survey, survey};
use fabrique_yaml::path::resolve;
use fabrique_yaml::{Finding, Node, Reader, Yaml, flow_text};

use crate::composition::first;
use crate::layout;
use crate::overlay::{OUTSIDE, origin};
use crate::refusal::Refusal;
use crate::registration::read_bindings;
use crate::tree::Tree;

/// How the file is called.
pub const FILE_NAME: &str = "placeholders.yaml";

/// The places that were kept; none where the overlay had no placeholders.
///
/// # Errors
/// [`Refusal::BadFile`] with the first thing that is wrong in the file.
pub fn load(tree: &Tree, app: &AppName, environment: &EnvironmentName) -> Result<Vec<Binding>, Refusal> {
    let path = layout::placeholders_of(app, environment);
    let Some(bytes) = tree.read(&path)? else { return Ok(Vec::new()) };
    let reader = Reader::new(path.as_str());
    let parsed = reader.parse(bytes);
    let read = parsed.and_then(|yaml| read(&reader, yaml.documents().first()?, app, environment));
    match read {
        Some(bindings) if !reader.has_findings() => Ok(bindings),
        Some(_) | None => Err(first(reader.into_findings())),
    }
}

fn read(
    reader: &Reader<'_>,
    document: &Node,
    app: &AppName,
    environment: &EnvironmentName,
) -> Option<Vec<Binding>> {
    let root = reader.mapping(document, "the places", &["apiVersion", "kind", "metadata", "bindings"])?;
    root.constant("apiVersion", "fabrique/v1");
    root.constant("kind", "Placeholders");
    let metadata = root
        .required("metadata")
        .and_then(|node| reader.mapping(node, "metadata", &["app", "environment"]))?;
    metadata.constant("app", app.as_str());
    metadata.constant("environment", environment.as_str());
    read_bindings(reader, root.required("bindings")?)
}

/// The file, byte for byte the same for the same places.
#[must_use]
pub(crate) fn render(app: &AppName, environment: &EnvironmentName, bindings: &[Binding]) -> String {
    let (app, environment) = (flow_text(app.as_str()), flow_text(environment.as_str()));
    let mut text = format!(
        "# Where the overlay's placeholders stood. Written with each copy of the overlay; composition.yaml fills them.\n\
         apiVersion: fabrique/v1\nkind: Placeholders\nmetadata: {{ app: {app}, environment: {environment} }}\nbindings:\n"
    );
    for binding in bindings {
        let (file, path) = (flow_text(binding.file.as_str()), flow_text(&binding.path));
        let (channel, form) = (binding.channel, word(binding.form));
        text.push_str(&format!("  - {{ channel: {channel}, file: {file}, path: {path}, form: {form} }}\n"));
    }
    text
}

fn word(form: BindingForm) -> &'static str {
    match form {
        BindingForm::Digest => "digest",
        BindingForm::Reference => "reference",
        BindingForm::KustomizeImage => "kustomize-image",
        BindingForm::Revision => "revision",
        BindingForm::Version => "version",
    }
}

/// The places of the placeholders in a copy, all of them or a refusal.
///
/// `copy` has the files by their path in the environment's directory, `overlay` is the directory that they come from:
/// what is wrong is told where its author can correct it. A place that a binding of the registration names was filled
/// through it and is no placeholder any more.
///
/// An overlay without placeholders is filled by the registration's bindings alone, where it has any that show the
/// image; with one, it has to have each of the contract's, unless a binding of the same form stands in for it.
///
/// # Errors
/// [`Refusal::BadFile`] when one is missing, doubled, at the wrong place or where it cannot be filled, when a digest is
/// beside the name of another image, and when the contract, which names them, cannot be read.
pub(crate) fn find(
    tree: &Tree,
    app: &App,
    environment: &Environment,
    overlay: &RelPath,
    copy: &BTreeMap<RelPath, &[u8]>,
) -> Result<Vec<Binding>, Refusal> {
    let placeholders = of_contract(tree)?;
    let files: Vec<(&RelPath, String, &[u8])> =
        copy.iter().map(|(path, bytes)| (path, origin(overlay, path).to_string(), *bytes)).collect();
    let looked: Vec<File<'_>> =
        files.iter().map(|(path, name, bytes)| File { path: name, bytes, own: !is_outside(path) }).collect();
    let top =
        KUSTOMIZATIONS.iter().find_map(|name| RelPath::parse(name).ok().filter(|n| copy.contains_key(n)));
    let top = top.map_or_else(|| overlay.to_string(), |name| overlay.join(&name).to_string());
    let Survey { placed, missing, misplaced } = survey(&app.name, &placeholders, &top, &looked);

    let shown: Vec<BindingForm> =
        environment.bindings.iter().filter(|b| shows_image(b)).map(|binding| binding.form).collect();
    let expected = !placed.is_empty() || shown.is_empty();
    let missing = missing.into_iter().filter(|(form, _)| expected && !shown.contains(&form_of(*form)));
    let mut wrong = misplaced.into_iter().chain(missing.map(|(_, finding)| finding));
    if let Some(finding) = wrong.next() {
        return Err(refused(finding));
    }
    for place in &placed {
        let (_, name, bytes) = &files[place.file];
        if let Some(finding) = of_another_image(app, name, bytes, place) {
            return Err(finding.into());
        }
    }
    let binding = |place: &Placed| Binding {
        channel: Channel::Image,
        file: files[place.file].0.clone(),
        path: place.path.to_string(),
        form: form_of(place.form),
    };
    Ok(placed.iter().map(binding).collect())
}

/// A digest beside the name of an image that is not the app's: kustomize would put one image's digest on another.
fn of_another_image(app: &App, file: &str, bytes: &[u8], place: &Placed) -> Option<Finding> {
    let path = place.path.to_string();
    let entry = path.strip_suffix(".digest").filter(|_| place.form == Form::Digest)?;
    let yaml = Yaml::parse(bytes).ok()?;
    let beside = |key: &str| resolve(&yaml, &format!("{entry}.{key}").parse().ok()?).ok();
    let name = beside("newName").or_else(|| beside("name"))?;
    let text = name.text().filter(|text| *text != app.image.as_str())?;
    Some(Finding {
        file: file.to_owned(),
        line: name.line,
        column: name.column,
        what: format!("the digest beside it is filled with that of {}, and the name is {text:?}", app.image),
        remedy: format!("write name: {}", app.image),
    })
}

/// Whether a binding shows which image is deployed.
pub(crate) fn shows_image(binding: &Binding) -> bool {
    let is_of_image = match binding.form {
        BindingForm::Digest | BindingForm::Reference | BindingForm::KustomizeImage => true,
        BindingForm::Revision | BindingForm::Version => false,
    };
    binding.channel == Channel::Image && is_of_image
}

fn form_of(form: Form) -> BindingForm {
    match form {
        Form::Digest => BindingForm::Digest,
        Form::Reference => BindingForm::Reference,
    }
}

/// What the contract says of placeholders.
pub(crate) fn of_contract(tree: &Tree) -> Result<Vec<Placeholder>, Refusal> {
    let Ok(path) = RelPath::parse(contract::FILE_NAME) else { return Ok(Placeholder::both()) };
    let Some(bytes) = tree.read(&path)? else { return Ok(Placeholder::both()) };
    match Contract::parse(contract::FILE_NAME, bytes) {
        Ok(contract) => Ok(contract.placeholders),
        Err(findings) => Err(findings.into_iter().next().map_or_else(|| first(Vec::new()), refused)),
    }
}

fn refused(finding: fabrique_declarations::Finding) -> Refusal {
    let fabrique_declarations::Finding { file, line, column, what, remedy, .. } = finding;
    Refusal::from(Finding { file, line, column, what, remedy })
}

fn is_outside(path: &RelPath) -> bool {
    path.as_str().strip_prefix(OUTSIDE).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests;
