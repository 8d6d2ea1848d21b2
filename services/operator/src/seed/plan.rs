//! From what is there to what is to come, in order. Pure: asking and doing is for [`super`].
//!
//! A plan is a function of what is seen, as that of `init` is: what was done is seen and is not to be done again, so that
//! whoever is interrupted begins again and goes on. Where anything stands in the way, nothing at all is done.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fabrique_core::id::{AppName, BuildId, Digest, EnvironmentName, RelPath, Revision};
use serde::Serialize;

use crate::exit::Exit;
use crate::hooks::{EnsuredHook, HookResult};
use crate::secrets::{DerivedSecret, Outcome};

mod root;

pub use root::RootSeen;
use root::{outdated, unapplied};

/// What has to be there, in the order in which it has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The image, by its digest.
    Image,
    /// What the app declares is what the cluster offers.
    Declaration,
    /// The derived secrets that it depends on.
    Secrets,
    /// What is run before its sync.
    Migrations,
    /// Webhook #2 on its source and on `cluster/apps`.
    Webhooks,
    /// The composition that shows the image and the overlay.
    Composition,
    /// The Application that Argo CD deploys it by.
    Application,
}

impl Stage {
    /// All of them, in order.
    pub const ALL: [Stage; 7] = [
        Stage::Image,
        Stage::Declaration,
        Stage::Secrets,
        Stage::Migrations,
        Stage::Webhooks,
        Stage::Composition,
        Stage::Application,
    ];

    /// What people call it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Image => "image",
            Stage::Declaration => "declaration",
            Stage::Secrets => "secrets",
            Stage::Migrations => "migrations",
            Stage::Webhooks => "webhooks",
            Stage::Composition => "composition",
            Stage::Application => "application",
        }
    }
}

/// Everything that a plan is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The environment.
    pub environment: EnvironmentName,
    /// The apps that were named.
    pub apps: Vec<AppSeen>,
    /// The derived secrets that they depend on.
    pub secrets: SecretsSeen,
    /// The webhooks on their sources and on `cluster/apps`.
    pub hooks: Vec<EnsuredHook>,
    /// What Argo CD has of `root.yaml`.
    pub root: RootSeen,
}

/// One app as it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppSeen {
    /// The app.
    pub app: AppName,
    /// The apps that it depends on.
    pub needs: BTreeSet<AppName>,
    /// Those of them that are not deployed in this environment.
    pub undeployed: BTreeSet<AppName>,
    /// What is wrong with its declaration.
    pub findings: Vec<String>,
    /// Why its declaration has it left alone for now.
    pub waits: Vec<String>,
    /// Whether it declares anything.
    pub declares: bool,
    /// How far it has come.
    pub stand: Stand,
    /// What is run before its sync.
    pub migrations: FileSeen,
    /// The file of its Application.
    pub application: FileSeen,
    /// What `root.yaml` lacks for it, where that is [`RootSeen::Outdated`].
    pub lacks: Vec<String>,
    /// What Argo CD makes of it.
    pub deployer: DeployerSeen,
}

/// How far an app has come on its way through a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stand {
    /// What should be built; nothing when there is nothing.
    pub target: Option<Revision>,
    /// The image of its target.
    pub image: ImageSeen,
    /// What its composition shows.
    pub composition: CompositionSeen,
    /// The environment that its image comes from, by a person's word; nothing where it follows builds.
    pub from: Option<EnvironmentName>,
    /// The other environments that follow its builds: a rebuild moves them as well.
    pub others: BTreeSet<EnvironmentName>,
    /// The other environments that a worker moves anyway when it is asked about this one.
    pub moving: BTreeSet<EnvironmentName>,
    /// Why no worker would bring it further, though it is asked, and what helps.
    pub stop: Option<String>,
    /// Why no worker tries any more before it is asked.
    pub used_up: Option<String>,
    /// What is said of it now, for whoever waits.
    pub told: String,
}

/// The image of an app's target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageSeen {
    /// The registry answers for it.
    There(Digest),
    /// It is being built.
    UnderWay(BuildId),
    /// It is not built.
    Missing(Revision),
    /// It is deployed, and the registry has it no more.
    Lost(Digest),
    /// There is nothing to build, for this reason.
    Nothing(String),
}

/// The composition of an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompositionSeen {
    /// It shows what it should, with an image of this revision.
    There(Revision),
    /// A worker is to bring it.
    ToCome,
}

/// A file that workers commit together with an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileSeen {
    /// There is none to be, for this reason.
    None(String),
    /// It is there as it should be.
    There(RelPath),
    /// It is not.
    Differs(RelPath),
    /// It cannot be made, and this says why and what helps.
    Unfit(String),
}

/// What Argo CD makes of an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeployerSeen {
    /// It is not asked.
    Unasked,
    /// It runs what is committed, and that is well.
    Running,
    /// Not yet, and this is what it says.
    Behind(String),
    /// It runs what is committed, and that is not well.
    Degraded(String),
    /// Its sync of what is committed failed, and it tries no more.
    Failed(String),
}

/// The derived secrets that apps depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretsSeen {
    /// The cluster was asked about each.
    Seen(Vec<DerivedSecret>),
    /// There are these, and no cluster is asked.
    Unasked(Vec<String>),
}

/// What is to become of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing: it is as it should be, or there is nothing of it.
    There(String),
    /// Whoever runs this does it.
    Own(String),
    /// A worker does it, and is asked to.
    Asked(String),
    /// Argo CD does it by itself: it is waited for.
    Awaited(String),
    /// A person has to do something first, or somebody has to answer; and how a process ends that this stops.
    Refused(String, Exit),
}

/// A finding that a person has to do something about first.
fn refused(why: impl Into<String>) -> Standing {
    Standing::Refused(why.into(), Exit::Findings)
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// What it is about.
    pub stage: Stage,
    /// The app, the secret or the repository.
    pub subject: String,
    /// What is to become of it.
    pub standing: Standing,
}

/// What a worker is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// To look at the app again, whatever failed before.
    Look,
    /// To build its image anew.
    Build,
    /// For nothing: one is on it.
    Nothing,
}

/// What is to come, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where.
    pub environment: EnvironmentName,
    /// Line by line.
    pub rows: Vec<Row>,
    /// The apps that a worker has to bring further, those that others need first, with what it is asked for.
    pub asks: Vec<(AppName, Ask)>,
    /// The other environments to which workers bring these apps as well.
    pub elsewhere: BTreeSet<EnvironmentName>,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Plan {
    /// Whether a person has to do something before anything is done.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.standing, Standing::Refused(..)))
    }

    /// How a process ends that what stands in the way stops.
    pub fn refusals(&self) -> impl Iterator<Item = Exit> {
        self.rows.iter().filter_map(|row| match row.standing {
            Standing::Refused(_, exit) => Some(exit),
            Standing::There(_) | Standing::Own(_) | Standing::Asked(_) | Standing::Awaited(_) => None,
        })
    }

    /// How many things are to be changed.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.rows.iter().filter(|row| row.standing.is_a_change()).count()
    }

    /// Whether there is nothing to do and nothing to wait for.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rows.iter().all(|row| matches!(row.standing, Standing::There(_)))
    }
}

impl Standing {
    /// Whether something is to be changed.
    #[must_use]
    pub fn is_a_change(&self) -> bool {
        match self {
            Standing::Own(_) | Standing::Asked(_) => true,
            Standing::There(_) | Standing::Awaited(_) | Standing::Refused(..) => false,
        }
    }

    /// The same with one more word.
    fn noting(mut self, note: Option<&str>) -> Self {
        let (Standing::There(what)
        | Standing::Own(what)
        | Standing::Asked(what)
        | Standing::Awaited(what)
        | Standing::Refused(what, _)) = &mut self;
        if let Some(note) = note {
            what.push_str("; ");
            what.push_str(note);
        }
        self
    }

    /// What is said of it.
    #[must_use]
    pub fn what(&self) -> &str {
        match self {
            Standing::There(what)
            | Standing::Own(what)
            | Standing::Asked(what)
            | Standing::Awaited(what)
            | Standing::Refused(what, _) => what,
        }
    }
}

/// What has to be done, in order. With `no_build`, an image that is not there stands in the way.
#[must_use]
pub fn plan(seen: &Seen, no_build: bool) -> Plan {
    let apps = in_order(&seen.apps);
    let mut rows = Vec::new();
    for stage in Stage::ALL {
        let mut add = |subject: String, standing| rows.push(Row { stage, subject, standing });
        match stage {
            Stage::Secrets => secrets(&seen.secrets).into_iter().for_each(|(of, standing)| add(of, standing)),
            Stage::Webhooks => {
                seen.hooks.iter().for_each(|hook| add(hook.repo.to_string(), webhook(hook)));
            }
            Stage::Image
            | Stage::Declaration
            | Stage::Migrations
            | Stage::Composition
            | Stage::Application => {
                for app in &apps {
                    add(app.app.to_string(), of_app(seen, app, stage, no_build));
                }
            }
        }
    }
    let asked = apps.iter().filter(|app| ask(app).is_some());
    let elsewhere = asked.flat_map(|app| app.stand.moving.iter().cloned()).collect();
    let asks = apps.iter().filter_map(|app| Some((app.app.clone(), ask(app)?))).collect();
    Plan { environment: seen.environment.clone(), rows, asks, elsewhere }
}

/// The apps, those that others need first; what is in a circle comes last.
fn in_order(apps: &[AppSeen]) -> Vec<&AppSeen> {
    let mut left: BTreeMap<&AppName, &AppSeen> = apps.iter().map(|app| (&app.app, app)).collect();
    let mut ordered = Vec::new();
    while !left.is_empty() {
        let free =
            |app: &&&AppSeen| app.needs.iter().all(|need| *need == app.app || !left.contains_key(need));
        let next = left.values().find(free).or_else(|| left.values().next()).copied();
        if let Some(next) = next {
            left.remove(&next.app);
            ordered.push(next);
        }
    }
    ordered
}

fn of_app(seen: &Seen, app: &AppSeen, stage: Stage, no_build: bool) -> Standing {
    match stage {
        Stage::Image => image(app, no_build),
        Stage::Declaration => declaration(seen, app),
        Stage::Migrations => migrations(app),
        Stage::Composition => composition(seen, app),
        Stage::Application => application(seen, app),
        Stage::Secrets | Stage::Webhooks => Standing::There(String::new()),
    }
}

fn image(app: &AppSeen, no_build: bool) -> Standing {
    let (missing, coming) = match &app.stand.image {
        ImageSeen::There(digest) => return Standing::There(format!("the registry has {digest}")),
        ImageSeen::Nothing(why) => return refused(why.clone()),
        ImageSeen::UnderWay(build) => (format!("{build} is under way"), format!("{build} is under way")),
        ImageSeen::Missing(revision) => {
            let revision = revision.short();
            (format!("{revision} is not built"), format!("a worker builds {revision}"))
        }
        ImageSeen::Lost(digest) => {
            if let Some(why) = app.stand.not_rebuilt(&app.app) {
                return refused(why);
            }
            let lost = format!("the registry lost {digest}");
            (lost.clone(), format!("{lost}; a worker builds it anew"))
        }
    };
    if no_build {
        return refused(format!("{missing}, and --no-build was said; leave it out to have it built"));
    }
    match &app.stand.stop {
        Some(why) => refused(why.clone()),
        None => Standing::Asked(coming),
    }
}

/// Whether anything of the app is to change: what is declared stops moves and nothing else.
fn moves(app: &AppSeen) -> bool {
    app.stand.composition == CompositionSeen::ToCome || !matches!(app.stand.image, ImageSeen::There(_))
}

fn declaration(seen: &Seen, app: &AppSeen) -> Standing {
    if !app.findings.is_empty() {
        return refused(app.findings.join("; "));
    }
    if !app.waits.is_empty() {
        let why = app.waits.join("; ");
        return if moves(app) { refused(why) } else { Standing::There(format!("waits: {why}")) };
    }
    let along: BTreeSet<&AppName> = seen.apps.iter().map(|app| &app.app).collect();
    let absent: Vec<&str> =
        app.undeployed.iter().filter(|need| !along.contains(need)).map(AppName::as_str).collect();
    if moves(app) && !absent.is_empty() {
        let absent = absent.join(" ");
        let both = format!("fabrique seed {absent} {}", app.app);
        return refused(format!("it depends on {absent}, not deployed here; `{both}` brings both"));
    }
    let what = if app.declares { "fits what the cluster offers" } else { "none: it depends on nothing" };
    Standing::There(what.to_owned())
}

fn secrets(seen: &SecretsSeen) -> Vec<(String, Standing)> {
    match seen {
        SecretsSeen::Unasked(names) => {
            let remedy = "name the cluster in seed.environments";
            let why = || refused(format!("it is derived, and no cluster is asked; {remedy}"));
            names.iter().map(|name| (name.clone(), why())).collect()
        }
        SecretsSeen::Seen(secrets) => {
            let one = |secret: &DerivedSecret| {
                let from = &secret.from;
                let standing = match secret.outcome {
                    Outcome::Unchanged => Standing::There(format!("as {from} has it")),
                    Outcome::Made => Standing::Own(format!("to be made from {from}")),
                    Outcome::Changed => Standing::Own(format!("to follow {from}")),
                    Outcome::Refused => {
                        Standing::Refused(secret.why.clone().unwrap_or_default(), secret.exit)
                    }
                };
                (secret.secret.clone(), standing)
            };
            secrets.iter().map(one).collect()
        }
    }
}

fn webhook(hook: &EnsuredHook) -> Standing {
    match hook.result {
        HookResult::Present => Standing::There(format!("delivers pushes to {}", hook.branch_filter)),
        HookResult::Created => Standing::Own("to be made".to_owned()),
        HookResult::Repaired => Standing::Own(format!("to be repaired: {}", hook.detail)),
        HookResult::NoRepository | HookResult::Failed => Standing::Refused(hook.detail.clone(), hook.exit),
    }
}

fn migrations(app: &AppSeen) -> Standing {
    match &app.migrations {
        FileSeen::None(why) => Standing::There(why.clone()),
        FileSeen::There(file) => Standing::There(format!("{file} runs them before each sync")),
        FileSeen::Differs(file) => committed(app, file),
        FileSeen::Unfit(why) => refused(why.clone()),
    }
}

/// A file that comes in the commit of an image, or that nobody would write.
fn committed(app: &AppSeen, file: &RelPath) -> Standing {
    if moves(app) {
        return Standing::Asked(format!("{file} comes in the commit of the image"));
    }
    let remedy = "`fabrique render --path .` in a checkout of cluster/apps writes it: commit and push that";
    refused(format!("{file} is not as rendered, and no commit of the app is to come; {remedy}"))
}

fn composition(seen: &Seen, app: &AppSeen) -> Standing {
    let file = format!("apps/{}/{}/composition.yaml", app.app, seen.environment);
    match (&app.stand.composition, &app.stand.stop) {
        (CompositionSeen::There(revision), _) => {
            Standing::There(format!("{file} shows {}", revision.short()))
        }
        (CompositionSeen::ToCome, Some(why)) => refused(why.clone()),
        (CompositionSeen::ToCome, None) => {
            let told = |moving| format!("; it is to come to {moving} as well");
            let too = names(&app.stand.moving).map(told).unwrap_or_default();
            Standing::Asked(format!("a worker commits {file}{too}"))
        }
    }
}

fn application(seen: &Seen, app: &AppSeen) -> Standing {
    let (standing, file) = match &app.application {
        FileSeen::Unfit(why) => return refused(why.clone()),
        // Nobody can tell what Argo CD makes of what people keep elsewhere.
        FileSeen::None(why) => return Standing::There(why.clone()),
        FileSeen::Differs(file) => (committed(app, file), file),
        FileSeen::There(file) => (followed(app, file), file),
    };
    if matches!(standing, Standing::Refused(..)) {
        return standing;
    }
    match unapplied(seen.root, app, file) {
        Some(why) => refused(why),
        None => standing.noting(outdated(seen.root)),
    }
}

/// What Argo CD makes of what is committed.
fn followed(app: &AppSeen, file: &RelPath) -> Standing {
    match &app.deployer {
        DeployerSeen::Unasked => Standing::There(format!("{file} is committed; Argo CD is not asked")),
        // What is committed next is what is waited for.
        _ if moves(app) => Standing::Awaited("Argo CD follows what is committed".to_owned()),
        DeployerSeen::Running => Standing::There(format!("{file}: Synced and Healthy")),
        DeployerSeen::Behind(said) | DeployerSeen::Degraded(said) | DeployerSeen::Failed(said) => {
            Standing::Awaited(format!("Argo CD says: {said}"))
        }
    }
}

impl Stand {
    /// Why nobody is asked to build a lost image anew. A rebuild is of the app, and moves every environment that follows its
    /// builds, of which only one was named; and it brings nothing to one that a person moves.
    #[must_use]
    pub fn not_rebuilt(&self, app: &AppName) -> Option<String> {
        let ImageSeen::Lost(digest) = &self.image else { return None };
        if let Some(from) = &self.from {
            return Some(format!(
                "the registry lost {digest}, which came from {from} by a person's word, so that no build brings it; push it \
                 there again, or commit an image that {from} runs now"
            ));
        }
        let others = names(&self.others)?;
        Some(format!(
            "the registry lost {digest}, and building it anew moves {others} as well; `fabrique rebuild {app}` says that \
             this is meant"
        ))
    }
}

/// Environments on one line; nothing where there is none.
fn names(of: &BTreeSet<EnvironmentName>) -> Option<String> {
    let names: Vec<&str> = of.iter().map(EnvironmentName::as_str).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// What a worker is asked for; nothing when there is nothing for it to do.
fn ask(app: &AppSeen) -> Option<Ask> {
    match (&app.stand.image, &app.stand.composition) {
        (ImageSeen::Lost(_), _) => app.stand.not_rebuilt(&app.app).is_none().then_some(Ask::Build),
        (ImageSeen::UnderWay(_), _) => Some(Ask::Nothing),
        (ImageSeen::There(_), CompositionSeen::There(_)) => None,
        _ => Some(Ask::Look),
    }
}

#[cfg(test)]
mod tests;
