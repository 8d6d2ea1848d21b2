//! What the scalars of a manifest are there for.

use fabrique_yaml::{Node, Yaml};

/// Where pods have their containers.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];
/// What an operation of a JSON patch puts at its place.
const VALUE: &str = "value";
/// The image of a container.
const IMAGE: &str = "image";
/// Fields of a kustomization whose items are other kustomizations or manifests.
const RESOURCES: [&str; 3] = ["resources", "components", "bases"];

/// What a scalar is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spot<'y> {
    /// `images[].name` of a kustomization.
    ImageName,
    /// `images[].digest`, with the name beside it.
    ImageDigest {
        /// The name to match.
        of: Option<&'y str>,
    },
    /// `images[].newTag`, with the name beside it.
    ImageTag {
        /// The name to match.
        of: Option<&'y str>,
    },
    /// `images[].newName`.
    ImageNewName,
    /// The value of the variable of this name.
    Env(&'y str),
    /// The image of a container.
    Container,
    /// A resource that is not in the repository.
    Remote,
    /// Anything else.
    Other,
}

/// A scalar and what it is there for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scalar<'y> {
    pub(super) node: &'y Node,
    pub(super) text: &'y str,
    pub(super) spot: Spot<'y>,
}

/// Every scalar of a file, keys too.
pub(super) fn scalars(yaml: &Yaml, is_kustomization: bool) -> Vec<Scalar<'_>> {
    let mut found = Vec::new();
    for document in yaml.documents() {
        visit(document, &[], is_kustomization, &mut found);
    }
    found
}

/// `keys` are those on the way to `node`; an item of a list has the key of its list.
fn visit<'y>(node: &'y Node, keys: &[&'y str], is_kustomization: bool, found: &mut Vec<Scalar<'y>>) {
    push(node, spot_of_item(node, keys, is_kustomization), found);
    for item in node.items() {
        visit(item, keys, is_kustomization, found);
    }
    let lands = lands(node);
    for (key, value) in node.entries() {
        push(key, Spot::Other, found);
        let name = key.text().unwrap_or_default();
        if let Some(way) = lands.as_deref().filter(|_| name == VALUE) {
            match way.split_last() {
                Some((&IMAGE, _)) if value.text().is_some() => push(value, Spot::Container, found),
                _ => visit(value, way, false, found),
            }
            continue;
        }
        match spot_of_entry(node, name, keys, is_kustomization) {
            Spot::Other => {
                let below: Vec<&str> = keys.iter().copied().chain([name]).collect();
                visit(value, &below, is_kustomization, found);
            }
            spot => push(value, spot, found),
        }
    }
}

/// The keys on the way to where an operation of a JSON patch puts its value: an item of a list has the key of its list.
fn lands(operation: &Node) -> Option<Vec<&str>> {
    operation.entry("op")?;
    let (_, path) = operation.entry("path")?;
    let is_key = |step: &&str| !step.is_empty() && *step != "-" && !step.bytes().all(|b| b.is_ascii_digit());
    Some(path.text()?.strip_prefix('/')?.split('/').filter(is_key).collect())
}

/// The texts in a kustomization that are patches themselves.
pub(super) fn inline_patches(kustomization: &Yaml) -> Vec<&Node> {
    let mut found = Vec::new();
    for (key, list) in kustomization.documents().iter().flat_map(Node::entries) {
        match key.text() {
            Some("patches" | "patchesJson6902") => {
                found.extend(
                    list.items().iter().filter_map(|item| item.entry("patch")).map(|(_, patch)| patch),
                );
            }
            Some("patchesStrategicMerge") => found.extend(list.items()),
            _ => {}
        }
    }
    found.retain(|node| node.text().is_some());
    found
}

fn push<'y>(node: &'y Node, spot: Spot<'y>, found: &mut Vec<Scalar<'y>>) {
    if let Some(text) = node.text() {
        found.push(Scalar { node, text, spot });
    }
}

/// Whether kustomize would fetch what a kustomization names so.
#[must_use]
pub fn is_remote(text: &str) -> bool {
    text.contains("://")
        || text.contains("?ref=")
        || text.starts_with("git@")
        || text.starts_with("github.com")
}

fn spot_of_item<'y>(node: &Node, keys: &[&str], is_kustomization: bool) -> Spot<'y> {
    match keys {
        [list] if is_kustomization && RESOURCES.contains(list) && node.text().is_some_and(is_remote) => {
            Spot::Remote
        }
        _ => Spot::Other,
    }
}

fn spot_of_entry<'y>(mapping: &'y Node, name: &str, keys: &[&str], is_kustomization: bool) -> Spot<'y> {
    let text = |key: &str| mapping.entry(key).and_then(|(_, value)| value.text());
    match (keys, name) {
        (["images"], "name") if is_kustomization => Spot::ImageName,
        (["images"], "digest") if is_kustomization => Spot::ImageDigest { of: text("name") },
        (["images"], "newTag") if is_kustomization => Spot::ImageTag { of: text("name") },
        (["images"], "newName") if is_kustomization => Spot::ImageNewName,
        ([.., "env"], VALUE) => text("name").map_or(Spot::Other, Spot::Env),
        ([.., list], IMAGE) if CONTAINERS.contains(list) => Spot::Container,
        _ => Spot::Other,
    }
}

/// The words of a text: what is made of letters, digits and `_`.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}
