//! Asking ahead: what a look will want to know, asked for while its caller waits for something else.
//!
//! Nothing here decides, and nothing is lost when it goes wrong: the look asks again.

use std::time::Instant;

use fabrique_core::app::App;
use fabrique_core::build::BuildInputs;
use fabrique_core::id::{BranchName, RepoName, Revision};
use fabrique_core::memory::Memory;
use fabrique_gitops::head::{self, EnvironmentHead};
use fabrique_ports::forge::BranchHead;

use crate::apps::Apps;
use crate::gather::Observer;

/// A branch's head that was asked for ahead.
#[derive(Debug, Clone)]
pub struct Ahead {
    repo: RepoName,
    branch: BranchName,
    head: BranchHead,
    /// The state of `cluster/apps` that was known before the head was asked for.
    base: Revision,
}

impl Ahead {
    /// The head, if it is one of the branch that `app` is built from.
    pub(crate) fn head_of(&self, app: &App) -> Option<&BranchHead> {
        (self.repo == app.source.repo && self.branch == app.source.branch).then_some(&self.head)
    }

    /// Whether the head was asked for when this state of `cluster/apps` was known already.
    pub(crate) fn is_after(&self, apps: &Apps) -> bool {
        self.base == apps.commit
    }
}

impl Observer {
    /// Asks for the head of the app's branch.
    pub async fn head_ahead(&self, app: &App, apps: &Apps) -> Option<Ahead> {
        let (repo, branch, base) = (app.source.repo.clone(), app.source.branch.clone(), apps.commit.clone());
        let head = self.forge.branch_head(&repo, &branch).await.ok()?;
        Some(Ahead { repo, branch, head, base })
    }

    /// Fetches the history of the app's source as it was at `since` or later.
    pub async fn history_ahead(&self, app: &App, since: Instant) {
        if let Err(error) = self.source.refresh(&app.source.repo, since).await {
            tracing::debug!(app = %app.name, %error, "the history was not fetched ahead");
        }
    }

    /// Reads when the head was committed, which its build wants to know.
    pub async fn commit_ahead(&self, app: &App, ahead: &Ahead) {
        if let Some(BranchHead::At(head)) = ahead.head_of(app)
            && let Err(error) = self.commit_time(app, head).await
        {
            tracing::debug!(app = %app.name, %error, "the head was not read ahead");
        }
    }

    /// What a build of the head would be made from, if that head is neither deployed nor built. Whether it is
    /// wanted takes a decision.
    pub async fn unbuilt(
        &self,
        app: &App,
        apps: &Apps,
        memory: &Memory,
        ahead: &Ahead,
    ) -> Option<BuildInputs> {
        let BranchHead::At(head) = ahead.head_of(app)? else { return None };
        let shows_head = |seen: &EnvironmentHead| {
            let deployed = seen.composition.as_ref().ok()?.image.deployed.as_ref()?;
            Some(deployed.revision == *head)
        };
        if head::observe(&apps.tree, app).iter().any(|seen| shows_head(seen) == Some(true)) {
            return None;
        }
        let inputs = BuildInputs::of(app, head, memory.rebuild);
        let recorded = self.records.record(&inputs.key()).await;
        matches!(recorded, Ok(None)).then_some(inputs)
    }
}
