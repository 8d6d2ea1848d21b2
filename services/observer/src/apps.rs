//! The newest parsed state of `cluster/apps`.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use fabrique_core::id::Revision;
use fabrique_gitops::{Entry, FileKind, Registrations, Rules, Tree};
use fabrique_ports::PortResult;
use fabrique_ports::deployments::{Deployments, Snapshot, SnapshotFile};
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
    newest: Mutex<Option<Arc<Apps>>>,
}

impl AppsReader {
    /// A reader under `rules`.
    #[must_use]
    pub fn new(deployments: Arc<dyn Deployments>, rules: Rules) -> Self {
        Self { deployments, rules, newest: Mutex::new(None) }
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
