//! The newest parsed state of `cluster/apps`.

use std::io::Write as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use fabrique_core::app::App;
use fabrique_core::id::{BranchName, Digest, RelPath, RepoName, Revision};
use fabrique_core::work::Seen;
use fabrique_declarations::{Contract, Finding, contract};
use fabrique_gitops::render::Standing;
use fabrique_gitops::{Entry, FileKind, Registrations, Rules, Tree, layout};
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

    /// What there is to be read of an app: its own files, and the contract where the app declares something.
    #[must_use]
    pub fn seen_of(&self, app: &App) -> Seen {
        let mut files = Vec::new();
        for (path, entry) in self.tree.below(&layout::home_of(&app.name)) {
            // Writing to a Vec does not fail.
            let _ = writeln!(files, "{path} {:?} {}", entry.kind, Digest::of(&entry.bytes));
        }
        let contract = app.source.declaration.as_ref().and_then(|_| {
            let path = RelPath::parse(contract::FILE_NAME).ok()?;
            self.tree.read(&path).ok()?.map(|bytes| Digest::of(bytes))
        });
        Seen { files: Digest::of(&files), contract, open: false }
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

    /// The paths that differ between two commits of `cluster/apps`; nothing when one of them is not there, or too many do.
    ///
    /// # Errors
    /// When the repository cannot be read.
    pub async fn changed_since(&self, commit: &Revision, head: &Revision) -> PortResult<Option<Vec<String>>> {
        self.deployments.changed_since(commit, head).await
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
    fn what_is_seen_of_an_app_is_another_once_its_files_or_the_contract_change_and_not_by_those_of_others() {
        let registration = |declaration: &str| {
            format!(
                "apiVersion: fabrique/v1\nkind: App\nmetadata: {{ name: one }}\nspec:\n  source: {{ repo: atlas/one{declaration} \
                 }}\n  image: registry:80/one\n"
            )
        };
        let seen = |declaration: &str, files: &[(&str, &str)]| {
            let registration = registration(declaration);
            let files = [&[("apps/one/app.yaml", registration.as_str())], files].concat();
            let tree = files
                .iter()
                .map(|(path, text)| (RelPath::parse(path).unwrap(), Entry::regular((*text).to_owned())));
            let rules = Rules { registries: vec!["registry:80".to_owned()] };
            let apps = Apps::parse(Revision::parse(&"a".repeat(40)).unwrap(), tree.collect(), &rules);
            assert_eq!(apps.registrations.findings, []);
            apps.seen_of(apps.registrations.apps.values().next().unwrap())
        };
        let (composition, contract) = ("apps/one/prod/composition.yaml", "contract.yaml");
        let before = seen("", &[(composition, "a: 1\n")]);
        assert_ne!(seen("", &[(composition, "a: 2\n")]), before);
        assert_ne!(seen("", &[]), before);
        assert_ne!(seen("", &[(composition, "a: 1\n"), ("apps/one/prod/b", "")]), before);
        let others = [("apps/one-more/prod/composition.yaml", "a: 1\n"), ("applications/one-prod.yaml", "")];
        assert_eq!(seen("", &[&[(composition, "a: 1\n")], &others[..]].concat()), before);
        assert_eq!(
            seen("", &[(composition, "a: 1\n"), (contract, "b: 1\n")]),
            before,
            "it asks for nothing of it"
        );
        let declares = ", declaration: d.yaml";
        let before = seen(declares, &[(contract, "b: 1\n")]);
        let after = seen(declares, &[(contract, "b: 2\n")]);
        assert_eq!(after.files, before.files);
        assert_ne!(after.contract, before.contract);
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
