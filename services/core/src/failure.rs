//! How builds fail, told apart by what helps against it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{BuildId, BuildKey, Revision};
use crate::time::Timestamp;

/// Whose turn it is after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// The source: a Dockerfile that does not parse, a RUN step that fails, a base image that the
    /// registry says does not exist. Trying again cannot help; a newer revision can.
    Source,
    /// Where it ran: evicted, out of memory, node gone. The same build may pass elsewhere.
    Environment,
    /// What it needed: forge, registry, bus or daemon unreachable. The same build passes later.
    Infrastructure,
    /// No builder took it: all are busy, or none can be made. Nothing was tried, so it counts as no attempt and
    /// waits for as long as that lasts.
    Unplaced,
    /// A person cancelled it. It stays cancelled until a newer target or `retry`.
    Cancelled,
}

impl FailureKind {
    /// Whether the same build may succeed when tried again without anybody's help.
    #[must_use]
    pub fn retryable(self) -> bool {
        match self {
            FailureKind::Environment | FailureKind::Infrastructure | FailureKind::Unplaced => true,
            FailureKind::Source | FailureKind::Cancelled => false,
        }
    }

    /// Whether it is one of the attempts that a build has.
    #[must_use]
    pub fn counts(self) -> bool {
        match self {
            FailureKind::Source
            | FailureKind::Environment
            | FailureKind::Infrastructure
            | FailureKind::Cancelled => true,
            FailureKind::Unplaced => false,
        }
    }

    /// The word used in events, tables and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FailureKind::Source => "source",
            FailureKind::Environment => "environment",
            FailureKind::Infrastructure => "infrastructure",
            FailureKind::Unplaced => "unplaced",
            FailureKind::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The last failure of an app, with everything needed to decide whether to try again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was being built; a failure says nothing about another key.
    pub key: BuildKey,
    /// From which revision.
    pub revision: Revision,
    /// The attempt that failed, where it got that far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildId>,
    /// Its kind.
    pub kind: FailureKind,
    /// One sentence for people.
    pub message: String,
    /// The last lines that the failing step printed, oldest first, where it was a step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log_tail: Vec<String>,
    /// How many attempts at this key failed, this one included where it counts.
    pub attempts: u32,
    /// When.
    pub at: Timestamp,
    /// No new attempt before this.
    pub not_before: Timestamp,
    /// Whether the attempts are used up: a dead letter.
    pub dead: bool,
}
