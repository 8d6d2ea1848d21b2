//! Asking ahead: what a look will want to know, asked for while its caller waits for something else.
//!
//! Nothing here decides, and nothing is lost when it goes wrong: the look asks again.

use fabrique_core::app::App;
use fabrique_core::id::{BranchName, RepoName, Revision};
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

    /// Fetches the commit that a push to the app's source named.
    pub async fn history_ahead(&self, app: &App, named: &Revision) {
        if let Err(error) = self.source.prefetch(&app.source.repo, named).await {
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
}
