//! Heads that were asked for during one look at many apps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fabrique_core::id::{BranchName, RepoName};
use fabrique_ports::PortResult;
use fabrique_ports::forge::{BranchHead, Forge};
use tokio::sync::OnceCell;

/// An answer, once there is one; who asks meanwhile waits for the same.
type Answer = Arc<OnceCell<BranchHead>>;

/// Each branch is asked for once.
#[derive(Default)]
pub(crate) struct Heads(Mutex<HashMap<(RepoName, BranchName), Answer>>);

impl Heads {
    pub(crate) async fn ask(
        &self,
        forge: &dyn Forge,
        repo: &RepoName,
        branch: &BranchName,
    ) -> PortResult<BranchHead> {
        let cell = {
            let mut heads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(heads.entry((repo.clone(), branch.clone())).or_default())
        };
        cell.get_or_try_init(|| forge.branch_head(repo, branch)).await.cloned()
    }
}
