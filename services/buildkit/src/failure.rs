//! Whose turn it is after a failed solve.
//!
//! The daemon answers nearly everything with the gRPC code Unknown and a message for people, but the status
//! carries typed details as JSON: which step ([`Details::vertices`]), the exit code of a RUN step, the lines of
//! the Dockerfile, and whether the Dockerfile could not even be turned into a build. The verdict reads those and
//! never the message, with the exceptions that are named where they stand.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard_buildkit_proto::google::rpc;
use fabrique_core::failure::FailureKind;
use fabrique_ports::builder::BuildFailure;
use prost::Message as _;
use serde::Deserialize;
use tonic::{Code, Status};

use crate::error::root_cause;
use crate::redact::Redactor;
use crate::status::{FailedStep, Steps};
use crate::text::{bounded, clean};

/// The longest message of a failure in bytes.
const LONGEST: usize = 700;

/// The typed details of a failed solve.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Details {
    /// A process ended with this code.
    pub(crate) exit: Option<u32>,
    /// The frontend could not turn the Dockerfile into a build.
    pub(crate) frontend: bool,
    /// The digests of the steps to blame.
    pub(crate) vertices: Vec<String>,
    /// Where in which file.
    pub(crate) place: Option<Place>,
}

/// Lines of a file of the source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    file: String,
    line: u32,
    /// What stands there.
    text: Option<String>,
}

#[derive(Deserialize)]
struct ExitMessage {
    #[serde(rename = "Code", default)]
    code: u32,
}

#[derive(Deserialize)]
struct VertexDetail {
    #[serde(default)]
    digest: String,
}

#[derive(Deserialize)]
struct SourceDetail {
    info: Option<SourceFile>,
    #[serde(default)]
    ranges: Vec<Range>,
}

#[derive(Deserialize)]
struct SourceFile {
    #[serde(default)]
    filename: String,
    #[serde(default)]
    data: String,
}

#[derive(Deserialize)]
struct Range {
    start: Option<Position>,
}

#[derive(Deserialize)]
struct Position {
    #[serde(default)]
    line: u32,
}

impl Details {
    pub(crate) fn of(status: &Status) -> Self {
        let mut details = Self::default();
        let Ok(rich) = rpc::Status::decode(status.details()) else { return details };
        for any in rich.details {
            let kind = any.type_url.rsplit('/').next().unwrap_or_default();
            details.add(kind, &any.value);
        }
        details
    }

    fn add(&mut self, kind: &str, json: &[u8]) {
        match kind {
            "gatewayapi.ExitMessage+json" => {
                self.exit = serde_json::from_slice(json).ok().map(|exit: ExitMessage| exit.code);
            }
            "errdefs.Frontend+json" => self.frontend = true,
            "errdefs.Vertex+json" => {
                let vertex = serde_json::from_slice(json).ok().map(|vertex: VertexDetail| vertex.digest);
                self.vertices.extend(vertex);
            }
            "errdefs.Source+json" => {
                let place = serde_json::from_slice(json).ok().and_then(Place::of);
                self.place = self.place.take().or(place);
            }
            _ => {}
        }
    }
}

impl Place {
    fn of(source: SourceDetail) -> Option<Self> {
        let info = source.info?;
        let line = source.ranges.first()?.start.as_ref()?.line;
        let data = STANDARD.decode(info.data).unwrap_or_default();
        let index = usize::try_from(line).ok()?.checked_sub(1)?;
        let text = String::from_utf8_lossy(&data).lines().nth(index).map(|line| clean(line.trim()));
        Some(Self { file: clean(&info.filename), line, text })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} line {}", self.file, self.line)
    }
}

/// What the details say by themselves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Settled.
    Known(BuildFailure),
    /// A base image could not be resolved, and only its registry can tell whose fault that is.
    Base {
        /// The image as the daemon writes it, in full.
        reference: String,
        /// What to answer once the kind is known.
        failure: BuildFailure,
    },
}

/// Judges a failed solve by its status and the steps seen so far.
pub(crate) fn judge(status: &Status, steps: &Steps, redactor: &Redactor, daemon: &str) -> Verdict {
    if let Some(failure) = lost(status, daemon) {
        return Verdict::Known(failure);
    }
    let details = Details::of(status);
    let step = steps.failed(&details.vertices);
    let said = redactor.mask(clean(status.message()));
    let reference = step.as_ref().and_then(|step| step.name.strip_prefix(METADATA)).map(str::to_owned);
    let (kind, message) = explain(status.code(), &details, step.as_ref(), &said);
    let log_tail = step.map(|step| step.tail).unwrap_or_default();
    let failure = BuildFailure { kind, message: bounded(message, LONGEST, 0), log_tail };
    match reference {
        Some(reference) if details.exit.is_none() => Verdict::Base { reference, failure },
        _ => Verdict::Known(failure),
    }
}

/// How the frontend names the step that asks a registry for a base image.
const METADATA: &str = "[internal] load metadata for ";

/// The daemon is gone or going: the connection broke, or it cancelled what nobody here cancelled.
fn lost(status: &Status, daemon: &str) -> Option<BuildFailure> {
    let transport = std::error::Error::source(status).map(root_cause);
    let cause = match (status.code(), transport) {
        (_, Some(cause)) => cause,
        (Code::Unavailable | Code::Cancelled | Code::Unimplemented, None) => status.message().to_owned(),
        _ => return None,
    };
    let message = format!("build daemon {daemon} was lost during the build: {}", clean(&cause));
    Some(BuildFailure {
        kind: FailureKind::Infrastructure,
        message: bounded(message, LONGEST, 0),
        log_tail: vec![],
    })
}

fn explain(code: Code, details: &Details, step: Option<&FailedStep>, said: &str) -> (FailureKind, String) {
    let name = step.map_or("a step", |step| step.name.as_str());
    let at = details.place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
    if let Some(exit) = details.exit {
        return (FailureKind::Source, format!("step {name:?} ended with exit code {exit}{at}"));
    }
    // The daemon's own machine: no space, no memory, no inodes. The same build may pass on another.
    if matches!(code, Code::ResourceExhausted | Code::Internal | Code::DataLoss) {
        return (FailureKind::Environment, format!("the build daemon cannot go on: {said}"));
    }
    if details.frontend || details.place.is_some() {
        return (FailureKind::Source, format!("{said}{at}"));
    }
    (FailureKind::Infrastructure, said.to_owned())
}
