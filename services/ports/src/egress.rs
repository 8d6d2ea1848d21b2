//! What a build fetched, from where, and how it was answered.

use std::fmt;

use fabrique_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// One thing that a build fetched, or tried to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// What for.
    pub what: FetchKind,
    /// The step that asked, by the daemon's name for it. Nothing for the source, which no step asks for, and where it
    /// cannot be told whose a refused request was, of steps side by side or within half a second of each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The method of a request, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The URL without credentials, query and fragment, or the image's reference.
    pub location: String,
    /// Where it is: `host:port`. Nothing where the location cannot be read as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The answer.
    pub answer: Answer,
}

/// What something was fetched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FetchKind {
    /// A git repository: the build's own source, or one that the Dockerfile names.
    Source,
    /// A base image.
    Image,
    /// `ADD https://…`.
    Add,
    /// A request of a RUN step, through the daemon's proxy.
    Request,
}

impl fmt::Display for FetchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FetchKind::Source => "source",
            FetchKind::Image => "image",
            FetchKind::Add => "add",
            FetchKind::Request => "request",
        })
    }
}

/// How something was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The daemon has it: fetched now, or found unchanged in its cache.
    Had,
    /// With this HTTP status.
    Status(u16),
    /// The step that needed it failed.
    Failed,
    /// It was refused: what is asked for is not permitted.
    Refused,
    /// It was permitted, and how it was answered did not show.
    Unseen,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Status(code) => write!(f, "{code}"),
            Answer::Had => f.pad("had"),
            Answer::Failed => f.pad("failed"),
            Answer::Refused => f.pad("refused"),
            Answer::Unseen => f.pad("unseen"),
        }
    }
}

/// A fetch and when it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// When the daemon asked whether it may.
    pub at: Timestamp,
    /// What, and the answer.
    #[serde(flatten)]
    pub fetch: Fetch,
}

/// All that one build fetched, as far as its daemon saw it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Egress {
    /// How builds on its daemon are kept apart: whether RUN steps' own requests pass the daemon depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<String>,
    /// The fetches in the order in which they were asked for; bounded, the refused ones first of all kept.
    pub fetches: Vec<Fetched>,
    /// How many more there were.
    #[serde(default)]
    pub left_out: u64,
}
