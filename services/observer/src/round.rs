//! What was asked for during one look at many apps.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabrique_core::id::{BranchName, RelPath, RepoName, Revision};
use fabrique_ports::PortResult;
use fabrique_ports::forge::{BranchHead, Forge};
use tokio::sync::OnceCell;

/// An answer, once there is one; who asks meanwhile waits for the same.
type Answer = Arc<OnceCell<BranchHead>>;

/// Each branch is asked for once, and so is a declaration that is not there.
#[derive(Default)]
pub(crate) struct Round {
    heads: Mutex<HashMap<(RepoName, BranchName), Answer>>,
    absent: Mutex<HashSet<(RepoName, Revision, RelPath)>>,
}

impl Round {
    pub(crate) async fn head(
        &self,
        forge: &dyn Forge,
        repo: &RepoName,
        branch: &BranchName,
    ) -> PortResult<BranchHead> {
        let cell = Arc::clone(lock(&self.heads).entry((repo.clone(), branch.clone())).or_default());
        cell.get_or_try_init(|| forge.branch_head(repo, branch)).await.cloned()
    }

    /// Whether the forge said that there is no such file.
    pub(crate) fn is_absent(&self, repo: &RepoName, revision: &Revision, path: &RelPath) -> bool {
        lock(&self.absent).contains(&(repo.clone(), revision.clone(), path.clone()))
    }

    pub(crate) fn learn_absent(&self, repo: &RepoName, revision: &Revision, path: &RelPath) {
        lock(&self.absent).insert((repo.clone(), revision.clone(), path.clone()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
