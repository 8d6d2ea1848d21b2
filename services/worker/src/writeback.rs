//! Planning the commits of one app on a tree, under the guard.

use fabrique_core::app::{App, DeployedImage, DeployedInfra, Environment, OverlaySource};
use fabrique_core::id::{BuildId, BuildKey, Channel, Digest, EnvironmentName, Revision};
use fabrique_core::memory::{Committed, Memory, RefusedCommit};
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::{Candidate, Verdict, judge_image, judge_infra};
use fabrique_core::view::EnvironmentView;
use fabrique_gitops::overlay::{Collector, OverlayFiles};
use fabrique_gitops::plan::{self, Plan, Planned};
use fabrique_gitops::{Refusal, Tree, composition};
use fabrique_observer::{CandidateView, entry};
use fabrique_ports::PortResult;
use fabrique_ports::source::SourceHistory;

use crate::committer::Refused;

/// A finished image that asks to be deployed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) revision: Revision,
    pub(crate) key: BuildKey,
    pub(crate) build: BuildId,
    pub(crate) digest: Digest,
}

/// One planned commit and what the memory will know of it.
#[derive(Debug, Clone)]
pub(crate) struct Staged {
    pub(crate) planned: Planned,
    /// What automation will remember; nothing for a commit by a person's word, which is never its own.
    pub(crate) automatic: Option<(EnvironmentName, Channel, Committed)>,
}

impl Staged {
    /// A commit in a person's name.
    pub(crate) fn by_person(planned: Planned) -> Self {
        Self { automatic: None, planned }
    }
}

/// What an app's write-back would do on a tree.
#[derive(Debug, Clone, Default)]
pub(crate) struct Proposal {
    /// The app is not registered any more, so there is nothing to propose.
    pub(crate) unregistered: bool,
    /// Commits, in the order to be chained.
    pub(crate) staged: Vec<Staged>,
    /// Channels that the composition already shows: nothing to commit, but the memory may have to learn it.
    pub(crate) shown: Vec<(EnvironmentName, Channel, Committed)>,
    /// Channels that were refused, and why.
    pub(crate) refused: Vec<Refused>,
    /// Those of them that only a person can change, for the memory.
    pub(crate) to_remember: Vec<(EnvironmentName, Channel, RefusedCommit)>,
}

impl Proposal {
    /// The image that it would deploy, if any.
    pub(crate) fn image(&self) -> Option<&Digest> {
        self.staged.iter().find_map(|staged| match staged.automatic.as_ref()? {
            (_, Channel::Image, committed) => committed.digest.as_ref(),
            (_, Channel::Infra, _) => None,
        })
    }

    /// Notes what was refused on `base`: the image of one revision, the overlay of another.
    pub(crate) fn note_refusals(&mut self, image: Option<&Revision>, overlay: &Revision, base: &Revision) {
        let refused_commit = |(environment, channel, verdict): &Refused| {
            let Verdict::Trouble(why) = verdict else { return None };
            let revision = match channel {
                Channel::Image => image?.clone(),
                Channel::Infra => overlay.clone(),
            };
            let refused = RefusedCommit { revision, base: base.clone(), why: why.clone() };
            Some((environment.clone(), *channel, refused))
        };
        self.to_remember = self.refused.iter().filter_map(refused_commit).collect();
    }
}

/// Plans every commit of `app` that the guard lets through, chained on `tree`.
pub(crate) async fn propose(
    source: &dyn SourceHistory,
    tree: &Tree,
    app: &App,
    image: Option<&Image>,
    view: &CandidateView,
    (memory, now): (&Memory, Timestamp),
) -> PortResult<Proposal> {
    let mut proposal = Proposal::default();
    let Some(head) = &view.head else {
        let gone = |e: &Environment| (e.name.clone(), Channel::Image, Verdict::OffBranch);
        proposal.refused.extend(app.environments.iter().map(gone));
        return Ok(proposal);
    };
    let mut tree = tree.clone();
    for (seen, candidate) in &view.environments {
        let Some(environment) = app.environments.iter().find(|e| e.name == seen.name) else { continue };
        if let Some(image) = image {
            tree = propose_image(
                &mut proposal,
                tree,
                app,
                environment,
                image,
                (seen, *candidate),
                (memory, now),
            );
        }
        let released = memory.released.as_ref() == Some(head);
        let has_image = shows_image(&tree, app, environment);
        if judge_infra(seen, has_image, released) == Verdict::Advance {
            tree = propose_infra(&mut proposal, source, tree, app, environment, (head, now)).await?;
        }
    }
    Ok(proposal)
}

fn propose_image(
    proposal: &mut Proposal,
    tree: Tree,
    app: &App,
    environment: &Environment,
    image: &Image,
    (seen, candidate): (&EnvironmentView, Candidate),
    (memory, now): (&Memory, Timestamp),
) -> Tree {
    let released = memory.released.as_ref() == Some(&image.revision);
    let committed = Committed {
        commit: None,
        revision: image.revision.clone(),
        digest: Some(image.digest.clone()),
        key: Some(image.key.clone()),
    };
    let name = environment.name.clone();
    match judge_image(seen, candidate, released) {
        Verdict::Advance => {}
        Verdict::UpToDate if seen.image.digest.as_ref() == Some(&image.digest) => {
            proposal.shown.push((name, Channel::Image, committed));
            return tree;
        }
        Verdict::NotAutomatic => return tree,
        refused => {
            proposal.refused.push((name, Channel::Image, refused));
            return tree;
        }
    }
    let deployed = DeployedImage {
        repository: app.image.clone(),
        digest: image.digest.clone(),
        revision: image.revision.clone(),
        version: None,
        build: Some(image.build.clone()),
    };
    let planned = plan::deploy_image(&tree, app, &environment.name, &deployed, Some(&image.key), now);
    stage(proposal, tree, name, Channel::Image, committed, planned)
}

async fn propose_infra(
    proposal: &mut Proposal,
    source: &dyn SourceHistory,
    tree: Tree,
    app: &App,
    environment: &Environment,
    (head, now): (&Revision, Timestamp),
) -> PortResult<Tree> {
    let Some(overlay) = environment.infra.overlay() else { return Ok(tree) };
    let name = environment.name.clone();
    let committed = Committed { commit: None, revision: head.clone(), digest: None, key: None };
    let infra = DeployedInfra { overlay: overlay.clone(), revision: head.clone() };
    let planned = collect(source, overlay, head)
        .await?
        .and_then(|files| plan::advance_infra(&tree, app, &environment.name, &files, &infra, now));
    Ok(stage(proposal, tree, name, Channel::Infra, committed, planned))
}

/// The overlay at `revision` with everything that it reaches.
async fn collect(
    source: &dyn SourceHistory,
    overlay: &OverlaySource,
    revision: &Revision,
) -> PortResult<Result<OverlayFiles, Refusal>> {
    let mut collector = Collector::new(overlay.path.clone());
    loop {
        let directory = match collector.next() {
            Ok(Some(directory)) => directory,
            Ok(None) => return Ok(collector.finish()),
            Err(refusal) => return Ok(Err(refusal)),
        };
        let files = source.read_directory(&overlay.repo, revision, &directory).await?;
        let files = files.unwrap_or_default().into_iter();
        collector.add(directory, files.map(|file| (file.path, entry(file.kind, file.content))));
    }
}

/// Adds a plan to the proposal and returns the tree that follows it.
fn stage(
    proposal: &mut Proposal,
    tree: Tree,
    environment: EnvironmentName,
    channel: Channel,
    committed: Committed,
    planned: Plan,
) -> Tree {
    let applied = planned.and_then(|planned| match planned {
        Some(planned) => tree.apply(&planned.changes).map(|next| Some((planned, next))),
        None => Ok(None),
    });
    match applied {
        Ok(Some((planned, next))) => {
            proposal.staged.push(Staged { planned, automatic: Some((environment, channel, committed)) });
            next
        }
        Ok(None) => {
            proposal.shown.push((environment, channel, committed));
            tree
        }
        Err(refusal) => {
            proposal.refused.push((environment, channel, Verdict::Trouble(refusal.to_string())));
            tree
        }
    }
}

fn shows_image(tree: &Tree, app: &App, environment: &Environment) -> bool {
    matches!(composition::load(tree, app, &environment.name), Ok(Some(c)) if c.image.deployed.is_some())
}
