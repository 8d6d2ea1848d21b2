//! Whose turn it is after a failed solve.
//!
//! The daemon answers nearly everything with the gRPC code Unknown and a message for people, but the status
//! carries typed details as JSON: which step ([`Details::vertices`]), the exit code of a RUN step, the lines of
//! the Dockerfile, and whether the Dockerfile could not even be turned into a build. The verdict reads those and
//! never the message, with the exceptions that are named where they stand.

use bollard_buildkit_proto::google::rpc;
use fabrique_core::failure::FailureKind;
use fabrique_ports::builder::BuildFailure;
use prost::Message as _;
use serde::Deserialize;
use tonic::{Code, Status};

use crate::dockerfile::Needed;
use crate::error::root_cause;
use crate::policy::Permitted;
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
    /// The source that could not be had, by the daemon's identifier: `git://…`, `docker-image://…`.
    pub(crate) source: Option<String>,
}

/// Lines of a file of the source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    file: String,
    line: u32,
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
struct PlaceDetail {
    info: Option<FileInfo>,
    #[serde(default)]
    ranges: Vec<Range>,
}

#[derive(Deserialize)]
struct FileInfo {
    #[serde(default)]
    filename: String,
}

#[derive(Deserialize)]
struct SolveDetail {
    op: Option<Op>,
}

#[derive(Deserialize)]
struct Op {
    source: Option<SourceOp>,
}

#[derive(Deserialize)]
struct SourceOp {
    #[serde(default)]
    identifier: String,
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

    /// The place in brackets, for the end of a sentence.
    fn at(&self) -> String {
        self.place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default()
    }

    fn add(&mut self, kind: &str, json: &[u8]) {
        match kind {
            "gatewayapi.ExitMessage+json" => self.exit = parse(json).map(|exit: ExitMessage| exit.code),
            "errdefs.Frontend+json" => self.frontend = true,
            "errdefs.Vertex+json" => {
                self.vertices.extend(parse(json).map(|vertex: VertexDetail| vertex.digest));
            }
            "errdefs.Source+json" => {
                self.place = self.place.take().or_else(|| parse(json).and_then(Place::of))
            }
            "errdefs.Solve+json" => {
                let op = parse(json).and_then(|solve: SolveDetail| solve.op);
                let source = op.and_then(|op| op.source).map(|source| source.identifier);
                self.source = self.source.take().or(source);
            }
            _ => {}
        }
    }
}

/// A detail that cannot be read says nothing: newer daemons may write more than we know.
fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Option<T> {
    serde_json::from_slice(json).ok()
}

impl Place {
    fn of(detail: PlaceDetail) -> Option<Self> {
        let line = detail.ranges.first()?.start.as_ref()?.line;
        Some(Self { file: clean(&detail.info?.filename), line })
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

/// The exit code of a process that was ended by SIGKILL. Where the kernel ends a whole container for want of memory,
/// its status tells; where it ends one process (cgroup v1, `singleProcessOOMKill`), this code is all there is.
const KILLED: u32 = 137;
/// How the frontend names the step that asks a registry for a base image.
const METADATA: &str = "[internal] load metadata for ";
/// How BuildKit's `ErrSourceDenied` reads. It has no typed detail of its own.
const DENIED: &str = "source denied by policy";
/// And how it reads when the session said no.
const DENIED_BY_SESSION: &str = "not allowed by policy: action DENY";
/// What the git source says of a directory or a commit that is not there: not the forge's fault, but the
/// revision's. These have no types either.
const NOT_IN_SOURCE: [&str; 2] = ["invalid subdir", "reference is not a tree"];

/// What containerd says of layers that a registry did not hand out. The daemon blames the step that needed them,
/// with its line, as if the Dockerfile were wrong.
const NOT_FETCHED: [&str; 2] = ["httpReadSeeker", "failed to do request"];

/// Judges a failed solve by its status and the steps seen so far.
pub(crate) fn judge(
    status: &Status,
    steps: &Steps,
    redactor: &Redactor,
    permitted: &Permitted,
    daemon: &str,
) -> Verdict {
    let details = Details::of(status);
    if let Some(failure) = lost(status, &details, daemon) {
        return Verdict::Known(failure);
    }
    let step = steps.failed(&details.vertices);
    let said = redactor.mask(clean(&status.message().trim().replace('\n', " · ")));
    let (kind, message) = match denied(&said, permitted) {
        Some(message) => (FailureKind::Source, message + &details.at()),
        None => explain(status.code(), &details, step.as_ref(), &said),
    };
    let reference = step.as_ref().and_then(|step| step.name.strip_prefix(METADATA)).map(str::to_owned);
    let log_tail = step.map(|step| step.tail).unwrap_or_default();
    let killed = details.exit == Some(KILLED);
    let failure = BuildFailure { kind, message: bounded(message, LONGEST, 0), log_tail, killed };
    match reference {
        Some(reference) if details.exit.is_none() => Verdict::Base { reference, failure },
        _ => Verdict::Known(failure),
    }
}

/// The daemon is gone or going: the connection broke, or it cancelled what nobody here cancelled.
fn lost(status: &Status, details: &Details, daemon: &str) -> Option<BuildFailure> {
    let transport = std::error::Error::source(status).map(root_cause);
    let cause = match (status.code(), transport) {
        (_, Some(cause)) => cause,
        (Code::Unavailable | Code::Cancelled, None) if details.vertices.is_empty() => {
            status.message().to_owned()
        }
        _ => return None,
    };
    // For whoever looks into it. Whose fault it was the autopsy tells, in words for people.
    tracing::info!(daemon, cause = %clean(&cause), "the connection to a build daemon broke");
    let message = format!("build daemon {daemon} was lost during the build");
    Some(BuildFailure::new(FailureKind::Infrastructure, bounded(message, LONGEST, 0)))
}

/// What a source policy refused: `… source "docker-image://…" denied by policy: source denied by policy`, or our own
/// session: `… source "https://…" not allowed by policy: action DENY`.
fn denied(said: &str, permitted: &Permitted) -> Option<String> {
    if !said.ends_with(DENIED) && !said.ends_with(DENIED_BY_SESSION) {
        return None;
    }
    let ends = ["\" denied by policy", "\" not allowed by policy"];
    let before = ends.iter().find_map(|end| said.split_once(end)).map(|(before, _)| before);
    let source = before.and_then(|before| before.rsplit_once("source \"")).map(|(_, source)| source);
    let source = source.unwrap_or("a source");
    if said.ends_with(DENIED_BY_SESSION) {
        return Some(format!("the Dockerfile uses {source}, which is not permitted"));
    }
    Some(not_permitted(source, permitted))
}

fn not_permitted(source: &str, permitted: &Permitted) -> String {
    let bases = permitted.bases();
    format!("the Dockerfile uses {source}, which is not permitted (base images may come from: {bases})")
}

/// The same of an image that was found in the Dockerfile before a daemon was asked.
pub(crate) fn refused(image: &Needed, permitted: &Permitted, file: &str) -> BuildFailure {
    let Needed { reference, line, frontend } = image;
    let message = if *frontend {
        format!(
            "the Dockerfile asks for the frontend {reference}, which is not permitted; builds use the daemon's own"
        )
    } else {
        not_permitted(&format!("docker-image://{reference}"), permitted)
    };
    let place = Place { file: clean(file), line: u32::try_from(*line).unwrap_or(u32::MAX) };
    BuildFailure::new(FailureKind::Source, bounded(format!("{message} ({place})"), LONGEST, 0))
}

fn explain(code: Code, details: &Details, step: Option<&FailedStep>, said: &str) -> (FailureKind, String) {
    let at = details.at();
    let name = step.map(|step| step.name.as_str());
    if let Some(exit) = details.exit {
        let step = name.map_or_else(|| "a step".to_owned(), |name| format!("step {name:?}"));
        let hint = if exit == KILLED { ": it was killed, for want of memory unless by itself" } else { "" };
        return (FailureKind::Source, format!("{step} ended with exit code {exit}{hint}{at}"));
    }
    match code {
        // The daemon's own machine: no space, no memory, no inodes. The same build may pass on another.
        Code::ResourceExhausted | Code::Internal | Code::DataLoss => {
            return (FailureKind::Environment, format!("the build daemon cannot go on: {said}"));
        }
        Code::Unavailable | Code::Cancelled => return (FailureKind::Infrastructure, said.to_owned()),
        _ => {}
    }
    if let Some(source) = &details.source {
        let absent = source.starts_with("git://") && NOT_IN_SOURCE.iter().any(|text| said.contains(text));
        let kind = if absent { FailureKind::Source } else { FailureKind::Infrastructure };
        return (kind, said.to_owned());
    }
    let message = match (name, details.vertices.is_empty()) {
        (Some(name), false) => format!("step {name:?} failed: {said}{at}"),
        _ => format!("{said}{at}"),
    };
    let unfetched = NOT_FETCHED.iter().any(|text| said.contains(text));
    let kind = if (details.frontend || details.place.is_some()) && !unfetched {
        FailureKind::Source
    } else {
        FailureKind::Infrastructure
    };
    (kind, message)
}

#[cfg(test)]
mod tests {
    use bollard_buildkit_proto::google::protobuf::Any;
    use bollard_buildkit_proto::google::protobuf::Timestamp;
    use bollard_buildkit_proto::moby::buildkit::v1::{StatusResponse, Vertex, VertexLog};

    use super::*;
    use crate::config::LogLimits;

    const PLACE: (&str, &str) = (
        "errdefs.Source",
        r#"{"info":{"filename":"Dockerfile"},"ranges":[{"start":{"line":2},"end":{"line":3}}]}"#,
    );
    const FRONTEND: (&str, &str) = ("errdefs.Frontend", r#"{"name":"dockerfile.v0"}"#);
    const STACK: (&str, &str) = ("stack.Stack", "{}");
    const VERTEX: (&str, &str) = ("errdefs.Vertex", r#"{"digest":"sha256:a"}"#);

    fn failed(code: Code, message: &str, details: &[(&str, &str)]) -> Status {
        let details = details.iter().map(|(kind, json)| Any {
            type_url: format!("github.com/moby/buildkit/{kind}+json"),
            value: json.as_bytes().to_vec(),
        });
        let rich = rpc::Status { code: code.into(), message: message.into(), details: details.collect() };
        Status::with_details(code, message, rich.encode_to_vec().into())
    }

    fn steps(name: &str, error: &str) -> Steps {
        let mut steps = Steps::new(LogLimits::default(), Redactor::default());
        let time = Some(Timestamp { seconds: 1, nanos: 0 });
        let vertex = Vertex {
            digest: "sha256:a".into(),
            name: name.into(),
            error: error.into(),
            started: time,
            completed: time,
            ..Vertex::default()
        };
        let log =
            VertexLog { vertex: "sha256:a".into(), msg: b"last words\n".to_vec(), ..VertexLog::default() };
        steps.apply(StatusResponse { vertexes: vec![vertex], logs: vec![log], ..StatusResponse::default() });
        steps
    }

    fn judged(status: &Status, steps: &Steps) -> Verdict {
        let permitted =
            Permitted::new(&["registry:80".into()], &[], &std::collections::BTreeMap::new()).unwrap();
        judge(status, steps, &Redactor::default(), &permitted, "bk-0")
    }

    fn known(status: &Status, steps: &Steps) -> (FailureKind, String) {
        match judged(status, steps) {
            Verdict::Known(failure) => (failure.kind, failure.message),
            Verdict::Base { reference, .. } => panic!("asks for {reference}"),
        }
    }

    #[test]
    fn a_run_step_that_exits_is_the_sources_with_step_line_and_last_words() {
        let exit = ("gatewayapi.ExitMessage", r#"{"Code":7}"#);
        let status = failed(Code::Unknown, "process did not complete", &[STACK, PLACE, VERTEX, exit]);
        let steps = steps("[2/2] RUN make", "exit code: 7");
        let verdict = judged(&status, &steps);
        let expected = BuildFailure {
            kind: FailureKind::Source,
            message: "step \"[2/2] RUN make\" ended with exit code 7 (Dockerfile line 2)".into(),
            log_tail: vec!["last words".into()],
            killed: false,
        };
        assert_eq!(verdict, Verdict::Known(expected));
    }

    #[test]
    fn a_step_that_was_killed_is_told_by_its_exit_code() {
        let steps = steps("[2/2] RUN make", "exit code: 137");
        let killed = |code: &str| {
            let exit = ("gatewayapi.ExitMessage", code);
            match judged(&failed(Code::Unknown, "exit code: 137", &[PLACE, VERTEX, exit]), &steps) {
                Verdict::Known(failure) => failure.killed,
                Verdict::Base { reference, .. } => panic!("asks for {reference}"),
            }
        };
        assert!(killed(r#"{"Code":137}"#));
        assert!(!killed(r#"{"Code":1}"#));
    }

    #[test]
    fn what_the_frontend_refuses_is_the_sources() {
        let steps = Steps::new(LogLimits::default(), Redactor::default());
        let status = failed(Code::Unknown, "unknown instruction: RUNN", &[STACK, FRONTEND, PLACE]);
        let expected = "unknown instruction: RUNN (Dockerfile line 2)".to_owned();
        assert_eq!(known(&status, &steps), (FailureKind::Source, expected));
    }

    #[test]
    fn a_base_image_is_a_question_for_its_registry() {
        let steps = steps("[internal] load metadata for registry:80/base:1", "not found");
        let status = failed(Code::Unknown, "registry:80/base:1: not found", &[FRONTEND, PLACE]);
        let Verdict::Base { reference, .. } = judged(&status, &steps) else {
            panic!("settled without asking");
        };
        assert_eq!(reference, "registry:80/base:1");
    }

    #[test]
    fn a_forbidden_source_is_the_sources_with_its_name() {
        let steps = Steps::new(LogLimits::default(), Redactor::default());
        let said = "failed to load LLB: error evaluating the source policy: source \"http://x/y\" denied by \
                    policy: source denied by policy";
        let (kind, message) = known(&failed(Code::Unknown, said, &[STACK]), &steps);
        assert_eq!(kind, FailureKind::Source);
        assert!(message.contains("http://x/y") && message.contains("registry:80"), "{message}");
    }

    #[test]
    fn a_git_source_fails_by_the_forge_unless_the_revision_lacks_it() {
        let git = ("errdefs.Solve", r#"{"op":{"source":{"identifier":"git://gitea/a/b.git"}}}"#);
        let steps = steps("[internal] load git source", "exit status 128");
        let kind = |said: &str| known(&failed(Code::Unknown, said, &[FRONTEND, git, VERTEX]), &steps).0;
        assert_eq!(kind("failed to fetch remote: Couldn't connect to server"), FailureKind::Infrastructure);
        assert_eq!(kind("could not read Username"), FailureKind::Infrastructure);
        assert_eq!(kind("invalid subdir no/such: no such file"), FailureKind::Source);
        assert_eq!(kind("fatal: reference is not a tree: abab"), FailureKind::Source);
    }

    #[test]
    fn a_layer_that_cannot_be_fetched_is_not_the_fault_of_the_step_that_needs_it() {
        let steps = steps("[2/2] RUN true", "");
        let kind = |said: &str| known(&failed(Code::Unknown, said, &[PLACE, VERTEX]), &steps).0;
        assert_eq!(kind("failed to copy: httpReadSeeker: failed open"), FailureKind::Infrastructure);
        assert_eq!(kind("failed to calculate checksum: \"/nope\": not found"), FailureKind::Source);
    }

    #[test]
    fn a_push_that_fails_is_infrastructure_and_a_full_disk_is_the_environment() {
        let steps = steps("exporting to image", "failed to push");
        assert_eq!(
            known(&failed(Code::Unknown, "failed to push", &[STACK]), &steps).0,
            FailureKind::Infrastructure
        );
        let full = failed(Code::ResourceExhausted, "no space left on device", &[STACK, PLACE, VERTEX]);
        assert_eq!(known(&full, &steps).0, FailureKind::Environment);
    }

    #[test]
    fn a_daemon_that_goes_away_is_infrastructure_and_named() {
        let steps = Steps::new(LogLimits::default(), Redactor::default());
        for code in [Code::Unavailable, Code::Cancelled] {
            let (kind, message) = known(&Status::new(code, "graceful_stop"), &steps);
            assert_eq!(kind, FailureKind::Infrastructure);
            assert!(message.contains("bk-0") && !message.contains("graceful_stop"), "{message}");
        }
    }

    #[test]
    fn details_that_are_no_json_are_passed_over() {
        let broken = [("errdefs.Source", "{"), ("errdefs.Vertex", "7"), ("gatewayapi.ExitMessage", "x")];
        assert_eq!(Details::of(&failed(Code::Unknown, "x", &broken)), Details::default());
        assert_eq!(Details::of(&Status::unknown("x")), Details::default());
    }
}
