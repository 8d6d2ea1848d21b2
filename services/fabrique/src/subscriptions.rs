//! The registrations, as the receiver asks about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use async_trait::async_trait;
use fabrique_core::id::{AppName, BranchName, RelPath, RepoName};
use fabrique_declarations::contract;
use fabrique_gitops::Tree;
use fabrique_observer::{Apps, AppsReader};
use fabrique_ports::PortResult;
use fabrique_receiver::{Followers, SubscriptionIndex, Subscriptions};

/// Reads registrations from `cluster/apps`.
pub(crate) struct RegisteredApps {
    reader: Arc<AppsReader>,
    repo: RepoName,
    branch: BranchName,
    index: RwLock<SubscriptionIndex>,
    /// What the last reload saw, to tell the next one what changed.
    seen: Mutex<Option<Arc<Apps>>>,
}

impl RegisteredApps {
    pub(crate) fn new(reader: Arc<AppsReader>, repo: RepoName, branch: BranchName) -> Self {
        Self { reader, repo, branch, index: RwLock::default(), seen: Mutex::default() }
    }
}

#[async_trait]
impl Subscriptions for RegisteredApps {
    fn followers(&self, repo: &RepoName, branch: &BranchName) -> Followers {
        self.index.read().unwrap_or_else(PoisonError::into_inner).followers(repo, branch)
    }

    fn is_apps_repo(&self, repo: &RepoName, branch: &BranchName) -> bool {
        repo.same_as(&self.repo) && *branch == self.branch
    }

    fn loaded(&self) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    async fn reload(&self) -> PortResult<BTreeSet<AppName>> {
        let apps = self.reader.read().await?;
        let followed = apps.registrations.apps.values();
        let index = SubscriptionIndex::new(
            followed.map(|app| (app.name.clone(), app.source.repo.clone(), app.source.branch.clone())),
        );
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = index;
        let before = self.seen.lock().unwrap_or_else(PoisonError::into_inner).replace(Arc::clone(&apps));
        Ok(before.map(|before| touched(&before, &apps)).unwrap_or_default())
    }
}

/// The apps whose files differ: registered before, now, or both. What the contract says concerns all that declare
/// something.
fn touched(before: &Apps, now: &Apps) -> BTreeSet<AppName> {
    let changed = differing(&before.tree, &now.tree);
    let mut touched = now.registrations.touching(changed.iter().copied());
    touched.extend(before.registrations.touching(changed.iter().copied()));
    if changed.iter().any(|path| path.as_str() == contract::FILE_NAME) {
        let declaring = now.registrations.apps.values().filter(|app| app.source.declaration.is_some());
        touched.extend(declaring.map(|app| app.name.clone()));
    }
    touched
}

fn differing<'t>(before: &'t Tree, now: &'t Tree) -> BTreeSet<&'t RelPath> {
    let (old, new): (BTreeMap<_, _>, BTreeMap<_, _>) = (before.iter().collect(), now.iter().collect());
    let gone_or_changed =
        old.iter().filter(|(path, entry)| new.get(*path) != Some(*entry)).map(|(path, _)| *path);
    let added = new.keys().filter(|path| !old.contains_key(*path)).copied();
    gone_or_changed.chain(added).collect()
}
