//! Comparing revisions of one repository, each pair at most once.
//!
//! Two commits stand to each other as they do for ever, so what was found is kept from look to look: the guard
//! at a commit asks what the decision to build asked a moment before, and a sweep asks what the one before did.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabrique_core::id::{RelPath, RepoName, Revision};
use fabrique_core::relation::{Relation, Watched};
use fabrique_core::view::Step;
use fabrique_declarations::name::RevisionPrefix;
use fabrique_declarations::pin::PinRefusal;
use fabrique_ports::PortResult;
use fabrique_ports::forge::BranchTip;
use fabrique_ports::source::{ChangedPaths, SourceHistory};
use tokio::sync::OnceCell;

use crate::declared::Read;
use crate::recent::Recent;
use crate::watch::WatchedPaths;

/// The beginning of an id, at a head.
type PinAt = (RepoName, Revision, RevisionPrefix);
/// The revision that it means there, or why it means none.
type Resolved = Result<Revision, PinRefusal>;

/// Comparisons that are kept, of each kind: some MiB, and enough for some thousand apps.
const KEPT: usize = 8192;
/// Declarations that are kept: each is some KiB.
const DECLARATIONS: usize = 4096;
/// A longer list of paths is not kept.
const FEW_PATHS: usize = 100;

type Pair = (Revision, Revision);
type Place = (RepoName, Revision, Revision);

/// What all looks found so far.
pub(crate) struct Known {
    times: Mutex<Recent<(RepoName, Revision), i64>>,
    relations: Mutex<Recent<Place, Relation>>,
    changes: Mutex<Recent<Place, ChangedPaths>>,
    /// What the forge told of a commit and its first parent. It may leave paths out.
    told: Mutex<Recent<Place, Arc<[String]>>>,
    declarations: Mutex<Recent<(RepoName, Revision, RelPath), Arc<Read>>>,
    /// What the beginning of an id means at a head.
    pins: Mutex<Recent<PinAt, Resolved>>,
}

impl Default for Known {
    fn default() -> Self {
        let (relations, changes) = (Recent::new(KEPT / 2), Recent::new(KEPT / 2));
        let times = Mutex::new(Recent::new(KEPT / 2));
        let told = Mutex::new(Recent::new(KEPT / 2));
        let declarations = Mutex::new(Recent::new(DECLARATIONS / 2));
        let pins = Mutex::new(Recent::new(DECLARATIONS / 2));
        Self {
            times,
            relations: Mutex::new(relations),
            changes: Mutex::new(changes),
            told,
            declarations,
            pins,
        }
    }
}

impl Known {
    /// Keeps what somebody else told of a commit.
    pub(crate) fn learn_time(&self, repo: &RepoName, revision: &Revision, time: i64) {
        lock(&self.times).insert((repo.clone(), revision.clone()), time);
    }

    /// Keeps what the forge told of a branch's head.
    pub(crate) fn learn_tip(&self, repo: &RepoName, tip: &BranchTip) {
        self.learn_time(repo, &tip.revision, tip.committed);
        if let Some(parent) = tip.parents.first().filter(|_| tip.touched.len() <= FEW_PATHS) {
            let place = (repo.clone(), parent.clone(), tip.revision.clone());
            lock(&self.told).insert(place, tip.touched.as_slice().into());
        }
    }

    /// Whether `path` seems to be the same in two revisions, by what was found or told before. For what may be skipped
    /// where that is wrong: the forge leaves out paths.
    pub(crate) fn seems_same(
        &self,
        repo: &RepoName,
        (from, to): (&Revision, &Revision),
        path: &RelPath,
    ) -> bool {
        let place = (repo.clone(), from.clone(), to.clone());
        if let Some(ChangedPaths::These(paths)) = lock(&self.changes).get(&place) {
            return !paths.iter().any(|changed| changed == path.as_str());
        }
        let told = lock(&self.told).get(&place);
        told.is_some_and(|touched| !touched.iter().any(|changed| changed == path.as_str()))
    }

    /// What was read of a declaration at `head`.
    pub(crate) fn declaration(&self, repo: &RepoName, head: &Revision, path: &RelPath) -> Option<Arc<Read>> {
        lock(&self.declarations).get(&(repo.clone(), head.clone(), path.clone()))
    }

    /// Keeps what was read of one.
    pub(crate) fn learn_declaration(
        &self,
        repo: &RepoName,
        head: &Revision,
        path: &RelPath,
        read: &Arc<Read>,
    ) {
        lock(&self.declarations).insert((repo.clone(), head.clone(), path.clone()), Arc::clone(read));
    }

    /// What a pin was found to mean at `head`.
    pub(crate) fn pin(&self, repo: &RepoName, head: &Revision, prefix: &RevisionPrefix) -> Option<Resolved> {
        lock(&self.pins).get(&(repo.clone(), head.clone(), prefix.clone()))
    }

    /// Keeps what one means: of a head, nothing changes.
    pub(crate) fn learn_pin(
        &self,
        repo: &RepoName,
        head: &Revision,
        prefix: &RevisionPrefix,
        resolved: &Resolved,
    ) {
        lock(&self.pins).insert((repo.clone(), head.clone(), prefix.clone()), resolved.clone());
    }

    /// When a commit was made, in seconds of Unix time.
    pub(crate) async fn commit_time(
        &self,
        source: &dyn SourceHistory,
        repo: &RepoName,
        revision: &Revision,
    ) -> PortResult<i64> {
        let place = (repo.clone(), revision.clone());
        let known = lock(&self.times).get(&place);
        if let Some(time) = known {
            return Ok(time);
        }
        let time = source.commit_time(repo, revision).await?;
        lock(&self.times).insert(place, time);
        Ok(time)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The comparisons made while one app is looked at. What asks for the same pair meanwhile waits for one answer.
pub(crate) struct Comparison<'a> {
    source: &'a dyn SourceHistory,
    repo: &'a RepoName,
    known: &'a Known,
    relations: Once<Relation>,
    changes: Once<ChangedPaths>,
}

/// What was found, or is being looked for, for each pair.
type Once<T> = Mutex<HashMap<Pair, Arc<OnceCell<T>>>>;

fn cell<T>(cells: &Once<T>, from: &Revision, to: &Revision) -> Arc<OnceCell<T>> {
    Arc::clone(lock(cells).entry((from.clone(), to.clone())).or_default())
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(source: &'a dyn SourceHistory, repo: &'a RepoName, known: &'a Known) -> Self {
        Self { source, repo, known, relations: Once::default(), changes: Once::default() }
    }

    /// Where `to` stands as seen from `from`.
    pub(crate) async fn relation(&self, from: &Revision, to: &Revision) -> PortResult<Relation> {
        if from == to {
            return Ok(Relation::Same);
        }
        let relation = cell(&self.relations, from, to);
        relation.get_or_try_init(|| self.ask_relation(from, to)).await.copied()
    }

    async fn ask_relation(&self, from: &Revision, to: &Revision) -> PortResult<Relation> {
        let place = self.place(from, to);
        let known = lock(&self.known.relations).get(&place);
        if let Some(relation) = known {
            return Ok(relation);
        }
        let relation = self.source.relation(self.repo, from, to).await?;
        // A revision that is missing now may be there at the next look.
        if relation != Relation::Unknown {
            lock(&self.known.relations).insert(place, relation);
        }
        Ok(relation)
    }

    /// The step from `from` to `to`. Trees are compared only where the outcome depends on them.
    pub(crate) async fn step(
        &self,
        from: &Revision,
        to: &Revision,
        paths: &WatchedPaths,
    ) -> PortResult<Step> {
        let relation = self.relation(from, to).await?;
        let watched = match relation {
            Relation::Same => Watched::Unchanged,
            Relation::Unknown => Watched::Changed,
            Relation::Ahead | Relation::Behind | Relation::Diverged => {
                let changed = cell(&self.changes, from, to);
                paths.judge(changed.get_or_try_init(|| self.ask_changes(from, to)).await?)
            }
        };
        Ok(Step { from: from.clone(), relation, watched })
    }

    async fn ask_changes(&self, from: &Revision, to: &Revision) -> PortResult<ChangedPaths> {
        let place = self.place(from, to);
        let known = lock(&self.known.changes).get(&place);
        if let Some(paths) = known {
            return Ok(paths);
        }
        let paths = self.source.changed_paths(self.repo, from, to).await?;
        if matches!(&paths, ChangedPaths::These(paths) if paths.len() <= FEW_PATHS) {
            lock(&self.known.changes).insert(place, paths.clone());
        }
        Ok(paths)
    }

    fn place(&self, from: &Revision, to: &Revision) -> Place {
        (self.repo.clone(), from.clone(), to.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_seems_the_same_between_a_head_and_its_parent_unless_somebody_told_otherwise() {
        let known = Known::default();
        let repo = RepoName::parse("atlas/atlas").unwrap();
        let path = |path: &str| RelPath::parse(path).unwrap();
        let revision = |digit: &str| Revision::parse(&digit.repeat(40)).unwrap();
        let (old, new, other) = (revision("1"), revision("2"), revision("3"));
        let same = |from, to, file: &str| known.seems_same(&repo, (from, to), &path(file));
        assert!(!same(&old, &new, "Dockerfile"), "nobody told");
        let touched = vec!["app/message".to_owned(), "other/Dockerfile".to_owned()];
        let tip = BranchTip { revision: new.clone(), parents: vec![old.clone()], committed: 0, touched };
        known.learn_tip(&repo, &tip);
        assert!(same(&old, &new, "Dockerfile"));
        assert!(!same(&old, &new, "other/Dockerfile"));
        assert!(!same(&other, &new, "Dockerfile"), "nobody told of these two");
        // What git itself found goes before.
        let found = ChangedPaths::These(vec!["Dockerfile".to_owned()]);
        lock(&known.changes).insert((repo.clone(), old.clone(), new.clone()), found);
        assert!(!same(&old, &new, "Dockerfile"));
        let many =
            BranchTip { parents: vec![other.clone()], touched: vec!["x".to_owned(); FEW_PATHS + 1], ..tip };
        known.learn_tip(&repo, &many);
        assert!(!same(&other, &new, "Dockerfile"), "too many to keep");
    }
}
