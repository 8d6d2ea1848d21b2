//! The history and files of the apps' repositories.

use async_trait::async_trait;
use bytes::Bytes;
use fabrique_core::id::{RelPath, RepoName, Revision};
use fabrique_core::relation::Relation;

use crate::PortResult;

/// The paths that differ between two trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedPaths {
    /// Exactly these, in the tree's own spelling (which may hold bytes that no [`RelPath`] accepts).
    These(Vec<String>),
    /// It cannot be told: a revision is gone, or there are more than the adapter's bound.
    CannotTell,
}

/// What a tree entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A regular file with the executable bit.
    Executable,
    /// A symbolic link; its content is its target.
    Symlink,
    /// A submodule; it has no content here.
    Submodule,
}

/// One file of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path, relative to the directory that was read.
    pub path: RelPath,
    /// What it is.
    pub kind: FileKind,
    /// Its content.
    pub content: Bytes,
}

/// Reading the apps' repositories. Implementations keep clones; every call has a timeout.
#[async_trait]
pub trait SourceHistory: Send + Sync {
    /// Fetches a revision that is likely to be asked about, so that the questions are answered at once. Nothing
    /// when the forge has no such commit.
    async fn prefetch(&self, repo: &RepoName, revision: &Revision) -> PortResult<()>;

    /// Where `to` stands as seen from `from`. [`Relation::Unknown`] when the repository lacks one of them
    /// after asking the forge for it.
    async fn relation(&self, repo: &RepoName, from: &Revision, to: &Revision) -> PortResult<Relation>;

    /// The paths that differ between the trees of two revisions, whatever their ancestry.
    async fn changed_paths(
        &self,
        repo: &RepoName,
        from: &Revision,
        to: &Revision,
    ) -> PortResult<ChangedPaths>;

    /// The committer's time, in seconds since the epoch: `SOURCE_DATE_EPOCH` of the build.
    async fn commit_time(&self, repo: &RepoName, revision: &Revision) -> PortResult<i64>;

    /// All files below `directory` at `revision`, within the adapter's bounds on count and size.
    /// Nothing when the directory is not there.
    async fn read_directory(
        &self,
        repo: &RepoName,
        revision: &Revision,
        directory: &RelPath,
    ) -> PortResult<Option<Vec<SourceFile>>>;

    /// The one file at `path` at `revision`, within the adapter's bound on size, called by its path from the root.
    /// Nothing when there is no file.
    async fn read_file(
        &self,
        repo: &RepoName,
        revision: &Revision,
        path: &RelPath,
    ) -> PortResult<Option<SourceFile>>;

    /// The files at `paths` at `revision`, as [`SourceHistory::read_file`] has them; those that are not there are left out.
    /// One after the other, where an adapter knows no better.
    async fn read_files(
        &self,
        repo: &RepoName,
        revision: &Revision,
        paths: &[RelPath],
    ) -> PortResult<Vec<SourceFile>> {
        let mut files = Vec::new();
        for path in paths {
            files.extend(self.read_file(repo, revision, path).await?);
        }
        Ok(files)
    }

    /// What a pin can mean: the ancestors of `head`, itself included, whose ids begin with `prefix`, and its newest ones
    /// whatever they begin with. Each once, and a few of each kind: enough to tell one from several, and to name them.
    async fn ancestors(&self, repo: &RepoName, head: &Revision, prefix: &str) -> PortResult<Vec<Revision>>;
}
