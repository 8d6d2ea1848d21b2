//! The commit statuses of an app: given to its target, and closed wherever one was left pending.

use fabrique_core::app::App;
use fabrique_core::decision::{Action, Decision};
use fabrique_core::id::{Channel, RepoName, Revision};
use fabrique_core::memory::{Memory, Reported};
use fabrique_core::view::{Target, View};
use fabrique_ports::forge::{CommitStatus, StatusOutcome, StatusState};

use crate::attend::Attendance;
use crate::committer::Refused;
use crate::status;
use crate::writeback::Image;

impl Attendance {
    /// Gives the target its commit status, and closes those that earlier builds left pending. A status that
    /// cannot be set is no reason to stop: the next look tries again.
    pub(crate) async fn report(&self, app: &App, view: &View, decision: &Decision) {
        let memory = self.memory.get().await;
        let target = match &view.target {
            Target::At { revision, .. } => Some(revision),
            Target::Nothing(_) => None,
        };
        if let Some(revision) = target {
            let digest = memory.built.as_ref().map(|built| &built.digest);
            if let Some(status) = status::settled(app, decision, digest, self.shop.config.link.clone()) {
                self.give_status(app, revision, &status, &memory).await;
            }
        }
        let status = status::superseded(&app.name, target, self.shop.config.link.clone());
        for left in self.memory.get().await.pending_statuses.iter().filter(|left| Some(*left) != target) {
            self.close_status(app, left, &status).await;
        }
        let settled = matches!(decision.action, Action::Nothing);
        if let Some(revision) = target.filter(|target| settled && memory.pending_statuses.contains(*target)) {
            let nothing = status::not_needed(&app.name, &decision.reason, self.shop.config.link.clone());
            if self.memory.get().await.pending_statuses.contains(revision) {
                self.close_status(app, revision, &nothing).await;
            }
        }
    }

    /// Gives a target its status unless it has it already.
    async fn give_status(&self, app: &App, revision: &Revision, status: &CommitStatus, memory: &Memory) {
        let reported = Reported { revision: revision.clone(), description: status.description.clone() };
        if memory.reported.as_ref() == Some(&reported)
            || !self.set_status(&app.source.repo, revision, status).await
        {
            return;
        }
        let open = status.state == StatusState::Pending;
        self.note(move |memory| {
            // What is opened is closed in the end, whoever opened it.
            if open {
                memory.pending_statuses.insert(reported.revision.clone());
                memory.source = Some(app.source.repo.clone());
            } else {
                memory.pending_statuses.remove(&reported.revision);
            }
            memory.reported = Some(reported.clone());
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
        let status = match refused.iter().find(|(_, channel, _)| *channel == Channel::Image) {
            None => status::deployed(app, &image.digest, self.shop.config.link.clone()),
            Some((_, _, verdict)) => {
                status::built_only(&app.name, &image.digest, verdict, self.shop.config.link.clone())
            }
        };
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
        match self.shop.ports.forge.set_status(repo, revision, status).await {
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
