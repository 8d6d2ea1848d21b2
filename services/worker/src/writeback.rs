//! Planning the commits of one app on a tree, under the guard.

use std::collections::{BTreeMap, BTreeSet};

use fabrique_core::app::{App, DeployedImage, DeployedInfra, Environment};
use fabrique_core::id::{AppName, BuildId, BuildKey, Channel, Digest, EnvironmentName, Revision};
use fabrique_core::memory::{Committed, Memory, RefusedCommit};
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::{Candidate, Verdict, judge_image, judge_infra};
use fabrique_core::view::{Declared, EnvironmentView};
use fabrique_gitops::batch::MAX_COMMITS;
use fabrique_gitops::plan::{self, Plan, Planned};
use fabrique_gitops::{Tree, composition};
use fabrique_observer::CandidateView;
use fabrique_observer::overlays::collect;
use fabrique_ports::PortResult;
use fabrique_ports::source::SourceHistory;

use crate::applications::Along;
use crate::committer::Refused;
use crate::unregistered::Unregistered;

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
    /// Why there is nothing to propose, where the app is not among the registered ones.
    pub(crate) unregistered: Option<Unregistered>,
    /// Commits, in the order to be chained.
    pub(crate) staged: Vec<Staged>,
    /// Channels that the composition already shows: nothing to commit, but the memory may have to learn it.
    pub(crate) shown: Vec<(EnvironmentName, Channel, Committed)>,
    /// Channels that were refused, and why.
    pub(crate) refused: Vec<Refused>,
    /// Those of them that only a person or another commit can change, for the memory.
    pub(crate) to_remember: Vec<(EnvironmentName, Channel, RefusedCommit)>,
    /// Whether the image is to be committed to more environments than the push has room for.
    pub(crate) image_cut: bool,
    /// What Applications are rendered with, where they come along: on the tree that the commits go onto.
    pub(crate) along: Option<Along>,
    /// Those that came too early, each with the registered apps that have to be deployed first.
    pub(crate) early: BTreeMap<(EnvironmentName, Channel), BTreeSet<AppName>>,
    /// What automation judged; nothing for a person's word.
    pub(crate) judged: Option<Judged>,
}

/// The revisions that a proposal is about.
#[derive(Debug, Clone)]
pub(crate) struct Judged {
    pub(crate) image: Option<Revision>,
    pub(crate) overlay: Revision,
}

impl Proposal {
    /// Keeps as many commits as a push may carry. The others are left for the next look.
    pub(crate) fn cut(&mut self) {
        let rest = self.staged.split_off(self.staged.len().min(MAX_COMMITS));
        let of_image = |cut: &Staged| matches!(cut.automatic, Some((_, Channel::Image, _)));
        self.image_cut = rest.iter().any(of_image);
    }

    /// The image that it would deploy, if any.
    pub(crate) fn image(&self) -> Option<&Digest> {
        self.staged.iter().find_map(|staged| match staged.automatic.as_ref()? {
            (_, Channel::Image, committed) => committed.digest.as_ref(),
            (_, Channel::Infra, _) => None,
        })
    }

    /// Notes what was refused on `base`: the image of one revision, the overlay of another.
    pub(crate) fn note_refusals(&mut self, base: &Revision) {
        let Some(Judged { image, overlay }) = &self.judged else { return };
        let refused_commit = |(environment, channel, verdict): &Refused| {
            let (Verdict::Trouble(why) | Verdict::NotReady(why)) = verdict else { return None };
            let waits = matches!(verdict, Verdict::NotReady(_));
            let awaits = self.early.get(&(environment.clone(), *channel));
            // What is declared may change without a commit, and is read again each time.
            if waits && awaits.is_none() {
                return None;
            }
            let awaits = awaits.cloned().unwrap_or_default();
            let revision = match channel {
                Channel::Image => image.clone()?,
                Channel::Infra => overlay.clone(),
            };
            let refused = RefusedCommit { revision, base: base.clone(), why: why.clone(), waits, awaits };
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
    let Some(target) = &view.target else {
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
                (seen, *candidate, &view.declared),
                (memory, now),
            );
        }
        let released = memory.released.as_ref() == Some(target);
        let has_image = shows_image(&tree, app, environment);
        if judge_infra(seen, has_image, released, &view.declared) == Verdict::Advance {
            tree = propose_infra(&mut proposal, source, tree, app, environment, (target, now)).await?;
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
    (seen, candidate, declared): (&EnvironmentView, Candidate, &Declared),
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
    match judge_image(seen, candidate, released, declared) {
        Verdict::Advance => {}
        Verdict::UpToDate if seen.image.digest.as_ref() == Some(&image.digest) => {
            proposal.shown.push((name, Channel::Image, committed));
            return tree;
        }
        // Whoever put another image of this revision there meant it. It is not deployed, though it is up to date.
        Verdict::UpToDate => {
            let other = Verdict::OtherImage { revision: image.revision.clone() };
            proposal.refused.push((name, Channel::Image, other));
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
    (revision, now): (&Revision, Timestamp),
) -> PortResult<Tree> {
    let Some(overlay) = environment.infra.overlay() else { return Ok(tree) };
    let name = environment.name.clone();
    let committed = Committed { commit: None, revision: revision.clone(), digest: None, key: None };
    let infra = DeployedInfra { overlay: overlay.clone(), revision: revision.clone() };
    let planned = collect(source, overlay, revision)
        .await?
        .and_then(|files| plan::advance_infra(&tree, app, &environment.name, &files, &infra, now));
    Ok(stage(proposal, tree, name, Channel::Infra, committed, planned))
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

#[cfg(test)]
mod tests {
    use fabrique_core::id::AppName;
    use fabrique_gitops::message::{CommitMessage, Trailers};
    use fabrique_gitops::{Changes, Scope};

    use super::*;

    fn staged(channel: Channel) -> Staged {
        let (environment, revision) = (EnvironmentName::parse("prod").unwrap(), "a".repeat(40));
        let trailers = Trailers::of(&AppName::parse("citation").unwrap());
        let message = CommitMessage::new("Deploy", "", trailers);
        let revision = Revision::parse(&revision).unwrap();
        let committed = Committed { commit: None, revision, digest: None, key: None };
        let planned = Planned { changes: Changes::within(Scope::Applications), message };
        Staged { planned, automatic: Some((environment, channel, committed)) }
    }

    #[test]
    fn an_image_with_commits_beyond_a_push_is_known_to_have_some_left() {
        use Channel::{Image, Infra};
        for (channels, is_cut) in [
            (vec![Image; MAX_COMMITS], false),
            (vec![Image; MAX_COMMITS + 1], true),
            (vec![Image, Infra, Image, Infra, Image, Infra], false),
            (vec![Image, Infra, Image, Infra, Infra, Infra, Image], true),
            (vec![], false),
        ] {
            let staged: Vec<Staged> = channels.iter().copied().map(staged).collect();
            let mut proposal = Proposal { staged, ..Proposal::default() };
            proposal.cut();
            assert_eq!(proposal.staged.len(), channels.len().min(MAX_COMMITS));
            assert_eq!(proposal.image_cut, is_cut, "{channels:?}");
        }
    }
}
