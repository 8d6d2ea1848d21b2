//! Stand-ins for tests of what speaks to these traits: a peer that answers what a test has it answer, and nothing else.
//!
//! Behind the feature `testing`, which is for `[dev-dependencies]` alone.

use async_trait::async_trait;
use fabrique_core::id::{RelPath, RepoName, Revision};
use fabrique_core::relation::Relation;

use crate::source::{ChangedPaths, SourceFile, SourceHistory};
use crate::{Fault, Peer, PortError, PortResult};

/// What a test answers for a path at a revision, whatever the repository.
type Answer<T> = Box<dyn Fn(&Revision, &RelPath) -> PortResult<Option<T>> + Send + Sync>;

/// A source that a test asks for files at the most. What it was given no answer for is an error that no waiting helps.
#[derive(Default)]
pub struct SourceStub {
    directory: Option<Answer<Vec<SourceFile>>>,
    file: Option<Answer<SourceFile>>,
}

impl SourceStub {
    /// Answers [`SourceHistory::read_directory`] too.
    #[must_use]
    pub fn directories(
        mut self,
        answer: impl Fn(&Revision, &RelPath) -> PortResult<Option<Vec<SourceFile>>> + Send + Sync + 'static,
    ) -> Self {
        self.directory = Some(Box::new(answer));
        self
    }

    /// Answers [`SourceHistory::read_file`] too, and by it [`SourceHistory::read_files`].
    #[must_use]
    pub fn files(
        mut self,
        answer: impl Fn(&Revision, &RelPath) -> PortResult<Option<SourceFile>> + Send + Sync + 'static,
    ) -> Self {
        self.file = Some(Box::new(answer));
        self
    }
}

#[async_trait]
impl SourceHistory for SourceStub {
    async fn prefetch(&self, _: &RepoName, _: &Revision) -> PortResult<()> {
        unasked()
    }

    async fn relation(&self, _: &RepoName, _: &Revision, _: &Revision) -> PortResult<Relation> {
        unasked()
    }

    async fn changed_paths(&self, _: &RepoName, _: &Revision, _: &Revision) -> PortResult<ChangedPaths> {
        unasked()
    }

    async fn commit_time(&self, _: &RepoName, _: &Revision) -> PortResult<i64> {
        unasked()
    }

    async fn read_directory(
        &self,
        _: &RepoName,
        revision: &Revision,
        directory: &RelPath,
    ) -> PortResult<Option<Vec<SourceFile>>> {
        self.directory.as_ref().map_or_else(unasked, |answer| answer(revision, directory))
    }

    async fn read_file(
        &self,
        _: &RepoName,
        revision: &Revision,
        path: &RelPath,
    ) -> PortResult<Option<SourceFile>> {
        self.file.as_ref().map_or_else(unasked, |answer| answer(revision, path))
    }

    async fn ancestors(&self, _: &RepoName, _: &Revision, _: &str) -> PortResult<Vec<Revision>> {
        unasked()
    }
}

fn unasked<T>() -> PortResult<T> {
    Err(PortError::new(Peer::Git, Fault::Unexpected, "nobody is to ask for this"))
}
