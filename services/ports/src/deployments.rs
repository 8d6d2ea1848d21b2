//! `cluster/apps`: read as a snapshot, written by compare-and-swap of its branch.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use fabrique_core::id::{RelPath, Revision};

use crate::PortResult;
use crate::source::FileKind;

/// What fabrique reads of `cluster/apps`, from its root: folders, which end with a slash, and files. A commit that changes
/// anything else is refused.
pub const READ: [&str; 8] = [
    "applications/",
    "apps/",
    "buckets/",
    "contract.yaml",
    "databases/",
    "migrations/",
    "root.yaml",
    "volumes/",
];

/// The files of `cluster/apps` at one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit.
    pub commit: Revision,
    /// Every file of [`READ`], by path from the root.
    pub files: Arc<BTreeMap<RelPath, SnapshotFile>>,
}

/// One file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotFile {
    /// What it is.
    pub kind: FileKind,
    /// Its content.
    pub content: Bytes,
}

/// One commit to make: files that change, and the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCommit {
    /// New content by path, or nothing to delete the file. Every path was checked against the allow-list.
    pub changes: BTreeMap<RelPath, Option<Bytes>>,
    /// The whole message, trailers included.
    pub message: String,
}

/// Commits made locally on top of a base, not pushed yet. Their ids are known before the push, so that an
/// unknown outcome can be read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedPush {
    /// The base that the branch must still be at.
    pub base: Revision,
    /// The commits, oldest first.
    pub commits: Vec<Revision>,
}

/// What became of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushOutcome {
    /// The branch moved from the base to the last commit.
    Pushed,
    /// The branch is not at the base any more: read again, decide again.
    Moved,
    /// The forge refuses for good: protected branch, archived repository, revoked token, a hook's word.
    /// The text is for people.
    Refused(String),
    /// No answer: the commits may or may not have arrived. Read back before anything else.
    Unknown(String),
}

/// Where a commit is found after an unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFate {
    /// In the branch's history.
    OnBranch,
    /// Not in the branch's history.
    OffBranch,
}

/// A commit that automation made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnCommit {
    /// The commit.
    pub commit: Revision,
    /// The whole message, trailers included.
    pub message: String,
}

/// Reading and writing `cluster/apps`.
#[async_trait]
pub trait Deployments: Send + Sync {
    /// The branch's head and its files, fetched now.
    async fn snapshot(&self) -> PortResult<Snapshot>;

    /// The paths that differ between two commits of `cluster/apps`; nothing when one of them is gone.
    async fn changed_since(&self, commit: &Revision, head: &Revision) -> PortResult<Option<Vec<String>>>;

    /// Makes the commits on top of `base` locally.
    async fn prepare(&self, base: &Revision, commits: &[NewCommit]) -> PortResult<PreparedPush>;

    /// Pushes prepared commits if, and only if, the branch is still at their base. After an error it is certain that
    /// they are not on the branch.
    async fn push(&self, prepared: &PreparedPush) -> PortResult<PushOutcome>;

    /// The commits of automation in the history of `head` that touched `directory`, newest first, at most `most`.
    /// They are told by their author, which whoever can push may claim to be: evidence for what was deployed, and
    /// never a permission.
    async fn own_commits(
        &self,
        head: &Revision,
        directory: &RelPath,
        most: u32,
    ) -> PortResult<Vec<OwnCommit>>;

    /// `file` as it was when anything else below `directory` changed last, in the history of `head` as the branch
    /// went; nothing when nothing else ever did, or the file was not there.
    async fn when_others_changed(
        &self,
        head: &Revision,
        directory: &RelPath,
        file: &RelPath,
    ) -> PortResult<Option<Bytes>>;

    /// Whether `commit` is in the history of `head`.
    async fn fate(&self, commit: &Revision, head: &Revision) -> PortResult<CommitFate>;
}
