//! Asking ahead: what a look will want to know, asked for while its caller waits for something else.
//!
//! Nothing is lost when it goes wrong: the look asks again.

use std::time::Duration;

use fabrique_core::app::App;
use fabrique_core::id::{BranchName, RepoName, Revision};
use fabrique_core::relation::{Relation, Watched};
use fabrique_core::view::Step;
use fabrique_ports::forge::{BranchHead, BranchTip};

use crate::apps::Apps;
use crate::gather::Observer;
use crate::watch::WatchedPaths;

/// A build does not wait longer than this for a look at its Dockerfile.
const GLANCE: Duration = Duration::from_secs(1);

/// A branch's head that was asked for ahead.
#[derive(Debug, Clone)]
pub struct Ahead {
    repo: RepoName,
    branch: BranchName,
    head: BranchHead,
    /// What the forge told of the head besides.
    tip: Option<BranchTip>,
    /// The state of `cluster/apps` that was known before the head was asked for.
    base: Revision,
}

impl Ahead {
    /// The head, where it is at another revision than `revision`.
    #[must_use]
    pub fn moved_from(&self, revision: &Revision) -> Option<&Revision> {
        match &self.head {
            BranchHead::At(head) => Some(head).filter(|head| *head != revision),
            BranchHead::NoBranch | BranchHead::NoRepository => None,
        }
    }

    /// The head, if it is one of the branch that `app` is built from.
    pub(crate) fn head_of(&self, app: &App) -> Option<&BranchHead> {
        (self.repo == app.source.repo && self.branch == app.source.branch).then_some(&self.head)
    }

    /// Whether the head was asked for when this state of `cluster/apps` was known already.
    pub(crate) fn is_after(&self, apps: &Apps) -> bool {
        self.base == apps.commit
    }

    /// The step from the head's first parent to it, when some of `paths` are seen to differ. That none do is
    /// never to be seen here: the forge leaves some out.
    pub(crate) fn change(&self, from: &Revision, to: &Revision, paths: &WatchedPaths) -> Option<Step> {
        let tip = self.tip.as_ref()?;
        let is_seen = tip.revision == *to && tip.parents.first() == Some(from) && self.touches(paths);
        is_seen.then(|| Step { from: from.clone(), relation: Relation::Ahead, watched: Watched::Changed })
    }

    /// Whether some of `paths` are seen to differ from the head's first parent.
    pub(crate) fn touches(&self, paths: &WatchedPaths) -> bool {
        self.tip.as_ref().is_some_and(|tip| paths.matter(&tip.touched))
    }
}

impl Observer {
    /// Asks for the head of the app's branch, with what the forge knows of that commit where it tells.
    pub async fn tip_ahead(&self, app: &App, apps: &Apps) -> Option<Ahead> {
        let (repo, branch, base) = (app.source.repo.clone(), app.source.branch.clone(), apps.commit.clone());
        let tip = self.forge.branch_tip(&repo, &branch).await.ok().flatten();
        let head = match &tip {
            Some(tip) => {
                self.known.learn_tip(&repo, tip);
                BranchHead::At(tip.revision.clone())
            }
            None => self.forge.branch_head(&repo, &branch).await.ok()?,
        };
        Some(Ahead { repo, branch, head, tip, base })
    }

    /// The app's Dockerfile at `revision`, for a look at it before a daemon is asked. Nothing where it seems to be
    /// the one of `built`, which a daemon has built, so that most builds cost no request; and nothing where it cannot
    /// be read, since the daemon looks too.
    pub async fn new_dockerfile(
        &self,
        app: &App,
        revision: &Revision,
        built: Option<&Revision>,
    ) -> Option<String> {
        let (repo, path) = (&app.source.repo, app.build.dockerfile_in_repo());
        if built.is_some_and(|built| self.known.seems_same(repo, (built, revision), &path)) {
            return None;
        }
        match tokio::time::timeout(GLANCE, self.forge.file(repo, revision, &path)).await {
            Ok(Ok(file)) => String::from_utf8(file?.content()?).ok(),
            Err(_) => None,
            Ok(Err(error)) => {
                tracing::debug!(app = %app.name, %error, "the Dockerfile was not looked at before the build");
                None
            }
        }
    }

    /// Fetches the commit that a push to the app's source named.
    pub async fn history_ahead(&self, app: &App, named: &Revision) {
        if let Err(error) = self.source.prefetch(&app.source.repo, named).await {
            tracing::debug!(app = %app.name, %error, "the history was not fetched ahead");
        }
    }
}
