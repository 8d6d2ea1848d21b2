//! The commit statuses of an app: given to its target, and closed wherever one was left pending.

use std::collections::BTreeSet;

use fabrique_core::app::{App, Environment, ImageFrom};
use fabrique_core::decision::{Action, Decision};
use fabrique_core::id::{AppName, Channel, EnvironmentName, RepoName, Revision};
use fabrique_core::memory::{Memory, Reported};
use fabrique_core::verdict::Verdict;
use fabrique_core::view::{Target, View};
use fabrique_ports::forge::{CommitStatus, StatusOutcome, StatusState};

use crate::committer::Refused;
use crate::lease::Fence;
use crate::session::Session;
use crate::status;
use crate::writeback::Image;

/// How many commits of an app are remembered whose status is not final: enough for everything that is under way, and
/// not for each head of an app whose statuses the forge refuses for good. A further one gets its final status only:
/// nobody would close a pending one after its worker.
const MOST_OPEN: usize = 16;

/// Notes that the status of a commit has to become final. What is open in a repository that the app was built from before
/// is forgotten: it had its chance when the source moved. Says whether it is noted: a pending status that is not may not
/// be set.
pub(crate) fn open_status(memory: &mut Memory, repo: &RepoName, revision: &Revision) -> bool {
    if memory.source.as_ref() != Some(repo) {
        memory.pending_statuses.clear();
        memory.source = Some(repo.clone());
    }
    if memory.pending_statuses.len() < MOST_OPEN {
        memory.pending_statuses.insert(revision.clone());
    }
    memory.pending_statuses.contains(revision)
}

impl Session {
    /// Gives the target its commit status, and closes those that earlier builds left pending. A status that
    /// cannot be set is no reason to stop: the next look tries again.
    pub(crate) async fn report(&self, app: &App, view: &View, decision: &Decision) {
        self.report_declaration(app, view).await;
        let memory = self.memory.get().await;
        let target = match &view.target {
            Target::At { revision, .. } => Some(revision),
            Target::Nothing(_) => None,
        };
        let link = || self.context.config.link.clone();
        let settled = matches!(decision.action, Action::Nothing);
        if let Some(revision) = target {
            let (shown, digest) = status::as_shown(decision, view, memory.built.as_ref());
            match status::settled(app, &shown, &view.declared, digest.as_ref(), link()) {
                Some(status) => self.give_status(app, revision, &status, &memory).await,
                None if settled && memory.pending_statuses.contains(revision) => {
                    let nothing = status::not_needed(&app.name, &decision.reason, link());
                    self.close_status(app, revision, &nothing).await;
                }
                None => {}
            }
        }
        let memory = self.memory.get().await;
        // What is left in another repository is closed there, or not at all.
        if memory.source.as_ref().is_some_and(|source| *source != app.source.repo) {
            return;
        }
        let status = status::superseded(&app.name, target, link());
        for left in memory.pending_statuses.iter().filter(|left| Some(*left) != target) {
            self.close_status(app, left, &status).await;
        }
    }

    /// Gives the head the status of its declaration unless it has it already. It is always a final one: nothing is left
    /// to be closed.
    pub(crate) async fn report_declaration(&self, app: &App, view: &View) {
        let Some(head) = &view.head else { return };
        let Some(status) = status::declaration(app, view, self.context.config.link.clone()) else { return };
        let reported = Reported { revision: head.clone(), description: status.description.clone() };
        let known = self.memory.get().await.declared;
        if known.as_ref() != Some(&reported) && self.set_status(&app.source.repo, head, &status).await {
            self.note(move |memory| memory.declared = Some(reported.clone())).await;
        }
    }

    /// Gives a target its status unless it has it already.
    async fn give_status(&self, app: &App, revision: &Revision, status: &CommitStatus, memory: &Memory) {
        let reported = Reported { revision: revision.clone(), description: status.description.clone() };
        if memory.reported.as_ref() == Some(&reported) {
            return;
        }
        let is_pending = status.state == StatusState::Pending;
        // Noted before it is set: whoever comes after a crash is to close it.
        if is_pending && !self.may_be_pending(app, revision).await {
            return;
        }
        let is_set = self.set_status(&app.source.repo, revision, status).await;
        let open = !is_set || is_pending;
        self.note(move |memory| {
            // What is opened, or could not be set, is given its final status in the end, by whomever.
            if open {
                open_status(memory, &app.source.repo, &reported.revision);
            } else {
                memory.pending_statuses.remove(&reported.revision);
            }
            // What the forge shows after a failure is not known.
            memory.reported = is_set.then(|| reported.clone());
        })
        .await;
    }

    /// Whether a pending status of this revision is noted, so that somebody closes it.
    async fn may_be_pending(&self, app: &App, revision: &Revision) -> bool {
        let noted = |memory: &mut Memory| {
            open_status(memory, &app.source.repo, revision);
        };
        match self.memory.update(noted).await {
            Ok(memory) => memory.pending_statuses.contains(revision),
            Err(error) => {
                tracing::warn!(app = %app.name, %error, "the memory was not updated");
                false
            }
        }
    }

    /// Closes what was left pending in a repository that the app is not built from any more.
    pub(crate) async fn leave_source(&self, app: &App) {
        let memory = self.memory.get().await;
        let Some(left) = memory.source.filter(|source| *source != app.source.repo) else { return };
        let status = status::moved(&app.name, &app.source.repo, self.context.config.link.clone());
        let mut open = BTreeSet::new();
        for revision in memory.pending_statuses {
            if !self.set_status(&left, &revision, &status).await {
                open.insert(revision);
            }
        }
        let source = if open.is_empty() { app.source.repo.clone() } else { left };
        self.note(move |memory| {
            memory.pending_statuses.clone_from(&open);
            memory.source = Some(source.clone());
        })
        .await;
    }

    /// Closes the pending status of a revision.
    pub(crate) async fn close_status(&self, app: &App, revision: &Revision, status: &CommitStatus) {
        if self.set_status(&app.source.repo, revision, status).await {
            self.note(|memory| {
                memory.pending_statuses.remove(revision);
            })
            .await;
        }
    }

    /// Closes the status of a build that went through the completion path, whatever is the target by now.
    pub(crate) async fn close_built(&self, app: &App, image: &Image, refused: &[Refused]) {
        let places = places(app, refused);
        let status = status::completed(app, &places, &image.digest, self.context.config.link.clone());
        let memory = self.memory.get().await;
        self.give_status(app, &image.revision, &status, &memory).await;
    }

    pub(crate) async fn set_status(
        &self,
        repo: &RepoName,
        revision: &Revision,
        status: &CommitStatus,
    ) -> bool {
        let app = self.memory.app();
        if let Some(pending) = self.pending.lock().await.take()
            && let Err(error) = pending.gone().await
        {
            tracing::error!(%app, %error, "setting the pending status panicked");
        }
        if !may_set(app, &self.lease.fence()).await {
            return false;
        }
        match self.context.ports.forge.set_status(repo, revision, status).await {
            Ok(StatusOutcome::Set | StatusOutcome::UnknownRevision) => true,
            Err(error) => {
                tracing::warn!(%app, %revision, %error, "the commit status was not set");
                false
            }
        }
    }

    pub(crate) async fn note(&self, change: impl Fn(&mut Memory) + Send + Sync) {
        if let Err(error) = self.memory.update(change).await {
            tracing::warn!(app = %self.memory.app(), %error, "the memory was not updated");
        }
    }
}

/// What a finished image came to in each environment.
fn places(app: &App, refused: &[Refused]) -> Vec<(EnvironmentName, Verdict)> {
    let place = |environment: &Environment| {
        let of_image =
            |(name, channel, _): &&Refused| *name == environment.name && *channel == Channel::Image;
        let verdict = match (refused.iter().find(of_image), &environment.image) {
            (Some((_, _, verdict)), _) => verdict.clone(),
            (None, ImageFrom::Build) => Verdict::UpToDate,
            // Nobody asks for a commit there.
            (None, ImageFrom::Environment(_)) => Verdict::NotAutomatic,
        };
        (environment.name.clone(), verdict)
    };
    app.environments.iter().map(place).collect()
}

/// Whether a commit status may be set: who was stopped for longer than its lease would hide what its successor has told
/// since.
pub(crate) async fn may_set(app: &AppName, fence: &Fence) -> bool {
    match fence.holds().await {
        Ok(true) => true,
        Ok(false) => {
            tracing::info!(%app, "no commit status is set: the app is another worker's by now");
            false
        }
        Err(error) => {
            tracing::warn!(%app, %error, "the commit status was not set: whose the app is cannot be told");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(number: usize) -> Revision {
        Revision::parse(&format!("{number:040x}")).unwrap()
    }

    #[test]
    fn open_statuses_are_of_one_repository_and_bounded() {
        let [left, repo] = ["atlas/left", "atlas/right"].map(|name| RepoName::parse(name).unwrap());
        let mut memory = Memory::default();
        open_status(&mut memory, &left, &revision(100));
        for number in 1..100 {
            open_status(&mut memory, &repo, &revision(number));
        }
        assert_eq!(memory.source, Some(repo));
        assert_eq!(memory.pending_statuses, (1..=MOST_OPEN).map(revision).collect());
    }

    #[test]
    fn a_status_may_be_pending_only_while_somebody_is_to_close_it() {
        let repo = RepoName::parse("atlas/citation").unwrap();
        let mut memory = Memory::default();
        for number in 1..=MOST_OPEN {
            assert!(open_status(&mut memory, &repo, &revision(number)));
        }
        assert!(!open_status(&mut memory, &repo, &revision(MOST_OPEN + 1)), "nobody would close it");
        assert!(open_status(&mut memory, &repo, &revision(1)), "it is noted already");
        memory.pending_statuses.remove(&revision(2));
        assert!(open_status(&mut memory, &repo, &revision(MOST_OPEN + 1)), "there is room again");
    }
}
