//! What Argo CD puts into an overlay that it reads from the app's repository: every binding, said in the words of
//! `spec.source.kustomize`.

use std::fmt::Write as _;

use fabrique_core::app::{App, Binding, BindingForm, Composition, Environment};
use fabrique_core::id::RelPath;
use fabrique_yaml::path::{Path, resolve};
use fabrique_yaml::{Finding, Node, Yaml, flow_text};

use crate::overlay::is_kustomization;
use crate::refusal::Refusal;
use crate::tree::Tree;
use crate::{binding, layout};

/// What is put in.
#[derive(Default)]
pub(super) struct PutIn {
    /// `name=name@digest`: without the part before `=`, Argo CD takes `registry` for the name of every image of a
    /// registry with a port.
    pub(super) images: Vec<String>,
    /// Strategic merges.
    pub(super) patches: Vec<Patch>,
}

/// A strategic merge of one value into one object.
pub(super) struct Patch {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) text: String,
}

/// What stands on the way from a document to a value.
enum Hop<'n> {
    Key(&'n str),
    /// An item of a list, by its `name`.
    Named(&'n str),
}

/// Every binding of the environment, from the places that it has in the copy of the overlay.
pub(super) fn put_in(
    tree: &Tree,
    app: &App,
    environment: &Environment,
    composition: &Composition,
) -> Result<PutIn, Refusal> {
    let directory = layout::directory_of(&app.name, &environment.name);
    let mut put_in = PutIn::default();
    let bindings = binding::all(tree, app, environment)?;
    for binding in &bindings {
        let Some(value) = binding::value(binding, composition) else { continue };
        let file = directory.join(&binding.file);
        let place = Place::find(tree, &file, binding)?;
        if is_kustomization(&binding.file) {
            put_in.images.push(place.image(binding, composition)?);
        } else {
            put_in.patches.push(place.patch(&value)?);
        }
    }
    if let Some(image) = composition.image.deployed.as_ref().filter(|_| put_in.images.is_empty()) {
        put_in.images.push(format!("{}={}", image.repository, image.repository.at(&image.digest)));
    }
    put_in.images.sort();
    put_in.images.dedup();
    Ok(put_in)
}

/// Where a binding's value stands.
struct Place<'t> {
    file: &'t RelPath,
    yaml: Yaml,
    path: Path,
    text: &'t str,
}

impl<'t> Place<'t> {
    fn find(tree: &Tree, file: &'t RelPath, binding: &'t Binding) -> Result<Self, Refusal> {
        let not_there = |found: String| Refusal::BindingNotFound {
            file: file.clone(),
            path: binding.path.clone(),
            found,
        };
        let bytes = tree.read(file)?.ok_or_else(|| not_there("there is no such file".to_owned()))?;
        let yaml = Yaml::parse(bytes).map_err(|error| not_there(error.to_string()))?;
        let path = binding.path.parse().map_err(|error| not_there(format!("{error}")))?;
        Ok(Self { file, yaml, path, text: &binding.path })
    }

    /// The document, and the way from it to the value.
    fn way(&self) -> Result<(&Node, Vec<Hop<'_>>), Refusal> {
        let broken = |found: String| Refusal::BindingNotFound {
            file: self.file.clone(),
            path: self.text.to_owned(),
            found,
        };
        let node = resolve(&self.yaml, &self.path).map_err(|error| broken(format!("{error:?}")))?;
        let documents = self.yaml.documents().iter();
        let mut ways = documents.filter_map(|document| way_to(document, node).map(|way| (document, way)));
        let (document, way) = ways.next().ok_or_else(|| broken("no way leads there".to_owned()))?;
        let hops: Option<Vec<Hop<'_>>> = way.into_iter().rev().collect();
        let hops = hops.ok_or_else(|| self.inexpressible(node, "an item of a list has no name"))?;
        Ok((document, hops))
    }

    fn image(&self, binding: &Binding, composition: &Composition) -> Result<String, Refusal> {
        let (document, hops) = self.way()?;
        if binding.file.as_str().contains('/') {
            // Argo CD edits the overlay's own one, and what others rename they rename before that.
            return Err(self.inexpressible(document, "only the overlay's own kustomization can be put into"));
        }
        let (Some(image), BindingForm::Digest) = (&composition.image.deployed, binding.form) else {
            return Err(
                self.inexpressible(document, "only the digest of an image can be put into a kustomization")
            );
        };
        match hops.as_slice() {
            [Hop::Key("images"), Hop::Named(name), Hop::Key("digest")] => {
                Ok(format!("{name}={}", image.repository.at(&image.digest)))
            }
            _ => Err(self.inexpressible(document, "only images[…].digest can be put into a kustomization")),
        }
    }

    fn patch(&self, value: &str) -> Result<Patch, Refusal> {
        let (document, hops) = self.way()?;
        let word = |key: &str| entry(document, key).and_then(Node::text);
        let metadata = entry(document, "metadata");
        let in_metadata = |key: &str| metadata.and_then(|all| entry(all, key)).and_then(Node::text);
        let (Some(version), Some(kind), Some(name)) = (word("apiVersion"), word("kind"), in_metadata("name"))
        else {
            return Err(self.inexpressible(document, "the object has no apiVersion, kind or name"));
        };
        if matches!(hops.first(), Some(Hop::Key("metadata" | "kind" | "apiVersion")) | None) {
            return Err(self.inexpressible(document, "what names the object cannot be put in"));
        }
        let mut text = format!(
            "apiVersion: {}\nkind: {}\nmetadata:\n  name: {}\n",
            flow_text(version),
            flow_text(kind),
            flow_text(name)
        );
        if let Some(namespace) = in_metadata("namespace") {
            // Writing to a String does not fail.
            let _ = writeln!(text, "  namespace: {}", flow_text(namespace));
        }
        write_way(&mut text, &hops, value);
        Ok(Patch { kind: kind.to_owned(), name: name.to_owned(), text })
    }

    fn inexpressible(&self, node: &Node, why: &str) -> Refusal {
        Refusal::from(Finding {
            file: self.file.as_str().to_owned(),
            line: node.line,
            column: node.column,
            what: format!("{}: {why}, while Argo CD reads the app's repository", self.text),
            remedy: "have it read the copy: application.source: copy in app.yaml".to_owned(),
        })
    }
}

fn write_way(text: &mut String, hops: &[Hop<'_>], value: &str) {
    // A named item is a line of its own, and what follows stands below its name.
    for (depth, hop) in hops.iter().enumerate() {
        let indent = "  ".repeat(depth);
        let _ = match hop {
            Hop::Key(key) if depth + 1 == hops.len() => {
                writeln!(text, "{indent}{}: {}", flow_text(key), flow_text(value))
            }
            Hop::Key(key) => writeln!(text, "{indent}{}:", flow_text(key)),
            Hop::Named(name) => writeln!(text, "{indent}- name: {}", flow_text(name)),
        };
    }
}

/// The hops from `target` up to `here`, last first; nothing for an item that has no name. `None` when it is not below.
fn way_to<'n>(here: &'n Node, target: &Node) -> Option<Vec<Option<Hop<'n>>>> {
    if std::ptr::eq(here, target) {
        return Some(Vec::new());
    }
    for (key, value) in here.entries() {
        if let Some(mut way) = way_to(value, target) {
            way.push(key.text().map(Hop::Key));
            return Some(way);
        }
    }
    for item in here.items() {
        if let Some(mut way) = way_to(item, target) {
            way.push(entry(item, "name").and_then(Node::text).map(Hop::Named));
            return Some(way);
        }
    }
    None
}

fn entry<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    node.entry(key).map(|(_, value)| value)
}
