//! Comparing revisions of one repository, each pair at most once.
//!
//! Two commits stand to each other as they do for ever, so what was found is kept from look to look: the guard
//! at a commit asks what the decision to build asked a moment before, and a sweep asks what the one before did.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabrique_core::id::{RepoName, Revision};
use fabrique_core::relation::{Relation, Watched};
use fabrique_core::view::Step;
use fabrique_ports::PortResult;
use fabrique_ports::source::{ChangedPaths, SourceHistory};
use tokio::sync::OnceCell;

use crate::recent::Recent;
use crate::watch::WatchedPaths;

/// Comparisons that are kept, of each kind: some MiB, and enough for some thousand apps.
const KEPT: usize = 8192;
/// A longer list of paths is not kept.
const FEW_PATHS: usize = 100;

type Pair = (Revision, Revision);
type Place = (RepoName, Revision, Revision);

/// What all looks found so far.
pub(crate) struct Known {
    times: Mutex<Recent<(RepoName, Revision), i64>>,
    relations: Mutex<Recent<Place, Relation>>,
    changes: Mutex<Recent<Place, ChangedPaths>>,
}

impl Default for Known {
    fn default() -> Self {
        let (relations, changes) = (Recent::new(KEPT / 2), Recent::new(KEPT / 2));
        let times = Mutex::new(Recent::new(KEPT / 2));
        Self { times, relations: Mutex::new(relations), changes: Mutex::new(changes) }
    }
}

impl Known {
    /// Keeps what somebody else told of a commit.
    pub(crate) fn learn_time(&self, repo: &RepoName, revision: &Revision, time: i64) {
        lock(&self.times).insert((repo.clone(), revision.clone()), time);
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
