//! The newest parsed state of `cluster/apps`.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use fabrique_core::id::{BranchName, RepoName, Revision};
use fabrique_gitops::{Entry, FileKind, Registrations, Rules, Tree};
use fabrique_ports::PortResult;
use fabrique_ports::deployments::{Deployments, Snapshot, SnapshotFile};
use fabrique_ports::forge::{BranchHead, Forge};
use fabrique_ports::source;

/// `cluster/apps` at one commit, parsed.
#[derive(Debug)]
pub struct Apps {
    /// The commit.
    pub commit: Revision,
    /// Its files.
    pub tree: Tree,
    /// The registrations in them, and what is wrong with the others.
    pub registrations: Registrations,
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
        let registrations = Registrations::load(&tree, &self.rules);
        let apps = Arc::new(Apps { commit: snapshot.commit, tree, registrations });
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
