//! Compositions: `apps/<app>/<environment>/composition.yaml`, the desired state of one environment.

mod edit;
mod text;

use fabrique_core::app::{
    App, Chart, Composition, DeployedImage, DeployedInfra, Hold, ImageState, InfraState, OverlaySource,
};
use fabrique_core::id::{AppName, EnvironmentName, ImageRepository, RelPath};
use fabrique_yaml::{Fields, Finding, Node, Reader};

use crate::layout;
use crate::refusal::Refusal;
use crate::tree::Tree;

pub(crate) use edit::edit;
pub use text::render;

/// The name of a composition's file.
pub const FILE_NAME: &str = "composition.yaml";

/// The longest text of a hold and of a version, in characters.
pub(crate) const MAX_TEXT: usize = 500;

/// The composition of an environment, or nothing when it has none yet.
///
/// # Errors
/// [`Refusal::BadFile`] with the first thing that is wrong in it.
pub fn load(tree: &Tree, app: &App, environment: &EnvironmentName) -> Result<Option<Composition>, Refusal> {
    let path = layout::composition_of(&app.name, environment);
    let Some(bytes) = tree.read(&path)? else { return Ok(None) };
    parse(&path, bytes, &app.name, environment).map(Some).map_err(first)
}

/// The composition of an environment in which nothing is deployed.
#[must_use]
pub fn empty(app: &AppName, environment: &EnvironmentName) -> Composition {
    Composition {
        app: app.clone(),
        environment: environment.clone(),
        image: ImageState::default(),
        infra: InfraState::default(),
    }
}

/// Reads a composition that lies in `apps/<app>/<environment>/`.
///
/// # Errors
/// Everything that is wrong in it, at once.
pub fn parse(
    path: &RelPath,
    bytes: &[u8],
    app: &AppName,
    environment: &EnvironmentName,
) -> Result<Composition, Vec<Finding>> {
    let reader = Reader::new(path.as_str());
    let read =
        reader.parse(bytes).and_then(|yaml| read(&reader, yaml.documents().first()?, app, environment));
    match read {
        Some(composition) if !reader.has_findings() => Ok(composition),
        Some(_) | None => Err(reader.into_findings()),
    }
}

pub(crate) fn first(findings: Vec<Finding>) -> Refusal {
    findings.into_iter().min().map_or_else(
        || Refusal::Unacceptable { what: "unreadable".to_owned(), remedy: "write it anew".to_owned() },
        Refusal::from,
    )
}

fn read(
    reader: &Reader<'_>,
    document: &Node,
    app: &AppName,
    environment: &EnvironmentName,
) -> Option<Composition> {
    let root =
        reader.mapping(document, "the composition", &["apiVersion", "kind", "metadata", "image", "infra"])?;
    root.constant("apiVersion", "fabrique/v1");
    root.constant("kind", "Composition");
    let metadata = root
        .required("metadata")
        .and_then(|node| reader.mapping(node, "metadata", &["app", "environment"]))?;
    metadata.constant("app", app.as_str());
    metadata.constant("environment", environment.as_str());
    let image =
        root.get("image").map_or_else(|| Some(ImageState::default()), |node| read_image(reader, node));
    let infra =
        root.get("infra").map_or_else(|| Some(InfraState::default()), |node| read_infra(reader, node));
    Some(Composition { app: app.clone(), environment: environment.clone(), image: image?, infra: infra? })
}

fn read_image(reader: &Reader<'_>, node: &Node) -> Option<ImageState> {
    let fields =
        reader.mapping(node, "image", &["repository", "digest", "revision", "version", "build", "hold"])?;
    let hold = read_hold(&fields);
    let repository = fields.optional::<ImageRepository>("repository");
    let version = match fields.get("version") {
        Some(node) => reader.line(node, "image.version", MAX_TEXT).map(Some),
        None => Some(None),
    };
    let build = fields.optional("build");
    let deployed = if fields.get("digest").is_none() && fields.get("revision").is_none() {
        None
    } else {
        let (digest, revision) = (fields.parsed("digest"), fields.parsed("revision"));
        fields.required("repository");
        Some(DeployedImage {
            repository: repository??,
            digest: digest?,
            revision: revision?,
            version: version?,
            build: build?,
        })
    };
    Some(ImageState { deployed, hold: hold? })
}

fn read_infra(reader: &Reader<'_>, node: &Node) -> Option<InfraState> {
    let fields = reader.mapping(node, "infra", &["repo", "path", "revision", "chart", "version", "hold"])?;
    let hold = read_hold(&fields);
    if fields.get("chart").is_some() || fields.get("version").is_some() {
        let chart = read_chart(&fields);
        return Some(InfraState { deployed: None, chart: Some(chart?), hold: hold? });
    }
    let (repo, path) = (fields.optional("repo"), fields.optional("path"));
    let deployed = if fields.get("revision").is_none() {
        None
    } else {
        let revision = fields.parsed("revision");
        fields.required("repo");
        fields.required("path");
        Some(DeployedInfra { overlay: OverlaySource { repo: repo??, path: path?? }, revision: revision? })
    };
    Some(InfraState { deployed, chart: None, hold: hold? })
}

fn read_chart(fields: &Fields<'_>) -> Option<Chart> {
    let reader = fields.reader;
    for name in ["path", "revision"] {
        if let Some(node) = fields.get(name) {
            reader.report(
                node,
                format!("infra has a chart and {name}, which belongs to an overlay"),
                "keep repo, chart and version, or repo, path and revision",
            );
        }
    }
    let text = |name: &str| {
        let line =
            fields.required(name).and_then(|node| reader.line(node, &format!("infra.{name}"), MAX_TEXT));
        line.filter(|line| !line.is_empty())
    };
    let (repo, name, version) = (text("repo"), text("chart"), text("version"));
    Some(Chart { repo: repo?, name: name?, version: version? })
}

fn read_hold(channel: &Fields<'_>) -> Option<Option<Hold>> {
    let Some(node) = channel.get("hold") else { return Some(None) };
    let reader = channel.reader;
    let fields = reader.mapping(node, "hold", &["by", "reason", "since", "until"])?;
    let text = |name: &str| fields.required(name).and_then(|node| reader.line(node, name, MAX_TEXT));
    let optional = |name: &str| match fields.get(name) {
        Some(node) => reader.line(node, name, MAX_TEXT).map(Some),
        None => Some(None),
    };
    let (by, reason, since, until) = (text("by"), text("reason"), optional("since"), optional("until"));
    // An end that cannot be read would be no end.
    if let (Some(Some(end)), Some(node)) = (&until, fields.get("until"))
        && let Err(error) = end.parse::<jiff::Timestamp>()
    {
        reader.report(node, format!("until is no time: {error}"), "write it as 2026-08-01T12:00:00Z");
    }
    Some(Some(Hold { by: by?, reason: reason?, since: since?, until: until? }))
}

#[cfg(test)]
mod tests;
