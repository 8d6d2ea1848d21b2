//! Comparing revisions of one repository, each pair at most once.

use std::collections::HashMap;

use fabrique_core::id::{RepoName, Revision};
use fabrique_core::relation::{Relation, Watched};
use fabrique_core::view::Step;
use fabrique_ports::PortResult;
use fabrique_ports::source::{ChangedPaths, SourceHistory};
use tokio::sync::Mutex;

use crate::watch::WatchedPaths;

type Pair = (Revision, Revision);

/// The comparisons made while one app is looked at.
pub(crate) struct Comparison<'a> {
    source: &'a dyn SourceHistory,
    repo: &'a RepoName,
    relations: Mutex<HashMap<Pair, Relation>>,
    changes: Mutex<HashMap<Pair, ChangedPaths>>,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(source: &'a dyn SourceHistory, repo: &'a RepoName) -> Self {
        Self { source, repo, relations: Mutex::default(), changes: Mutex::default() }
    }

    /// Where `to` stands as seen from `from`.
    pub(crate) async fn relation(&self, from: &Revision, to: &Revision) -> PortResult<Relation> {
        if from == to {
            return Ok(Relation::Same);
        }
        let mut known = self.relations.lock().await;
        let pair = (from.clone(), to.clone());
        if let Some(relation) = known.get(&pair) {
            return Ok(*relation);
        }
        let relation = self.source.relation(self.repo, from, to).await?;
        known.insert(pair, relation);
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
        let mut known = self.changes.lock().await;
        let pair = (from.clone(), to.clone());
        if let Some(paths) = known.get(&pair) {
            return Ok(paths.clone());
        }
        let paths = self.source.changed_paths(self.repo, from, to).await?;
        known.insert(pair, paths.clone());
        Ok(paths)
    }
}
