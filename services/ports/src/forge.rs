//! The forge's API: heads, commit statuses, webhooks.

use async_trait::async_trait;
use fabrique_core::id::{BranchName, RelPath, RepoName, Revision};

use crate::PortResult;

/// Where a branch points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BranchHead {
    /// At this revision.
    At(Revision),
    /// The repository has no such branch (or no commit at all).
    NoBranch,
    /// There is no such repository, or the token may not see it, which Gitea answers alike.
    NoRepository,
}

/// The commit that a branch points to, as far as one answer of the forge tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchTip {
    /// Its id.
    pub revision: Revision,
    /// Its parents in order.
    pub parents: Vec<Revision>,
    /// The committer's time, in seconds since the epoch.
    pub committed: i64,
    /// Paths that differ from its first parent, or that a commit without parents has. Each of them does differ;
    /// others may be missing, like those that changed their kind, which Gitea leaves out.
    pub touched: Vec<String>,
}

/// The state of a commit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatusState {
    /// Under way.
    Pending,
    /// Well ended.
    Success,
    /// The source is at fault.
    Failure,
    /// Something else is at fault.
    Error,
}

/// One commit status. `context` tells apps apart: `fabrique/build/<app>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitStatus {
    /// Whose status.
    pub context: String,
    /// Its state.
    pub state: StatusState,
    /// One useful sentence; adapters cut it at the forge's limit (255 characters).
    pub description: String,
    /// Where to read more.
    pub link: Option<String>,
}

/// What became of a commit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusOutcome {
    /// It is set.
    Set,
    /// The forge does not know the revision (any more).
    UnknownRevision,
}

/// Reading heads and writing statuses. Every call has a timeout of its own and retries nothing.
#[async_trait]
pub trait Forge: Send + Sync {
    /// Where `branch` points now.
    async fn branch_head(&self, repo: &RepoName, branch: &BranchName) -> PortResult<BranchHead>;

    /// What is at the head of `branch` now; nothing when the forge does not say, for whatever reason.
    async fn branch_tip(&self, repo: &RepoName, branch: &BranchName) -> PortResult<Option<BranchTip>>;

    /// Whether a push brought the commit to a branch, where it may not be any more: how an unknown outcome is read back.
    /// That the forge has the commit says less: it keeps what came with a push that ended before the branch moved.
    async fn was_pushed(&self, repo: &RepoName, revision: &Revision) -> PortResult<bool>;

    /// One file at a revision. Nothing when there is no such file, or no such revision or repository that the token
    /// may see.
    async fn file(
        &self,
        repo: &RepoName,
        revision: &Revision,
        path: &RelPath,
    ) -> PortResult<Option<ForgeFile>>;

    /// Sets a commit status.
    async fn set_status(
        &self,
        repo: &RepoName,
        revision: &Revision,
        status: &CommitStatus,
    ) -> PortResult<StatusOutcome>;
}

/// A file as the forge shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForgeFile {
    /// Its content.
    Content(Vec<u8>),
    /// A symbolic link or a submodule, which is not followed.
    Elsewhere,
}

impl ForgeFile {
    /// Its content, if it has one of its own.
    #[must_use]
    pub fn content(self) -> Option<Vec<u8>> {
        match self {
            ForgeFile::Content(content) => Some(content),
            ForgeFile::Elsewhere => None,
        }
    }
}

/// The webhook that a repository should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedHook {
    /// Where deliveries go. It is also how the hook is recognised, besides a mark that the forge keeps.
    pub url: String,
    /// Which pushes are delivered, as a Gitea branch filter; `*` for all.
    pub branch_filter: String,
}

/// What was found, and done, about a repository's webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookOutcome {
    /// It is as it should be.
    Present,
    /// It was missing and is there now (or would be, in a dry run).
    Created,
    /// It differed in the named ways and is repaired now (or would be). The secret cannot be read back or
    /// changed by Gitea's API, so a hook whose secret may differ is replaced.
    Repaired(Vec<HookDifference>),
    /// There is no such repository, or the token may not see it.
    NoRepository,
}

/// A way in which a webhook differed from the wanted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookDifference {
    /// For people: `its content type was form`.
    pub what: String,
    /// Whether pushes may be lost by it: not sent, sent elsewhere, or refused by the receiver. What does no more than
    /// send one twice, or too many, loses none.
    pub loses: bool,
}

/// A delivery as the forge remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// The forge's id.
    pub id: i64,
    /// Where it delivers to.
    pub url: String,
    /// Whether it is switched on.
    pub active: bool,
}

/// Looking after webhooks: for people, never in the path of a push.
#[async_trait]
pub trait Hooks: Send + Sync {
    /// Makes the repository have exactly one such webhook. With `dry_run` nothing is written.
    async fn ensure_hook(&self, repo: &RepoName, hook: &WantedHook, dry_run: bool)
    -> PortResult<HookOutcome>;

    /// The repository's webhooks; none when the repository is not there.
    async fn hooks(&self, repo: &RepoName) -> PortResult<Vec<Hook>>;

    /// Asks the forge for a test delivery, which is how the delay of webhooks is measured.
    async fn test_delivery(&self, repo: &RepoName, hook: i64) -> PortResult<()>;
}

/// What the configured token may do, for `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgeInfo {
    /// The server's version.
    pub version: String,
    /// The login the token belongs to, where a token was given and accepted.
    pub login: Option<String>,
}

/// What the token may do in one repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RepoRights {
    /// It can be read.
    pub pull: bool,
    /// It can be pushed to.
    pub push: bool,
    /// Its hooks can be changed.
    pub admin: bool,
    /// It is archived, so nobody can push.
    pub archived: bool,
}

/// Asking the forge about itself: for `doctor` and the check at the start.
#[async_trait]
pub trait ForgeInspection: Send + Sync {
    /// Version and login.
    async fn info(&self) -> PortResult<ForgeInfo>;
    /// Rights in a repository; nothing when it is not there.
    async fn rights(&self, repo: &RepoName) -> PortResult<Option<RepoRights>>;
    /// Whether a branch takes pushes of the token's user, whose rights in the repository say nothing of its protection;
    /// nothing when the branch is not there.
    async fn may_push(&self, repo: &RepoName, branch: &BranchName) -> PortResult<Option<bool>>;
}
