//! Comparing revisions of one repository, each pair at most once.
//!
//! Two commits stand to each other as they do for ever, so what was found is kept from look to look: the guard
//! at a commit asks what the decision to build asked a moment before, and a sweep asks what the one before did.

use std::collections::HashMap;
use std::sync::{Mutex as StdMutex, MutexGuard, PoisonError};

use fabrique_core::id::{RepoName, Revision};
use fabrique_core::relation::{Relation, Watched};
use fabrique_core::view::Step;
use fabrique_ports::PortResult;
use fabrique_ports::source::{ChangedPaths, SourceHistory};
use tokio::sync::Mutex;

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
    times: StdMutex<Recent<(RepoName, Revision), i64>>,
    relations: StdMutex<Recent<Place, Relation>>,
    changes: StdMutex<Recent<Place, ChangedPaths>>,
}

impl Default for Known {
    fn default() -> Self {
        let (relations, changes) = (Recent::new(KEPT / 2), Recent::new(KEPT / 2));
        let times = StdMutex::new(Recent::new(KEPT / 2));
        Self { times, relations: StdMutex::new(relations), changes: StdMutex::new(changes) }
    }
}

impl Known {
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

fn lock<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The comparisons made while one app is looked at.
pub(crate) struct Comparison<'a> {
    source: &'a dyn SourceHistory,
    repo: &'a RepoName,
    known: &'a Known,
    relations: Mutex<HashMap<Pair, Relation>>,
    changes: Mutex<HashMap<Pair, ChangedPaths>>,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(source: &'a dyn SourceHistory, repo: &'a RepoName, known: &'a Known) -> Self {
        Self { source, repo, known, relations: Mutex::default(), changes: Mutex::default() }
    }

    /// Where `to` stands as seen from `from`.
    pub(crate) async fn relation(&self, from: &Revision, to: &Revision) -> PortResult<Relation> {
        if from == to {
            return Ok(Relation::Same);
        }
        let mut relations = self.relations.lock().await;
        let pair = (from.clone(), to.clone());
        if let Some(relation) = relations.get(&pair) {
            return Ok(*relation);
        }
        let place = self.place(from, to);
        let known = lock(&self.known.relations).get(&place);
        let relation = match known {
            Some(relation) => relation,
            None => self.source.relation(self.repo, from, to).await?,
        };
        // A revision that is missing now may be there at the next look.
        if relation != Relation::Unknown {
            lock(&self.known.relations).insert(place, relation);
        }
        relations.insert(pair, relation);
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
                paths.judge(&self.changed(from, to).await?)
            }
        };
        Ok(Step { from: from.clone(), relation, watched })
    }

    async fn changed(&self, from: &Revision, to: &Revision) -> PortResult<ChangedPaths> {
        let mut changes = self.changes.lock().await;
        let pair = (from.clone(), to.clone());
        if let Some(paths) = changes.get(&pair) {
            return Ok(paths.clone());
        }
        let place = self.place(from, to);
        let known = lock(&self.known.changes).get(&place);
        let paths = match known {
            Some(paths) => paths,
            None => self.source.changed_paths(self.repo, from, to).await?,
        };
        if matches!(&paths, ChangedPaths::These(paths) if paths.len() <= FEW_PATHS) {
            lock(&self.known.changes).insert(place, paths.clone());
        }
        changes.insert(pair, paths.clone());
        Ok(paths)
    }

    fn place(&self, from: &Revision, to: &Revision) -> Place {
        (self.repo.clone(), from.clone(), to.clone())
    }
}
