//! The newest parsed state of `cluster/apps`.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use fabrique_core::id::{BranchName, RepoName, Revision};
use fabrique_declarations::{Contract, Finding};
use fabrique_gitops::render::Standing;
use fabrique_gitops::{Entry, FileKind, Registrations, Rules, Tree};
use fabrique_ports::PortResult;
use fabrique_ports::deployments::{Deployments, Snapshot, SnapshotFile};
use fabrique_ports::forge::{BranchHead, Forge};
use fabrique_ports::source;

use crate::declared::contract_of;

/// `cluster/apps` at one commit, parsed.
#[derive(Debug)]
pub struct Apps {
    /// The commit.
    pub commit: Revision,
    /// Its files.
    pub tree: Tree,
    /// The registrations in them, and what is wrong with the others.
    pub registrations: Registrations,
    /// What the cluster offers, if it says so, or what is wrong with that.
    pub contract: Result<Option<Contract>, Vec<Finding>>,
    applications: OnceLock<Standing>,
}

impl Apps {
    /// Parses the files of one commit.
    #[must_use]
    pub fn parse(commit: Revision, tree: Tree, rules: &Rules) -> Self {
        let registrations = Registrations::load(&tree, rules);
        let contract = contract_of(&tree);
        Self { commit, tree, registrations, contract, applications: OnceLock::new() }
    }

    /// The Applications in its files, read at the first call.
    pub fn applications(&self) -> &Standing {
        self.applications.get_or_init(|| Standing::of(&self.tree))
    }

    /// Reads the Applications as those of `before` were, where they were: only what changed since.
    fn follow(&self, before: &Self) {
        if let Some(known) = before.applications.get() {
            self.applications.get_or_init(|| known.on(&self.tree));
        }
    }
}

/// Reads `cluster/apps`; parses it only when its head moved.
pub struct AppsReader {
    deployments: Arc<dyn Deployments>,
    rules: Rules,
    place: Option<Place>,
    newest: Mutex<Option<Arc<Apps>>>,
}

/// Where the branch can be asked about.
struct Place {
    forge: Arc<dyn Forge>,
    repo: RepoName,
    branch: BranchName,
}

impl AppsReader {
    /// A reader under `rules`.
    #[must_use]
    pub fn new(deployments: Arc<dyn Deployments>, rules: Rules) -> Self {
        Self { deployments, rules, place: None, newest: Mutex::new(None) }
    }

    /// Asks `forge` where the branch is, where that is enough.
    #[must_use]
    pub fn asking(mut self, forge: Arc<dyn Forge>, repo: RepoName, branch: BranchName) -> Self {
        self.place = Some(Place { forge, repo, branch });
        self
    }

    /// The state at the head of the branch, asked of the forge now.
    ///
    /// # Errors
    /// When the forge cannot be asked.
    pub async fn read(&self) -> PortResult<Arc<Apps>> {
        let snapshot = self.deployments.snapshot().await?;
        if let Some(newest) = self.last_read().filter(|apps| apps.commit == snapshot.commit) {
            return Ok(newest);
        }
        let tree = tree_of(&snapshot);
        let apps = Arc::new(Apps::parse(snapshot.commit, tree, &self.rules));
        if let Some(before) = self.last_read() {
            apps.follow(&before);
        }
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&apps));
        Ok(apps)
    }

    /// The same, without fetching anything when the forge's API says that the head is what was read last. For a
    /// caller whose writes are refused if that answer is late.
    ///
    /// # Errors
    /// As [`AppsReader::read`].
    pub async fn read_if_moved(&self) -> PortResult<Arc<Apps>> {
        let Some((known, place)) = self.last_read().zip(self.place.as_ref()) else {
            return self.read().await;
        };
        match place.forge.branch_head(&place.repo, &place.branch).await {
            Ok(BranchHead::At(head)) if head == known.commit => Ok(known),
            Ok(_) | Err(_) => self.read().await,
        }
    }

    /// What was read last, however old.
    #[must_use]
    pub fn last_read(&self) -> Option<Arc<Apps>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn tree_of(snapshot: &Snapshot) -> Tree {
    let entry = |file: &SnapshotFile| entry(file.kind, file.content.clone());
    snapshot.files.iter().map(|(path, file)| (path.clone(), entry(file))).collect()
}

/// A file of a repository, as plans see it.
#[must_use]
pub fn entry(kind: source::FileKind, bytes: Bytes) -> Entry {
    let kind = match kind {
        source::FileKind::Regular => FileKind::Regular,
        source::FileKind::Executable => FileKind::Executable,
        source::FileKind::Symlink => FileKind::Symlink,
        source::FileKind::Submodule => FileKind::Submodule,
    };
    Entry { kind, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apps(commit: char, files: &[(&str, &str)]) -> Apps {
        let files = files.iter().map(|(path, text)| {
            (fabrique_core::id::RelPath::parse(path).unwrap(), Entry::regular((*text).to_owned()))
        });
        let commit = Revision::parse(&commit.to_string().repeat(40)).unwrap();
        Apps::parse(commit, files.collect(), &Rules { registries: Vec::new() })
    }

    #[test]
    fn applications_are_read_once_for_each_head_and_of_the_next_one_only_what_changed() {
        let (one, two) = (("applications/one.yaml", "kind: A\n"), ("applications/two.yaml", "kind: A\n"));
        let first = apps('a', &[one, two, ("apps/README.md", "")]);
        assert_eq!(first.applications().files_read(), 2);
        assert!(std::ptr::eq(first.applications(), first.applications()));
        let next = apps('b', &[one, (two.0, "kind: B\n"), ("applications/three.yaml", "")]);
        next.follow(&first);
        assert_eq!(next.applications().files_read(), 2);
        // Where nobody renders, nobody reads them.
        let (idle, after) = (apps('c', &[one]), apps('d', &[one, two]));
        after.follow(&idle);
        assert!(after.applications.get().is_none());
    }
}
