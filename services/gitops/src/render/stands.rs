//! What lies in `applications/` already: ours with what it says of itself, and what people wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use fabrique_core::id::{AppName, EnvironmentName, RelPath};
use fabrique_yaml::{Finding, Node, Yaml};

use super::{Kind, MARK, RESERVED, Settings, root};
use crate::layout;
use crate::registration::Registrations;
use crate::tree::{FileKind, Tree};

/// The label of the app.
pub(super) const APP: &str = "fabrique/app";
/// The label of the environment.
pub(super) const ENVIRONMENT: &str = "fabrique/environment";
/// The annotation of what the app needs.
pub(super) const DEPENDS_ON: &str = "fabrique/depends-on";

/// The files of `applications/` and `root.yaml`, read. Those of the next tree are read by [`Standing::on`], which reads
/// only what changed.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    files: BTreeMap<RelPath, File>,
    read: usize,
}

#[derive(Debug, Clone)]
struct File {
    bytes: Bytes,
    says: Says,
}

/// What a file says of itself.
#[derive(Debug, Clone)]
enum Says {
    Ours(Arc<Ours>),
    /// The root or what brings what is provided, which have no app; or one that somebody broke, or made up.
    Nothing,
    ByHand,
}

#[derive(Debug)]
struct Ours {
    app: AppName,
    environment: EnvironmentName,
    needs: BTreeSet<AppName>,
}

impl Standing {
    /// Those of a tree.
    #[must_use]
    pub fn of(tree: &Tree) -> Self {
        Self::default().on(tree)
    }

    /// Those of another tree: what is the same here is not read again.
    #[must_use]
    pub fn on(&self, tree: &Tree) -> Self {
        let mut standing = Self::default();
        let (folder, root) = (layout::applications(), layout::root());
        for (path, entry) in tree.below(&folder).chain(tree.below(&root)) {
            let known = self.files.get(path).filter(|file| file.bytes == entry.bytes);
            let says = known.map_or_else(
                || {
                    standing.read += 1;
                    Says::read(&entry.bytes)
                },
                |file| file.says.clone(),
            );
            standing.files.insert(path.clone(), File { bytes: entry.bytes.clone(), says });
        }
        standing
    }

    /// How many files were read to know this.
    #[must_use]
    pub fn files_read(&self) -> usize {
        self.read
    }

    fn ours(&self) -> impl Iterator<Item = (&RelPath, &Ours)> {
        self.files.iter().filter_map(|(path, file)| Some((path, file.says.ours()?)))
    }

    /// Whether a person wrote this file.
    pub(super) fn is_by_hand(&self, path: &RelPath) -> bool {
        self.files.get(path).is_some_and(|file| matches!(file.says, Says::ByHand))
    }

    /// Whose Application a rendered file is, by what it says of itself.
    pub(super) fn owner(&self, path: &RelPath) -> Option<(&AppName, &EnvironmentName)> {
        let ours = self.files.get(path)?.says.ours()?;
        Some((&ours.app, &ours.environment))
    }

    /// Whether a file says of itself whose Application it is, and is called like it.
    fn is_at_its_place(&self, path: &RelPath) -> bool {
        self.owner(path).is_some_and(|(app, environment)| layout::application_of(app, environment) == *path)
    }

    /// Whether an environment of an app has an Application that is rendered.
    #[must_use]
    pub fn has(&self, app: &AppName, environment: &EnvironmentName) -> bool {
        self.owner(&layout::application_of(app, environment)) == Some((app, environment))
    }

    /// What an app needs by one of its rendered files.
    pub(super) fn needs_in(&self, path: &RelPath) -> BTreeSet<AppName> {
        self.files
            .get(path)
            .and_then(|file| file.says.ours())
            .map(|ours| ours.needs.clone())
            .unwrap_or_default()
    }

    /// What each app needs by its rendered files.
    pub(super) fn needs(&self) -> BTreeMap<&AppName, BTreeSet<AppName>> {
        let mut needs: BTreeMap<&AppName, BTreeSet<AppName>> = BTreeMap::new();
        for (_, ours) in self.ours() {
            needs.entry(&ours.app).or_default().extend(ours.needs.iter().cloned());
        }
        needs
    }

    /// The environments that have an Application, whoever wrote it.
    pub(super) fn present(&self) -> BTreeSet<(AppName, EnvironmentName)> {
        self.ours().map(|(_, ours)| (ours.app.clone(), ours.environment.clone())).collect()
    }

    /// Files of ours that nothing registers any more. An app whose registration cannot be read is still registered.
    pub(super) fn stale(&self, tree: &Tree, registrations: &Registrations) -> Vec<RelPath> {
        let stale = |ours: &Ours| match registrations.apps.get(&ours.app) {
            Some(app) => !app.environments.iter().any(|place| place.name == ours.environment),
            None => tree.content(&layout::registration_of(&ours.app)).is_none(),
        };
        self.ours().filter(|(_, ours)| stale(ours)).map(|(path, _)| path.clone()).collect()
    }
}

impl Says {
    fn read(bytes: &[u8]) -> Self {
        if !bytes.starts_with(MARK.as_bytes()) {
            return Says::ByHand;
        }
        Ours::read(bytes).map_or(Says::Nothing, |ours| Says::Ours(Arc::new(ours)))
    }

    fn ours(&self) -> Option<&Ours> {
        match self {
            Says::Ours(ours) => Some(ours),
            Says::Nothing | Says::ByHand => None,
        }
    }
}

impl Ours {
    fn read(bytes: &[u8]) -> Option<Self> {
        let yaml = Yaml::parse(bytes).ok()?;
        let metadata = value(yaml.documents().first()?, "metadata")?;
        let label = |key: &str| value(value(metadata, "labels")?, key)?.text();
        let needs =
            value(metadata, "annotations").and_then(|all| value(all, DEPENDS_ON)).and_then(Node::text);
        let needs = needs.unwrap_or_default().split(',').filter_map(|app| AppName::parse(app.trim()).ok());
        Some(Self {
            app: AppName::parse(label(APP)?).ok()?,
            environment: EnvironmentName::parse(label(ENVIRONMENT)?).ok()?,
            needs: needs.collect(),
        })
    }
}

pub(super) fn value<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    node.entry(key).map(|(_, value)| value)
}

/// Files by which Argo CD takes a folder for something to be built.
pub(super) const BUILDS: [&str; 4] =
    ["kustomization.yaml", "kustomization.yml", "Kustomization", "Chart.yaml"];

/// What stands there, is not as it is rendered now, and must not be: the root Application deploys whatever lies in its folder,
/// whoever wrote it and whatever it says of itself.
pub(super) fn foreign(
    tree: &Tree,
    standing: &Standing,
    rendered: &BTreeMap<RelPath, String>,
    settings: &Settings,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, entry) in tree.below(&layout::applications()) {
        if rendered.contains_key(path) {
            continue;
        }
        let mut tell =
            |what: &str, remedy: &str| findings.push(Finding::of_file(path.as_str(), what, remedy));
        if let Some((what, remedy)) = misnamed(path) {
            tell(what, remedy);
            continue;
        }
        if !is_manifest(path) {
            continue;
        }
        let read = is_read(path);
        if read && matches!(entry.kind, FileKind::Symlink | FileKind::Submodule) {
            tell("is no file of its own", "write it out: the root Application deploys whatever it leads to");
            continue;
        }
        let yaml = match Yaml::parse(&entry.bytes) {
            Ok(yaml) => yaml,
            Err(error) => {
                let remedy = "correct it: the root Application deploys this folder as a whole";
                tell(&format!("cannot be read: {error}"), remedy);
                continue;
            }
        };
        let is_known = standing.is_by_hand(path) || standing.is_at_its_place(path);
        if read && !is_known && !is_provided(path, &yaml) {
            tell(
                "begins as what fabrique renders does, and nothing is rendered there",
                "remove it, or its first line when it is yours",
            );
        }
        yaml.documents().iter().for_each(|node| judge(path, node, settings, &mut findings));
    }
    findings
}

/// Whether the root that is rendered reads a file: it looks into no folder of its folder. What lies there is judged as far as a
/// root of somebody's own would deploy it.
fn is_read(path: &RelPath) -> bool {
    path.as_str()
        .strip_prefix(layout::applications().as_str())
        .is_some_and(|rest| rest.matches('/').count() == 1)
}

/// What Argo CD would not take for a manifest, whatever is in it.
fn misnamed(path: &RelPath) -> Option<(&'static str, &'static str)> {
    let name = path.as_str().rsplit('/').next().filter(|_| is_read(path))?;
    // Argo CD takes whatever ends so for one of Helm's.
    if BUILDS.contains(&name) || name.ends_with("Chart.yaml") {
        return Some((
            "makes a build of this folder for whoever does not say that it is none",
            "remove it: every app that it does not name would be removed with all that it deployed",
        ));
    }
    if name.starts_with(".argocd-source") {
        return Some(("changes what the root Application reads", "remove it"));
    }
    let is_jsonnet = name.ends_with(".jsonnet");
    is_jsonnet.then_some(("cannot be judged before it is evaluated", "write the Application out in YAML"))
}

fn is_manifest(path: &RelPath) -> bool {
    [".yaml", ".yml", ".json"].iter().any(|end| path.as_str().ends_with(end))
}

/// Whether a file is the Application of what is provided in the environment that it names, rendered now or earlier.
fn is_provided(path: &RelPath, yaml: &Yaml) -> bool {
    let metadata = yaml.documents().first().and_then(|document| value(document, "metadata"));
    let label = metadata.and_then(|all| value(value(all, "labels")?, ENVIRONMENT)?.text());
    let Some(environment) = label.and_then(|name| EnvironmentName::parse(name).ok()) else { return false };
    Kind::ALL.iter().any(|kind| layout::provided_application(kind.folder(), &environment) == *path)
}

fn judge(path: &RelPath, document: &Node, settings: &Settings, findings: &mut Vec<Finding>) {
    let mut tell = |node: &Node, what: String, remedy: &str| {
        let (file, remedy) = (path.as_str().to_owned(), remedy.to_owned());
        findings.push(Finding { file, line: node.line, column: node.column, what, remedy });
    };
    if let Some((node, kind)) = value(document, "kind").and_then(|node| Some((node, node.text()?))) {
        match kind {
            "Application" => {}
            "ApplicationSet" => {
                tell(
                    node,
                    "an ApplicationSet".to_owned(),
                    "register each app: fabrique renders its Application",
                );
            }
            other if is_read(path) => {
                let what = format!("of kind {other}, which the root's project does not let in");
                tell(node, what, "keep it elsewhere: nothing else of this folder is deployed either");
            }
            _ => {}
        }
    }
    let name = value(document, "metadata").and_then(|metadata| value(metadata, "name"));
    if let Some((node, name)) = name.and_then(|node| Some((node, node.text()?)))
        && (RESERVED.contains(&name) || name == settings.root)
    {
        let what = format!("{name} carries the root Application, and cannot be below it");
        tell(node, what, "install it by itself");
    }
    let is_application = value(document, "kind").and_then(Node::text) == Some("Application");
    if let Some((key, spec)) = document.entry("spec").filter(|_| is_application && is_read(path)) {
        let named = value(spec, "project");
        // As Argo CD takes one that names none.
        let project = named.and_then(Node::text).filter(|name| !name.is_empty()).unwrap_or("default");
        if project != settings.project && project != root::provided_project_name(settings) {
            let what =
                format!("the project {project:?} is not {}, which bounds what is deployed", settings.project);
            tell(named.unwrap_or(key), what, "name that one, or keep it elsewhere");
        }
    }
    document.walk(&mut |node| {
        for (key, value) in node.entries().iter().filter(|(key, _)| key.text() == Some("repoURL")) {
            let url = value.text().unwrap_or_default();
            if !settings.is_inside(url) {
                let what = format!("the repoURL {url:?} is not a repository of {}", settings.gitea);
                tell(key, what, "bring what it needs into Gitea: the cluster fetches nothing from elsewhere");
            }
        }
    });
}
