//! Where sources are validated before they come here: GitHub, the mirrors of it on the forge, and what is known of both.

use std::time::Duration;

use async_trait::async_trait;
use fabrique_core::id::{AppName, BranchName, RepoName, Revision};
use fabrique_core::time::Timestamp;
use fabrique_core::upstream::{Results, UpstreamState};

use crate::PortResult;

/// An answer of a server that counts requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked<T> {
    /// What it said.
    Answer(T),
    /// It said nothing: there were too many requests, and the next is welcome at this time.
    Limited {
        /// When.
        until: Timestamp,
    },
}

/// The newest commits of a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BranchLine {
    /// The head, its first parent, the first parent of that, and so on: what the branch was at, one after another. What
    /// came in by a merge is not among them, since it never was the head.
    At(Vec<Revision>),
    /// There is no such branch, or nothing is on it.
    NoBranch,
    /// There is no such repository, or the token may not see it.
    NoRepository,
}

/// GitHub, as the job that may reach it asks.
#[async_trait]
pub trait Origin: Send + Sync {
    /// The newest commits of a branch, at most `most` of them.
    async fn line(&self, repo: &RepoName, branch: &BranchName, most: usize) -> PortResult<Asked<BranchLine>>;

    /// Whether a revision is the head of a branch or an ancestor of it.
    async fn contains(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        revision: &Revision,
    ) -> PortResult<Asked<bool>>;

    /// What check runs and commit statuses say of a revision.
    async fn results(&self, repo: &RepoName, revision: &Revision) -> PortResult<Asked<Results>>;
}

/// What is known of each app's source on GitHub: written by the job that asks there, read by everybody else.
#[async_trait]
pub trait Upstreams: Send + Sync {
    /// What is known for an app; nothing before it was asked about.
    async fn upstream(&self, app: &AppName) -> PortResult<Option<UpstreamState>>;
    /// Replaces it. Durable when it returns.
    async fn put_upstream(&self, app: &AppName, state: &UpstreamState) -> PortResult<()>;
}

/// A pull mirror as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedMirror {
    /// The repository on the forge.
    pub repo: RepoName,
    /// What it is cloned from, without credentials.
    pub from: String,
    /// How long its first clone may take: one that is older goes on no more, and what it left is removed.
    pub limit: Duration,
}

/// What was found, and done, about a pull mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MirrorOutcome {
    /// It is as it should be.
    Present,
    /// It was missing and is there now (or would be, in a dry run).
    Created,
    /// It fetched by itself at an interval, and does not any more (or would not).
    Quieted,
    /// Its first clone goes on, or was cut off without a word not longer ago than one may take.
    Cloning,
    /// It cannot be brought about, for this reason: there is a repository that is no mirror, or one of something else.
    Refused(String),
}

/// What the account of one token may do in a mirror, and what was done about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountRight {
    /// What the token is for: `read`, `status`.
    pub purpose: &'static str,
    /// The right that this takes: `read`, `write`.
    pub needs: &'static str,
    /// Whose token it is; nothing where that could not be told.
    pub account: Option<String>,
    /// What came of it.
    pub outcome: RightOutcome,
}

/// What came of looking after a right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RightOutcome {
    /// The account has it.
    Present,
    /// It was missing and is given now (or would be, in a dry run).
    Granted,
    /// There is no token of that purpose here, so that nobody knows whose right it is.
    Unseen,
    /// It is missing, and only a person can give it: what to do.
    Missing(String),
}

/// What came of asking a mirror to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncRequest {
    /// It is queued. The forge says so as well when it was queued already, or when its queue does not move.
    Queued,
    /// There is no such mirror.
    NoMirror,
}

/// Pull mirrors on the forge.
#[async_trait]
pub trait Mirrors: Send + Sync {
    /// Makes the repository be this mirror, and stays while its first clone goes on, where whoever is on the way to the forge
    /// lets it. With `dry_run` nothing is written.
    async fn ensure_mirror(&self, wanted: &WantedMirror, dry_run: bool) -> PortResult<MirrorOutcome>;
    /// Gives each account that reads the mirror or reports on it the right that this takes, and none more. Nobody's right
    /// is taken away. With `dry_run` nothing is written.
    async fn ensure_rights(&self, repo: &RepoName, dry_run: bool) -> PortResult<Vec<AccountRight>>;
    /// Asks the forge to fetch what is new. It does so later, or never.
    async fn request_sync(&self, repo: &RepoName) -> PortResult<SyncRequest>;
}
