//! The environments of a registration.

use std::collections::BTreeSet;

use fabrique_core::app::{Binding, BindingForm, Environment, ImageFrom, InfraFrom, OverlaySource, Source};
use fabrique_core::id::{Channel, EnvironmentName, RelPath};
use fabrique_yaml::path::Path;
use fabrique_yaml::{Fields, Node, Reader};

use super::relations;
use crate::{composition, placeholder};

const MAX_ENVIRONMENTS: usize = 32;
const MAX_BINDINGS: usize = 64;
/// Words of `from:` that no environment may be called.
const RESERVED: [&str; 4] = ["build", "head", "pinned", "files"];

pub(super) fn read_all(
    reader: &Reader<'_>,
    node: &Node,
    source: Option<&Source>,
) -> Option<Vec<Environment>> {
    let items = reader.list(node, "spec.environments", MAX_ENVIRONMENTS);
    let read: Vec<(&Node, Option<Environment>)> =
        items.iter().map(|item| (item, read_one(reader, item))).collect();
    let mut names = BTreeSet::new();
    for (item, environment) in &read {
        if let Some(environment) = environment
            && !names.insert(environment.name.clone())
        {
            reader.report(
                item,
                format!("the environment {} is declared twice", environment.name),
                "rename or remove one",
            );
        }
    }
    // References are judged only when every environment could be read: a misspelled one would look missing.
    let mut all = Vec::new();
    for (item, environment) in read {
        all.push((item, environment?));
    }
    relations::between_environments(reader, &all);
    if let Some(source) = source {
        relations::overlays_and_source(reader, &all, source);
    }
    Some(all.into_iter().map(|(_, environment)| environment).collect())
}

fn read_one(reader: &Reader<'_>, node: &Node) -> Option<Environment> {
    let known = ["name", "image", "infra", "bindings", "application"];
    let fields = reader.mapping(node, "an environment", &known)?;
    let name: Option<EnvironmentName> = fields.required("name").and_then(|node| {
        let name: EnvironmentName = reader.value(node, "name")?;
        if RESERVED.contains(&name.as_str()) {
            reader.report(node, format!("{name} is a word of `from:`"), "give the environment another name");
        }
        Some(name)
    });
    let image = match fields.get("image") {
        Some(node) => read_image_from(reader, node),
        None => Some(ImageFrom::Build),
    };
    let infra = match fields.get("infra") {
        Some(node) => read_infra_from(reader, node),
        None => Some(InfraFrom::Files),
    };
    let bindings = match fields.get("bindings") {
        Some(node) => read_bindings(reader, node),
        None => Some(Vec::new()),
    };
    Some(Environment { name: name?, image: image?, infra: infra?, bindings: bindings? })
}

fn read_image_from(reader: &Reader<'_>, node: &Node) -> Option<ImageFrom> {
    let fields = reader.mapping(node, "image", &["from"])?;
    let from = fields.required("from")?;
    match reader.text(from, "image.from")? {
        "build" => Some(ImageFrom::Build),
        _ => reader.value(from, "image.from").map(ImageFrom::Environment),
    }
}

fn read_infra_from(reader: &Reader<'_>, node: &Node) -> Option<InfraFrom> {
    let fields = reader.mapping(node, "infra", &["from", "repo", "path"])?;
    let from = fields.required("from")?;
    let word = reader.text(from, "infra.from")?;
    if matches!(word, "head" | "pinned") {
        let (repo, path) = (fields.parsed("repo"), fields.parsed("path"));
        let overlay = OverlaySource { repo: repo?, path: path? };
        return Some(if word == "head" { InfraFrom::Head(overlay) } else { InfraFrom::Pinned(overlay) });
    }
    for extra in ["repo", "path"] {
        if let Some(node) = fields.get(extra) {
            reader.report(
                node,
                format!("infra.{extra} has no meaning with from: {word}"),
                "remove it, or write from: head",
            );
        }
    }
    match word {
        "files" => Some(InfraFrom::Files),
        _ => reader.value(from, "infra.from").map(InfraFrom::Environment),
    }
}

pub(crate) fn read_bindings(reader: &Reader<'_>, node: &Node) -> Option<Vec<Binding>> {
    let items = reader.list(node, "bindings", MAX_BINDINGS);
    let mut places = BTreeSet::new();
    let mut bindings = Vec::new();
    for item in items {
        let Some(binding) = read_binding(reader, item) else { continue };
        if !places.insert((binding.file.clone(), binding.path.clone())) {
            reader.report(item, "two bindings have one place", "remove one");
        }
        bindings.push(binding);
    }
    Some(bindings)
}

fn read_binding(reader: &Reader<'_>, node: &Node) -> Option<Binding> {
    let fields = reader.mapping(node, "a binding", &["channel", "file", "path", "form"])?;
    let channel = read_word(&fields, "channel", &[("image", Channel::Image), ("infra", Channel::Infra)]);
    let file = read_file(&fields);
    let path = fields.required("path").and_then(|node| {
        let path: Path = reader.value(node, "path")?;
        Some(path.to_string())
    });
    let forms = [
        ("digest", BindingForm::Digest),
        ("reference", BindingForm::Reference),
        ("kustomize-image", BindingForm::KustomizeImage),
        ("revision", BindingForm::Revision),
        ("version", BindingForm::Version),
    ];
    let form = read_word(&fields, "form", &forms);
    let of_infra = |form| matches!(form, BindingForm::Revision | BindingForm::Version);
    if channel == Some(Channel::Infra) && form.is_some_and(|form| !of_infra(form)) {
        reader.report(
            node,
            "the infra channel has no image",
            "write form: revision or version, or channel: image",
        );
    }
    Some(Binding { channel: channel?, file: file?, path: path?, form: form? })
}

fn read_word<T: Copy>(fields: &Fields<'_>, name: &str, words: &[(&str, T)]) -> Option<T> {
    let node = fields.required(name)?;
    let text = fields.reader.text(node, name)?;
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    if found.is_none() {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        fields.reader.report(
            node,
            format!("{name} is {text:?}"),
            format!("write one of {}", known.join(", ")),
        );
    }
    found
}

fn read_file(fields: &Fields<'_>) -> Option<RelPath> {
    let node = fields.required("file")?;
    let text = fields.reader.text(node, "file")?;
    let Ok(file) = RelPath::parse(text) else {
        let what = format!("the binding's file {text:?} is not inside the environment's directory");
        fields.reader.report(node, what, "write a path relative to apps/<app>/<environment>/, without '..'");
        return None;
    };
    if file.is_root() || [composition::FILE_NAME, placeholder::FILE_NAME].contains(&file.as_str()) {
        fields.reader.report(
            node,
            format!("a binding cannot be in {file}"),
            "name a manifest of the environment",
        );
        return None;
    }
    Some(file)
}
