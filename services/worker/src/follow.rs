//! Compositions that people edited: their bindings, their copy and their Application follow in one commit.
//!
//! A binding that shows something else than its composition has two stories. Either a person changed the binding: then
//! nothing is written until it is repaired. Or a person changed the composition, which is where the desired state stands: then
//! the rest follows. Git tells them apart: the files show what the composition said when one of them changed last.
//!
//! What is rendered follows by the same commit: the Application of an edited registration, and, where the contract moved, what
//! runs before a sync and what the cluster provides. It stops nobody: where it cannot follow, a newer image may be what it waits for.

mod moved;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabrique_core::app::{App, DeployedImage};
use fabrique_core::id::{Channel, EnvironmentName, RelPath};
use fabrique_core::memory::Memory;
use fabrique_core::verdict::Verdict;
use fabrique_core::view::EnvironmentView;
use fabrique_core::work::Seen;
use fabrique_gitops::head::{self, Bindings, EnvironmentHead};
use fabrique_gitops::plan::{self, Lag, Plan, Planned};
use fabrique_gitops::render::{self, Lags, Settings, migrations};
use fabrique_gitops::{Finding, Refusal, Tree, composition, layout};
use fabrique_observer::Apps;
use fabrique_observer::declared::needs_at;
use fabrique_observer::migrations::rendered_at;
use fabrique_observer::overlays::collect;
use fabrique_ports::deployments::Deployments;
use fabrique_ports::registry::Registry;
use fabrique_ports::source::SourceHistory;
use fabrique_ports::{Fault, Peer, PortError, PortResult};

use crate::applications::Along;
use crate::committer::{Refused, Task, Written};
use crate::config::Ports;
use crate::session::Session;
use crate::writeback::{Proposal, Staged};

pub(crate) use moved::Moved;

/// An environment whose files do not show its composition, or may not.
struct Suspect {
    environment: EnvironmentName,
    by: By,
}

/// What makes it one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Bindings that show something else.
    Bindings,
    /// Another revision of the overlay than automation copied last.
    Copy,
    /// What is rendered alone.
    Rendered,
}

/// How an environment follows.
enum Following {
    /// Its files, and its copy where the composition wants another.
    Files(Lag),
    /// Its Application.
    Application,
}

/// One app, and whom to ask about it.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) source: &'a dyn SourceHistory,
    pub(crate) deployments: &'a dyn Deployments,
    pub(crate) registry: &'a dyn Registry,
    pub(crate) apps: &'a Apps,
    pub(crate) app: &'a App,
    pub(crate) render: Option<&'a Settings>,
    /// What is other than at the last look, so that rendered files may show what was before.
    pub(crate) moved: Moved,
}

impl<'a> Ground<'a> {
    pub(crate) fn of(ports: &'a Ports, apps: &'a Apps, app: &'a App, render: Option<&'a Settings>) -> Self {
        let (source, deployments) = (ports.source.as_ref(), ports.deployments.as_ref());
        let registry = ports.registry.as_ref();
        Self { source, deployments, registry, apps, app, render, moved: Moved::default() }
    }
}

/// What became of edited compositions.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// Whether what they left behind was committed.
    pub(crate) landed: bool,
    /// The environments in which it was not, and why: automation leaves them alone.
    left: BTreeMap<EnvironmentName, String>,
    /// A peer that did not answer, or refuses, to be asked again.
    pub(crate) unanswered: Option<PortError>,
    /// Whether something that is rendered could not follow.
    open: bool,
}

impl Followed {
    /// Shows in what was seen of the environments what keeps them as they are.
    pub(crate) fn show_in(&self, environments: &mut [EnvironmentView]) {
        for seen in environments {
            let Some(why) = self.left.get(&seen.name) else { continue };
            seen.image.trouble = Some(why.clone());
            seen.infra.trouble = Some(why.clone());
        }
    }

    /// What a look read, with what it could not have follow.
    pub(crate) fn noted_in(&self, seen: Seen) -> Seen {
        Seen { open: self.open, ..seen }
    }
}

/// What is to follow at a look.
#[derive(Debug, Default)]
struct Wanted {
    /// Environments, and whether files have to: what is rendered is not what a person's word waits for.
    files: BTreeMap<EnvironmentName, bool>,
    /// Whether the files of another one keep what is rendered there from following another contract.
    stuck: bool,
}

impl Wanted {
    /// Takes from what was `refused` what stops its environment, and notes what is left open. Files that follow bring nothing of
    /// another contract along: the look after them does.
    fn left(&self, moved: Moved, refused: &[Refused]) -> (BTreeMap<EnvironmentName, String>, bool) {
        let has_files = |place: &EnvironmentName| self.files.get(place).copied().unwrap_or_default();
        let of_files = refused.iter().filter(|(place, ..)| has_files(place));
        let left = of_files.map(|(place, _, verdict)| (place.clone(), why(verdict))).collect();
        let behind = moved.contract && (self.stuck || self.files.values().any(|files| *files));
        (left, behind || refused.iter().any(|(place, ..)| !has_files(place)))
    }

    /// Those whose files have to follow, and why they do not.
    fn all_left(&self, why: &str) -> BTreeMap<EnvironmentName, String> {
        let files = self.files.iter().filter(|(_, files)| **files);
        files.map(|(place, _)| (place.clone(), why.to_owned())).collect()
    }
}

impl Session {
    /// Has what a person's edit left behind follow. `moved` is what is other than at the last look.
    pub(crate) async fn follow(&mut self, app: &App, apps: &Apps, moved: Moved) -> Followed {
        let context = Arc::clone(&self.context);
        let ground = Ground::of(&context.ports, apps, app, context.config.render.as_ref());
        let ground = Ground { moved, ..ground };
        let suspects = suspects(ground, &self.memory.get().await);
        match self.try_follow(ground, &suspects).await {
            Ok(followed) => followed,
            // Everything else about the app may go on.
            Err(error) => {
                tracing::warn!(app = %app.name, %error, "edited compositions cannot be followed now");
                let why = format!("whether its composition was edited cannot be told now: {error}");
                let of_files = suspects.into_iter().filter(|suspect| suspect.by != By::Rendered);
                let left = of_files.map(|suspect| (suspect.environment, why.clone())).collect();
                Followed { left, unanswered: Some(error), open: true, landed: false }
            }
        }
    }

    async fn try_follow(&mut self, ground: Ground<'_>, suspects: &[Suspect]) -> PortResult<Followed> {
        let wanted = wanted(ground, suspects).await?;
        if wanted.files.is_empty() {
            return Ok(Followed { open: wanted.stuck, ..Followed::default() });
        }
        let (app, mut followed) = (ground.app, Followed::default());
        let task = Task::Follow { moved: ground.moved };
        let refused = match self.context.committer.write(task, Arc::clone(&self.memory)).await? {
            Written::Done { commits, refused, .. } => {
                if let Some(landed) = commits.last() {
                    let commit = landed.commit.short();
                    tracing::info!(app = %app.name, commit, "an edited composition is followed");
                    self.told = None;
                    followed.landed = true;
                }
                refused
            }
            Written::Denied(why) => {
                let why = format!("{why} (check `gitea.apps_token` and what its user may do)");
                let (left, denied) = (wanted.all_left(&why), PortError::new(Peer::Git, Fault::Denied, why));
                return Ok(Followed { left, unanswered: Some(denied), open: true, landed: false });
            }
            // Whoever looks next says so.
            Written::Unregistered(_) | Written::Lost => {
                return Ok(Followed { open: true, ..Followed::default() });
            }
        };
        // The same is told once, however often this session looks.
        if refused != self.unfollowed {
            self.nothing_written(&refused);
        }
        (followed.left, followed.open) = wanted.left(ground.moved, &refused);
        self.unfollowed = refused;
        Ok(followed)
    }
}

/// What has to follow on the state of the ground.
async fn wanted(ground: Ground<'_>, suspects: &[Suspect]) -> PortResult<Wanted> {
    let Ground { apps, app, .. } = ground;
    let mut wanted = Wanted::default();
    for suspect in suspects {
        let files = match following(ground, &apps.tree, suspect).await? {
            Ok(None) => continue,
            Ok(Some(Following::Application)) => false,
            Ok(Some(Following::Files(_))) => true,
            Err(_) => suspect.by != By::Rendered,
        };
        wanted.files.insert(suspect.environment.clone(), files);
    }
    wanted.stuck = ground.moved.contract
        && head::observe(&apps.tree, app).iter().any(|seen| {
            let is_idle = seen.bindings != Bindings::Agree && !wanted.files.contains_key(&seen.environment);
            is_idle && apps.applications().has(&app.name, &seen.environment)
        });
    Ok(wanted)
}

fn why(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Trouble(why) | Verdict::NotReady(why) => why.clone(),
        other => other.to_string(),
    }
}

/// What would follow, on the state of the ground.
pub(crate) async fn propose(ground: Ground<'_>, memory: &Memory) -> PortResult<Proposal> {
    let mut along = Along::of(&ground.app.name, None);
    let mut proposal = Proposal::default();
    let mut tree = ground.apps.tree.clone();
    for suspect in suspects(ground, memory) {
        let environment = suspect.environment.clone();
        let planned = match following(ground, &tree, &suspect).await? {
            Ok(None) => continue,
            Ok(Some(following)) => plan_of(ground, &tree, &environment, following, &mut along).await?,
            Err(refusal) => Err(refusal),
        };
        let applied = planned.and_then(|planned| match planned {
            Some(planned) => tree.apply(&planned.changes).map(|next| Some((planned, next))),
            None => Ok(None),
        });
        match applied {
            Ok(Some((planned, next))) => {
                proposal.staged.push(Staged::by_person(planned));
                tree = next;
            }
            Ok(None) => {}
            Err(refusal) => proposal.refused.push(trouble(environment, Channel::Image, &refusal)),
        }
    }
    proposal.along = Some(along);
    Ok(proposal)
}

/// Takes out of `proposal` what automation would commit to an environment whose edited composition is not followed yet.
/// Its commit would rewrite files beside the composition, and git could not tell any more what the person asked for.
pub(crate) async fn comes_first(
    proposal: &mut Proposal,
    ground: Ground<'_>,
    memory: &Memory,
) -> PortResult<()> {
    let place_of =
        |staged: &Staged| staged.automatic.as_ref().map(|(place, channel, _)| (place.clone(), *channel));
    let staged: BTreeSet<_> = proposal.staged.iter().filter_map(place_of).collect();
    for suspect in suspects(ground, memory) {
        let environment = &suspect.environment;
        let channels: Vec<Channel> =
            staged.iter().filter(|(place, _)| place == environment).map(|(_, channel)| *channel).collect();
        if channels.is_empty() {
            continue;
        }
        let tree = &ground.apps.tree;
        let planned = match following(ground, tree, &suspect).await? {
            Ok(None) => continue,
            // The automatic commit brings it along, and loses no word of the composition. Beside an overlay alone an
            // Application could come to name an image that nobody has; another image takes its place.
            Ok(Some(Following::Application)) => {
                if channels.contains(&Channel::Image) || lags(ground, environment) != Some(Lags::Image) {
                    continue;
                }
                match missing_image(ground, tree, environment).await? {
                    None => continue,
                    Some(refusal) => Err(refusal),
                }
            }
            Ok(Some(files)) => {
                plan_of(ground, tree, environment, files, &mut Along::of(&ground.app.name, None)).await?
            }
            Err(refusal) => Err(refusal),
        };
        let why = match planned {
            // Nothing is left behind that could be lost: the overlay is the same at both revisions.
            Ok(planned) if planned.as_ref().is_none_or(|planned| planned.changes.is_empty()) => continue,
            Ok(_) => "a person edited its composition, and what that left behind follows first".to_owned(),
            Err(refusal) => refusal.to_string(),
        };
        let verdict = Verdict::Trouble(why);
        proposal.staged.retain(|staged| place_of(staged).is_none_or(|(place, _)| place != *environment));
        let refused = channels.into_iter().map(|channel| (environment.clone(), channel, verdict.clone()));
        proposal.refused.extend(refused);
    }
    Ok(())
}

fn trouble(environment: EnvironmentName, channel: Channel, refusal: &Refusal) -> Refused {
    (environment, channel, Verdict::Trouble(refusal.to_string()))
}

/// How the files and the Application of an environment come to show its composition, and what runs before them.
async fn plan_of(
    ground: Ground<'_>,
    tree: &Tree,
    environment: &EnvironmentName,
    following: Following,
    along: &mut Along,
) -> PortResult<Plan> {
    if let Some(missing) = missing_image(ground, tree, environment).await? {
        return Ok(Err(missing));
    }
    let Ground { source, app, .. } = ground;
    let (planned, image) = match following {
        Following::Application => (plan::follow_with_nothing(tree, app, environment).map(Some), true),
        Following::Files(Lag { image, copy: None }) => (plan::follow(tree, app, environment, None), image),
        Following::Files(Lag { image, copy: Some(wanted) }) => {
            let files = collect(source, &wanted.overlay, &wanted.revision).await;
            let files = mended(files, app, environment)?.and_then(|files| files);
            (files.and_then(|files| plan::follow(tree, app, environment, Some(&files))), image)
        }
    };
    let planned = match planned {
        // An overlay that is the same at both revisions: the Application names another one all the same.
        Ok(None) if may_lag(ground, environment) => {
            plan::follow_with_nothing(tree, app, environment).map(Some)
        }
        planned => planned,
    };
    match planned {
        Ok(Some(planned)) if image => {
            let brought = with_needs(ground, tree, environment, planned, along).await;
            Ok(mended(brought, app, environment)?.and_then(|planned| planned).map(Some))
        }
        planned => Ok(planned),
    }
}

/// Adds what the revision of the image has run before it, and has what it asks of the cluster come along.
async fn with_needs(
    ground: Ground<'_>,
    tree: &Tree,
    environment: &EnvironmentName,
    planned: Planned,
    along: &mut Along,
) -> PortResult<Result<Planned, Refusal>> {
    let Ground { source, app, apps, .. } = ground;
    let (Some(settings), Some(image)) = (ground.render, deployed(tree, app, environment)) else {
        return Ok(Ok(planned));
    };
    if let Some(needs) = needs_at(source, app, &image.revision).await? {
        along.here.insert(environment.clone(), needs);
    }
    let Ok(Some(contract)) = &apps.contract else { return Ok(Ok(planned)) };
    let known = (&apps.registrations, contract);
    let rendered = rendered_at(source, &image.revision, tree, known, (app, environment), settings).await?;
    Ok(match rendered {
        Ok(Some(file)) => migrations::along(planned, tree, file),
        Ok(None) => Ok(planned),
        Err(finding) => Err(finding.into()),
    })
}

/// An answer that a person can mend is a refusal of the one environment, since it would come again and stop the whole app.
fn mended<T>(
    answer: PortResult<T>,
    app: &App,
    environment: &EnvironmentName,
) -> PortResult<Result<T, Refusal>> {
    match answer {
        Ok(answer) => Ok(Ok(answer)),
        Err(error) if error.transient() => Err(error),
        Err(error) => {
            let path: RelPath = layout::composition_of(&app.name, environment);
            let remedy = error.advice().unwrap_or("correct what the composition names, or revert the edit");
            Ok(Err(Finding::of_file(path.as_str(), error.finding(), remedy).into()))
        }
    }
}

fn deployed(tree: &Tree, app: &App, environment: &EnvironmentName) -> Option<DeployedImage> {
    composition::load(tree, app, environment).ok()??.image.deployed
}

/// The image that the composition names, where the registry does not have it: a slip of the pen is deployed nowhere.
async fn missing_image(
    ground: Ground<'_>,
    tree: &Tree,
    environment: &EnvironmentName,
) -> PortResult<Option<Refusal>> {
    let app = ground.app;
    let Some(image) = deployed(tree, app, environment) else { return Ok(None) };
    let asked = ground.registry.has(&image.repository, &image.digest).await;
    match mended(asked, app, environment)? {
        Ok(true) => Ok(None),
        Ok(false) => {
            let path = layout::composition_of(&app.name, environment);
            let what = format!("the registry has no {}", image.repository.at(&image.digest));
            let remedy = "name a digest that was built, or revert the edit";
            Ok(Some(Finding::of_file(path.as_str(), what, remedy).into()))
        }
        Err(refusal) => Ok(Some(refusal)),
    }
}

/// How a suspect follows; nothing when it shows its composition after all, or a person changed something else than that.
async fn following(
    ground: Ground<'_>,
    tree: &Tree,
    suspect: &Suspect,
) -> PortResult<Result<Option<Following>, Refusal>> {
    let (app, environment) = (ground.app, &suspect.environment);
    let directory = layout::directory_of(&app.name, environment);
    let file = layout::composition_of(&app.name, environment);
    let then = ground.deployments.when_others_changed(&ground.apps.commit, &directory, &file).await;
    let lag = mended(then, app, environment)?.and_then(|then| match then {
        Some(then) => plan::lag(tree, app, environment, &then),
        None => Ok(None),
    });
    Ok(lag.map(|lag| match lag {
        Some(lag) => Some(Following::Files(lag)),
        None => {
            (suspect.by != By::Bindings && may_lag(ground, environment)).then_some(Following::Application)
        }
    }))
}

/// How the Application does not show what is deployed and registered.
fn lags(ground: Ground<'_>, environment: &EnvironmentName) -> Option<Lags> {
    let Ground { apps, app, render, .. } = ground;
    let known = (&apps.registrations, apps.applications());
    render::lags(&apps.tree, known, (app, environment), render?)
}

/// Whether it is to follow. Of one that shows what is deployed, only what moved tells: another worker, that renders it in another
/// way, would undo what this one writes.
fn may_lag(ground: Ground<'_>, environment: &EnvironmentName) -> bool {
    let Ground { apps, app, render, moved, .. } = ground;
    let is_rendered = || render.is_some() && apps.applications().has(&app.name, environment);
    match lags(ground, environment) {
        Some(Lags::Image | Lags::Overlay) => true,
        Some(Lags::Otherwise) if moved.files => true,
        // What is beside it may show the contract before.
        Some(Lags::Otherwise) | None => moved.contract && is_rendered(),
    }
}

/// The environments that may have something left behind, without asking anybody.
fn suspects(ground: Ground<'_>, memory: &Memory) -> Vec<Suspect> {
    let Ground { apps, app, .. } = ground;
    let suspect = |seen: &EnvironmentHead| {
        let environment = seen.environment.clone();
        let infra = seen.composition.as_ref().ok()?.infra.deployed.as_ref();
        let copied = memory.channel(&environment, Channel::Infra).committed;
        let other_copy = infra.zip(copied).is_some_and(|(infra, copied)| infra.revision != copied.revision);
        match &seen.bindings {
            Bindings::Drift(_) => Some(Suspect { environment, by: By::Bindings }),
            Bindings::Agree if other_copy => Some(Suspect { environment, by: By::Copy }),
            Bindings::Agree => {
                may_lag(ground, &environment).then_some(Suspect { environment, by: By::Rendered })
            }
            Bindings::AwaitOverlay | Bindings::Broken(_) => None,
        }
    };
    head::observe(&apps.tree, app).iter().filter_map(suspect).collect()
}

#[cfg(test)]
mod tests;
