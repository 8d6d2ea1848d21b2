//! All apps as they are registered and declared now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabrique_core::app::App;
use fabrique_core::id::{AppName, BranchName, RelPath, RepoName, Revision};
use fabrique_declarations::{Contract, Declares, Finding, Subject, Usage, Wait, contract, judge};
use fabrique_gitops::render::Settings;
use fabrique_gitops::{Registrations, layout};
use fabrique_observer::{Apps, AppsReader, declared};
use fabrique_ports::PortResult;
use fabrique_ports::forge::{BranchHead, Forge};
use fabrique_ports::source::{FileKind, SourceFile, SourceHistory};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::Declared;
use super::cluster::{Cluster, Site, usage};
use super::target::Ground;
use crate::error::OperatorError;
use crate::lookup;

/// How many repositories are asked at once.
const AT_ONCE: usize = 8;

/// Who is asked.
#[derive(Clone)]
pub struct Ports {
    /// For the heads of branches.
    pub forge: Arc<dyn Forge>,
    /// For the files at them.
    pub source: Arc<dyn SourceHistory>,
}

/// Judges every declaration at the head of its branch against the contract at the head of `cluster/apps`, the revision
/// that it pins, and the migrations that it names. With `only`, what is told is about that app: all have to be read to know
/// what is left for one. `settings` say where Applications go, where they are rendered.
///
/// # Errors
/// When `only` is not registered; when `cluster/apps`, a head or a file cannot be read.
pub async fn live(
    apps: &AppsReader,
    ports: &Ports,
    settings: Option<&Settings>,
    only: Option<&AppName>,
) -> Result<Declared, OperatorError> {
    let apps = registered(apps, only).await?;
    let read = read_all(&apps.registrations, ports).await?;
    let targets = targets(&apps, ports, settings, (&read, only)).await?;
    let mut judged = read.judged(&apps.contract, &Usage::default());
    judged.tell(targets);
    Ok(told(judged, None, only))
}

/// The same, and against what the cluster really has.
///
/// # Errors
/// As [`live`]; when it is not known which environment the cluster is; when the cluster does not answer.
pub async fn against(
    cluster: &Cluster,
    apps: &AppsReader,
    ports: &Ports,
    only: Option<&AppName>,
) -> Result<Declared, OperatorError> {
    let apps = registered(apps, only).await?;
    let settings = cluster.settings.as_ref();
    let read = read_all(&apps.registrations, ports).await?;
    let targets = targets(&apps, ports, settings, (&read, only)).await?;
    let Ok(Some(contract)) = &apps.contract else {
        // Nothing can be compared before it is right.
        let mut judged = read.judged(&apps.contract, &Usage::default());
        judged.tell(targets);
        return Ok(told(judged, None, only));
    };
    let (environment, offer) = Site::environment(contract, cluster)?;
    let site = Site {
        contract,
        environment,
        offer,
        subjects: &read.subjects,
        registrations: &apps.registrations,
        tree: &apps.tree,
        settings,
    };
    let seen = cluster.inventory.look(&site.wanted()).await?;
    let (usage, found) = (usage(&site, &seen), site.findings(&seen));
    let mut judged = read.judged(&apps.contract, &usage);
    judged.tell(found.into_iter().chain(targets));
    Ok(told(judged, Some(seen.requests), only))
}

/// `cluster/apps`, where `only` is registered if it is named. A wrong registration is one: what is wrong with it is
/// told with everything else of the app.
async fn registered(apps: &AppsReader, only: Option<&AppName>) -> Result<Arc<Apps>, OperatorError> {
    let apps = apps.read().await?;
    if let Some(name) = only.filter(|name| !apps.registrations.wrong.contains_key(*name)) {
        lookup::app(&apps.registrations, name.as_str())?;
    }
    Ok(apps)
}

fn told(judged: Judged, requests: Option<usize>, only: Option<&AppName>) -> Declared {
    let Judged { subjects, findings, waits } = judged;
    let read = subjects.values().filter(|subject| matches!(subject.declares, Declares::All(_)));
    let declared = Declared { declarations: read.count(), overlays: None, requests, findings, waits };
    match only {
        Some(app) => declared.about(app),
        None => declared,
    }
}

/// What every app declares, and how it stands to the contract.
#[derive(Debug)]
pub(crate) struct Judged {
    /// The apps with what they declare.
    pub(crate) subjects: BTreeMap<AppName, Subject>,
    /// Everything that is wrong, by file and line.
    pub(crate) findings: Vec<Finding>,
    /// Why apps are left alone although nothing is wrong with them.
    pub(crate) waits: BTreeMap<AppName, Vec<Wait>>,
}

impl Judged {
    fn tell(&mut self, more: impl IntoIterator<Item = Finding>) {
        self.findings.extend(more);
        self.findings.sort();
    }
}

/// What speaks against the revisions that declarations mean, of `only` where one is named. Most apps mean their heads, which
/// are asked for nothing.
async fn targets(
    apps: &Apps,
    ports: &Ports,
    settings: Option<&Settings>,
    (read, only): (&ReadAll, Option<&AppName>),
) -> PortResult<Vec<Finding>> {
    let ground = Ground { apps, source: ports.source.as_ref(), settings };
    let mut asked = Vec::new();
    for (name, subject) in read.subjects.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        let Some(app) = apps.registrations.apps.get(name) else { continue };
        let head = read.heads.get(&(app.source.repo.clone(), app.source.branch.clone()));
        if let (Declares::All(declaration), Some(BranchHead::At(head))) = (&subject.declares, head) {
            asked.push(ground.findings(app, head, declaration));
        }
    }
    let found: Vec<Vec<Finding>> = stream::iter(asked).buffered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Reads every declaration at the head of its branch and judges it against `contract`.
///
/// # Errors
/// When a head or a file cannot be read.
pub(crate) async fn judged(
    registrations: &Registrations,
    contract: &Result<Option<Contract>, Vec<Finding>>,
    ports: &Ports,
) -> Result<Judged, OperatorError> {
    Ok(read_all(registrations, ports).await?.judged(contract, &Usage::default()))
}

/// What every app declares, and what is wrong with it by itself.
struct ReadAll {
    heads: Heads,
    subjects: BTreeMap<AppName, Subject>,
    findings: Vec<Finding>,
}

async fn read_all(registrations: &Registrations, ports: &Ports) -> Result<ReadAll, OperatorError> {
    let registered: Vec<&App> = registrations.apps.values().collect();
    let heads = heads(ports, &registered).await?;
    let files = files(ports, &registered, &heads).await?;
    let (mut subjects, mut wrong) = (BTreeMap::new(), Vec::new());
    for app in registered {
        let (subject, findings) = subject(app, &heads, &files);
        wrong.extend(findings.into_iter().map(|finding| finding.concerning([app.name.clone()])));
        subjects.insert(app.name.clone(), subject);
    }
    // Those that depend on them wait, and nothing is wrong with them.
    let misregistered = registrations.wrong.keys();
    subjects.extend(misregistered.map(|app| (app.clone(), declared::misregistered(app))));
    Ok(ReadAll { heads, subjects, findings: wrong })
}

impl ReadAll {
    fn judged(self, contract: &Result<Option<Contract>, Vec<Finding>>, usage: &Usage) -> Judged {
        let Self { subjects, findings: mut all, .. } = self;
        let mut waits = BTreeMap::new();
        match contract {
            Ok(Some(contract)) => {
                let judgement = judge(contract, contract::FILE_NAME, &subjects, usage);
                all.extend(judgement.findings);
                waits = judgement.waits;
            }
            Ok(None) => all.extend(without_contract(&subjects)),
            Err(findings) => {
                // Nobody can be judged until it is right.
                let everybody = declaring(&subjects);
                all.extend(findings.iter().cloned().map(|finding| finding.concerning(everybody.clone())));
            }
        }
        all.sort();
        Judged { subjects, findings: all, waits }
    }
}

fn declaring(subjects: &BTreeMap<AppName, Subject>) -> Vec<AppName> {
    let declares =
        |subject: &Subject| !matches!(subject.declares, Declares::Nothing | Declares::Misregistered);
    let declaring = subjects.iter().filter(|(_, subject)| declares(subject));
    declaring.map(|(app, _)| app.clone()).collect()
}

/// A cluster in which nobody declares anything needs no contract.
fn without_contract(subjects: &BTreeMap<AppName, Subject>) -> Option<Finding> {
    let declaring = declaring(subjects);
    let what = "is missing, and apps declare what they need of it";
    let remedy = "add it, docs/contract.yaml.example shows how";
    (!declaring.is_empty()).then(|| Finding::of_file(contract::FILE_NAME, what, remedy).concerning(declaring))
}

type Heads = BTreeMap<(RepoName, BranchName), BranchHead>;

/// Where the branches of the apps with a declaration point, each asked once.
async fn heads(ports: &Ports, apps: &[&App]) -> PortResult<Heads> {
    let with_declaration = apps.iter().map(|app| &app.source).filter(|source| source.declaration.is_some());
    let branches: BTreeSet<(RepoName, BranchName)> =
        with_declaration.map(|source| (source.repo.clone(), source.branch.clone())).collect();
    let asked = branches.into_iter().map(|(repo, branch)| async move {
        let head = ports.forge.branch_head(&repo, &branch).await?;
        Ok(((repo, branch), head))
    });
    stream::iter(asked).buffered(AT_ONCE).try_collect().await
}

/// The declarations that are there, by revision and path.
type Files = BTreeMap<(RepoName, Revision), BTreeMap<RelPath, SourceFile>>;

/// The declarations of apps at the heads of their branches: one question for each head, however many apps share it.
async fn files(ports: &Ports, apps: &[&App], heads: &Heads) -> PortResult<Files> {
    let mut wanted: BTreeMap<(RepoName, Revision), BTreeSet<RelPath>> = BTreeMap::new();
    for source in apps.iter().map(|app| &app.source) {
        let head = heads.get(&(source.repo.clone(), source.branch.clone()));
        if let (Some(path), Some(BranchHead::At(revision))) = (&source.declaration, head) {
            wanted.entry((source.repo.clone(), revision.clone())).or_default().insert(path.clone());
        }
    }
    let asked = wanted.into_iter().map(|((repo, revision), paths)| async move {
        let paths: Vec<RelPath> = paths.into_iter().collect();
        let files = ports.source.read_files(&repo, &revision, &paths).await?;
        let by_path = files.into_iter().map(|file| (file.path.clone(), file)).collect();
        Ok(((repo, revision), by_path))
    });
    stream::iter(asked).buffered(AT_ONCE).try_collect().await
}

/// An app with what it declares, and what is wrong with that by itself.
fn subject(app: &App, heads: &Heads, files: &Files) -> (Subject, Vec<Finding>) {
    let source = &app.source;
    let head = heads.get(&(source.repo.clone(), source.branch.clone()));
    let (declares, findings) = match (&source.declaration, head) {
        (None, _) => (Declares::Nothing, Vec::new()),
        (Some(path), Some(BranchHead::At(revision))) => {
            let there = files.get(&(source.repo.clone(), revision.clone()));
            read(app, revision, there.and_then(|files| files.get(path)))
        }
        (Some(_), Some(BranchHead::NoBranch | BranchHead::NoRepository) | None) => {
            let what = format!("{} has no branch {} that can be read", source.repo, source.branch);
            let registration = layout::registration_of(&app.name).to_string();
            let remedy = "correct spec.source, or give fabrique's read token access";
            (Declares::Unreadable, vec![Finding::of_file(registration, what, remedy)])
        }
    };
    (declared::subject(app, declares), findings)
}

fn read(app: &App, revision: &Revision, file: Option<&SourceFile>) -> (Declares, Vec<Finding>) {
    match file {
        None => declared::declares(app, revision, None),
        Some(SourceFile { kind: FileKind::Symlink | FileKind::Submodule, .. }) => {
            declared::declares_elsewhere(app)
        }
        Some(SourceFile { kind: FileKind::Regular | FileKind::Executable, content, .. }) => {
            declared::declares(app, revision, Some(content))
        }
    }
}
