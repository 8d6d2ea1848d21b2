//! Registrations: `apps/<app>/app.yaml`, what pushing one means, and what is wrong with them.

mod app;
mod application;
mod ceiling;
mod environment;
mod relations;
mod resources;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fabrique_core::app::App;
use fabrique_core::id::{AppName, BranchName, EnvironmentName, ImageRepository, RelPath, RepoName};
use fabrique_yaml::{Finding, Reader};

pub use application::{Choice, SourceForm};
pub use ceiling::{Ceiling, above};
pub(crate) use environment::read_bindings;

use crate::layout;
use crate::refusal::Refusal;
use crate::tree::Tree;

/// The name of a registration's file.
pub const FILE_NAME: &str = "app.yaml";

/// What the operator of the cluster allows every registration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Where images may be pushed: `registry:80`, or `registry:80/team` and everything below it. An empty
    /// list allows nothing.
    pub registries: Vec<String>,
}

impl Rules {
    /// Whether `image` is inside one of the registries.
    #[must_use]
    pub fn allow(&self, image: &ImageRepository) -> bool {
        self.registries.iter().any(|allowed| {
            image
                .as_str()
                .strip_prefix(allowed.trim_end_matches('/'))
                .is_some_and(|rest| rest.starts_with('/'))
        })
    }
}

/// Every registration of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registrations {
    /// The apps without findings.
    pub apps: BTreeMap<AppName, App>,
    /// What their environments choose for their Applications.
    pub choices: BTreeMap<AppName, BTreeMap<EnvironmentName, Choice>>,
    /// The apps with findings, which wait until these are gone. None of them is in `apps`.
    pub wrong: BTreeMap<AppName, Wrong>,
    /// All that is wrong, in order of file and line.
    pub findings: Vec<Finding>,
}

/// A registration that cannot be used: the app is registered, and nothing is done for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The first thing that is wrong with it.
    pub finding: Finding,
    /// How much more is.
    pub more: usize,
    /// Where its source is, as far as that can be read all the same.
    pub source: Option<(RepoName, BranchName)>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.finding.fmt(f)?;
        if self.more > 0 { write!(f, " (and {} more)", self.more) } else { Ok(()) }
    }
}

impl Registrations {
    /// Reads every `apps/<app>/app.yaml`. A wrong one hides no other.
    #[must_use]
    pub fn load(tree: &Tree, rules: &Rules) -> Self {
        let (mut read, mut findings) = (Vec::new(), Vec::new());
        let mut chosen: BTreeMap<AppName, BTreeMap<EnvironmentName, Choice>> = BTreeMap::new();
        for (path, _) in tree.iter() {
            let Some(directory) = layout::registered_in(path) else { continue };
            match tree.read(path) {
                Ok(Some(bytes)) => match read_file(path, directory, bytes, rules) {
                    Ok((app, choices)) => {
                        chosen.insert(app.name.clone(), choices);
                        read.push((path.clone(), app));
                    }
                    Err(wrong) => findings.extend(wrong),
                },
                Ok(None) => {}
                Err(refusal) => findings.push(unreadable(path, &refusal)),
            }
        }
        findings.extend(relations::between_apps(&read));
        findings.sort();
        let wrong: BTreeSet<&str> = findings.iter().map(|finding| finding.file.as_str()).collect();
        let apps: BTreeMap<AppName, App> = read
            .into_iter()
            .filter(|(path, _)| !wrong.contains(path.as_str()))
            .map(|(_, app)| (app.name.clone(), app))
            .collect();
        chosen.retain(|app, choices| apps.contains_key(app) && !choices.is_empty());
        let wrong = wrong_ones(tree, &findings);
        Self { apps, choices: chosen, wrong, findings }
    }

    /// What an environment chooses for its Application.
    #[must_use]
    pub fn choice(&self, app: &AppName, environment: &EnvironmentName) -> Choice {
        let choice = self.choices.get(app).and_then(|choices| choices.get(environment));
        choice.cloned().unwrap_or_default()
    }

    /// The apps that follow `branch` of `repo`, whose name Gitea compares without case.
    pub fn by_repo<'r>(
        &'r self,
        repo: &'r RepoName,
        branch: &'r BranchName,
    ) -> impl Iterator<Item = &'r App> + 'r {
        self.apps.values().filter(move |app| app.source.repo.same_as(repo) && app.source.branch == *branch)
    }

    /// The apps that a change of these paths of `cluster/apps` concerns. The contract concerns all; an Application
    /// concerns the app that it deploys, which tells those that wait for it. An app whose registration is wrong is told so.
    #[must_use]
    pub fn touching<'p>(&self, changed: impl IntoIterator<Item = &'p RelPath>) -> BTreeSet<AppName> {
        let mut touched = BTreeSet::new();
        let mut applications: Option<BTreeMap<RelPath, &AppName>> = None;
        for path in changed {
            if path.as_str() == "contract.yaml" {
                return self.apps.keys().cloned().collect();
            }
            if let Some(name) = layout::at_home(path)
                && (self.apps.contains_key(&name) || self.wrong.contains_key(&name))
            {
                touched.insert(name);
            }
            if path.as_str().starts_with("applications/") {
                let applications = applications.get_or_insert_with(|| self.applications());
                touched.extend(applications.get(path).map(|name| (*name).clone()));
            }
        }
        touched
    }

    /// The file of each environment's Application, whoever writes it, and whose that is. Of two that would be the same
    /// only one ever is.
    fn applications(&self) -> BTreeMap<RelPath, &AppName> {
        let environments = |app: &'_ App| {
            app.environments
                .iter()
                .map(|place| layout::application_of(&app.name, &place.name))
                .collect::<Vec<_>>()
        };
        self.apps
            .values()
            .flat_map(|app| environments(app).into_iter().map(|file| (file, &app.name)))
            .collect()
    }
}

/// The apps that findings are about, by the directory of each file.
fn wrong_ones(tree: &Tree, findings: &[Finding]) -> BTreeMap<AppName, Wrong> {
    let mut wrong: BTreeMap<AppName, Wrong> = BTreeMap::new();
    for finding in findings {
        let directory = finding.file.split('/').nth(1).unwrap_or_default();
        let Ok(name) = AppName::parse(directory) else { continue };
        if let Some(known) = wrong.get_mut(&name) {
            known.more += 1;
            continue;
        }
        let file = tree.read(&layout::registration_of(&name)).ok().flatten();
        let source = file.and_then(|bytes| app::source_of(bytes));
        wrong.insert(name, Wrong { finding: finding.clone(), more: 0, source });
    }
    wrong
}

fn unreadable(path: &RelPath, refusal: &Refusal) -> Finding {
    Finding {
        file: path.as_str().to_owned(),
        line: 0,
        column: 0,
        what: refusal.to_string(),
        remedy: "replace the symlink by a file".to_owned(),
    }
}

/// Reads one registration that lies in `apps/<directory>/`.
///
/// # Errors
/// Everything that is wrong in the file by itself, at once.
pub fn parse(path: &RelPath, directory: &str, bytes: &[u8], rules: &Rules) -> Result<App, Vec<Finding>> {
    read_file(path, directory, bytes, rules).map(|(app, _)| app)
}

fn read_file(
    path: &RelPath,
    directory: &str,
    bytes: &[u8],
    rules: &Rules,
) -> Result<app::Registered, Vec<Finding>> {
    let reader = Reader::new(path.as_str());
    let app = reader.parse(bytes).and_then(|yaml| {
        let document = yaml.documents().first()?;
        app::read(&reader, document, directory, rules)
    });
    match app {
        Some(app) if !reader.has_findings() => Ok(app),
        Some(_) | None => Err(reader.into_findings()),
    }
}

#[cfg(test)]
mod tests;
