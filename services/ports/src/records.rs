//! What fabrique keeps: records of images, memory of apps, history of builds, logs.

use async_trait::async_trait;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{AppName, BuildId, BuildKey, Digest, ImageRepository, Revision};
use fabrique_core::memory::Memory;
use fabrique_core::time::Timestamp;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::PortResult;
use crate::egress::Egress;

/// The record that an image was built here: the only reason to adopt a digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// What was built.
    pub key: BuildKey,
    /// The attempt.
    pub build: BuildId,
    /// From which revision.
    pub revision: Revision,
    /// Where it was pushed.
    pub image: ImageRepository,
    /// What came out.
    pub digest: Digest,
    /// When it was recorded.
    pub at: Timestamp,
}

/// The record build key → digest.
#[async_trait]
pub trait Records: Send + Sync {
    /// The record of a key.
    async fn record(&self, key: &BuildKey) -> PortResult<Option<ImageRecord>>;
    /// The same with the revision to replace it at, which a value that is no record of this key has as well.
    async fn record_at(&self, key: &BuildKey) -> PortResult<Versioned<Option<ImageRecord>>>;
    /// Writes a record if its key is still at `revision`; zero where there was none. Durable when it returns.
    async fn swap_record(&self, record: &ImageRecord, revision: u64) -> PortResult<Swap>;
}

/// A memory and the revision it was read at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// The store's revision; zero when there was nothing.
    pub revision: u64,
}

/// What a compare-and-swap answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// Written, at this new revision.
    Done(u64),
    /// Somebody else wrote meanwhile: read again.
    Lost,
}

/// The memory of each app.
#[async_trait]
pub trait Memories: Send + Sync {
    /// The memory of an app; the default one at revision zero when there is none.
    async fn memory(&self, app: &AppName) -> PortResult<Versioned<Memory>>;
    /// Replaces it if it is still at `revision`.
    async fn swap_memory(&self, app: &AppName, memory: &Memory, revision: u64) -> PortResult<Swap>;
    /// Every app's memory.
    async fn memories(&self) -> PortResult<Vec<(AppName, Memory)>>;
}

/// Where a build stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "phase")]
pub enum BuildPhase {
    /// Waits for a place.
    Queued,
    /// Has a place, is not started.
    Preparing,
    /// Under way on the daemon.
    Building,
    /// The digest is recorded.
    Pushed {
        /// The image.
        digest: Digest,
    },
    /// Deployed.
    Committed {
        /// The image.
        digest: Digest,
        /// The commits on `cluster/apps`; none where there is nothing to write back.
        commits: Vec<Revision>,
    },
    /// Recorded, but not deployed, for this reason.
    NotCommitted {
        /// The image.
        digest: Digest,
        /// Why.
        reason: String,
    },
    /// Failed.
    Failed {
        /// The kind.
        kind: FailureKind,
        /// One sentence.
        message: String,
    },
    /// A newer target came, or it was not wanted any more.
    Superseded {
        /// The newer target, if that was the reason.
        by: Option<Revision>,
    },
}

impl BuildPhase {
    /// Whether nothing follows.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            BuildPhase::Queued | BuildPhase::Preparing | BuildPhase::Building | BuildPhase::Pushed { .. } => {
                false
            }
            BuildPhase::Committed { .. }
            | BuildPhase::NotCommitted { .. }
            | BuildPhase::Failed { .. }
            | BuildPhase::Superseded { .. } => true,
        }
    }
}

/// One attempt, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildEntry {
    /// The attempt.
    pub build: BuildId,
    /// The app.
    pub app: AppName,
    /// The key.
    pub key: BuildKey,
    /// The revision.
    pub revision: Revision,
    /// Why it was started.
    pub reason: String,
    /// Where it stands.
    pub phase: BuildPhase,
    /// The daemon, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<String>,
    /// When it was queued.
    pub queued: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// What it fetched, once its daemon has told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
}

impl BuildEntry {
    /// Moves on to `phase`, and ends at that time where nothing follows.
    pub fn enter(&mut self, phase: BuildPhase, at: Timestamp) {
        self.ended = phase.is_final().then_some(at);
        self.phase = phase;
    }
}

/// The history of builds: bounded per app and in age.
#[async_trait]
pub trait BuildHistory: Send + Sync {
    /// Writes or replaces the entry.
    async fn put_build(&self, entry: &BuildEntry) -> PortResult<()>;
    /// One entry.
    async fn build(&self, build: &BuildId) -> PortResult<Option<BuildEntry>>;
    /// The newest entries, newest first, of one app or of all.
    async fn builds(&self, app: Option<&AppName>, limit: usize) -> PortResult<Vec<BuildEntry>>;
    /// Every entry whose phase is not final, of all apps.
    async fn unfinished_builds(&self) -> PortResult<Vec<Versioned<BuildEntry>>>;
    /// Replaces the entry if it is still at `revision`.
    async fn swap_build(&self, entry: &BuildEntry, revision: u64) -> PortResult<Swap>;
}

/// Build logs: ordered lines, capped, kept longer than the daemon.
#[async_trait]
pub trait Logs: Send + Sync {
    /// Appends lines to a build's log. The adapter batches nothing: the caller does. Lines past the cap are
    /// dropped after one line that says so.
    async fn append_log(&self, build: &BuildId, lines: &[String]) -> PortResult<()>;
    /// Marks the log as complete.
    async fn close_log(&self, build: &BuildId) -> PortResult<()>;
    /// The log from its beginning; with `follow` the stream goes on until the log is closed.
    async fn read_log(
        &self,
        build: &BuildId,
        follow: bool,
    ) -> PortResult<BoxStream<'static, PortResult<String>>>;
}
