//! Commits that share a push.

use crate::plan::{Plan, Planned};
use crate::refusal::Refusal;
use crate::tree::Tree;

/// The most commits of one push: Gitea lists five in its webhook, and Argo CD reads the changed files from
/// that list; an app whose file is in an unlisted commit would keep its old manifests.
pub const MAX_COMMITS: usize = 5;

/// What became of a plan that was added to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It is the batch's next commit.
    Commit,
    /// It changes nothing any more.
    Nothing,
    /// The batch is full: push it and begin another.
    Full,
}

/// Up to [`MAX_COMMITS`] commits, each planned on the tree that the one before leaves behind.
#[derive(Debug, Clone)]
pub struct Batch {
    tree: Tree,
    commits: Vec<Planned>,
}

impl Batch {
    /// An empty batch on top of `tree`.
    #[must_use]
    pub fn on(tree: Tree) -> Self {
        Self { tree, commits: Vec::new() }
    }

    /// Plans one more commit. A refused plan leaves the batch as it was.
    ///
    /// # Errors
    /// The plan's refusal.
    pub fn add(&mut self, plan: impl FnOnce(&Tree) -> Plan) -> Result<Added, Refusal> {
        if self.commits.len() >= MAX_COMMITS {
            return Ok(Added::Full);
        }
        let Some(planned) = plan(&self.tree)? else { return Ok(Added::Nothing) };
        self.tree = self.tree.apply(&planned.changes)?;
        self.commits.push(planned);
        Ok(Added::Commit)
    }

    /// The tree after the last commit.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The commits, oldest first.
    #[must_use]
    pub fn into_commits(self) -> Vec<Planned> {
        self.commits
    }
}
