//! The status stream folded into progress: pure, one value in, reports out.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bollard_buildkit_proto::google::protobuf::Timestamp;
use bollard_buildkit_proto::moby::buildkit::v1::{StatusResponse, Vertex, VertexLog};
use fabrique_ports::builder::Progress;

use crate::config::LogLimits;
use crate::fetches::{LIST, Proxied};
use crate::redact::Redactor;
use crate::text::{Line, Lines, bounded, clean};

/// More steps than any Dockerfile has; beyond it a stream is noise.
const MOST_STEPS: usize = 10_000;
/// The longest name that a daemon has for a step: a digest has 71 bytes.
const LONGEST_DIGEST: usize = 128;
/// The most starts of steps that are reported, each with its end: a daemon may say again and again that one has started.
const MOST_STARTS: usize = 2 * MOST_STEPS;
/// The most bytes of steps' last lines that are kept together.
const MOST_KEPT: usize = 32 * 1024 * 1024;
/// A step whose failure fails nothing: a cache that is gone.
const IMPORTING: &str = "importing cache manifest";
/// The most listed requests that are kept.
const MOST_REQUESTS: usize = 10_000;
/// The longest name or error of a step that is passed on, in bytes.
const LONGEST_NAME: usize = 1024;
/// The number of standard output; everything else is standard error to us.
const OUTPUT: i64 = 1;
/// The progress of the exporter's last act, after which the image is in the registry.
const PUSHING: &str = "pushing manifest";

/// All steps of one build, by the daemon's digest of each.
pub(crate) struct Steps {
    limits: LogLimits,
    redactor: Redactor,
    steps: HashMap<String, Step>,
    /// Steps that completed and may yet go on, in order of completion.
    resting: Vec<String>,
    /// Bytes of output that were reported.
    reported: usize,
    /// Starts that were reported.
    starts: usize,
    /// Bytes in all tails.
    kept: usize,
    pushing: bool,
    proxied: Vec<Proxied>,
}

#[derive(Default)]
struct Step {
    name: String,
    state: State,
    /// The newest run's start.
    started: Option<Timestamp>,
    completed: Option<Timestamp>,
    /// The time of all runs that were merged into one report.
    spent: Duration,
    cached: bool,
    error: Option<String>,
    /// Its start was reported, so that its end is.
    told: bool,
    /// Standard output and error arrive apart and are kept apart until their lines are whole.
    streams: [Lines; 2],
    tail: VecDeque<String>,
    /// The daemon's list of the step's requests has begun.
    listing: bool,
}

/// The daemon runs one step several times in a row: for its cache key, for its content, for its export. People
/// see one step, so a completed one rests until another step moves; if it goes on before that, it never ended.
#[derive(Default, PartialEq, Eq, Clone, Copy)]
enum State {
    #[default]
    Waiting,
    Running,
    Resting,
    Ended,
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedStep {
    pub(crate) name: String,
    pub(crate) tail: Vec<String>,
}

impl Steps {
    pub(crate) fn new(limits: LogLimits, redactor: Redactor) -> Self {
        Self {
            limits,
            redactor,
            steps: HashMap::new(),
            resting: Vec::new(),
            reported: 0,
            starts: 0,
            kept: 0,
            pushing: false,
            proxied: Vec::new(),
        }
    }

    /// Takes one message of the stream.
    pub(crate) fn apply(&mut self, response: StatusResponse) -> Vec<Progress> {
        let mut reports = Vec::new();
        // A message's vertices come first: its logs belong to steps that it may be the first to name. A step
        // that it completes is completed after its logs.
        for vertex in &response.vertexes {
            self.start(vertex, &mut reports);
        }
        for log in &response.logs {
            self.log(log, &mut reports);
        }
        for vertex in response.vertexes {
            self.complete(vertex, &mut reports);
        }
        self.pushing |= response.statuses.iter().any(|status| status.id.starts_with(PUSHING));
        reports
    }

    /// The stream is over: the ends of what rested, and what is left of unfinished lines.
    pub(crate) fn finish(&mut self) -> Vec<Progress> {
        let mut reports = Vec::new();
        self.end_others("", &mut reports);
        let mut open: Vec<String> = self.steps.keys().cloned().collect();
        open.sort_unstable();
        for digest in open {
            self.flush(&digest, &mut reports);
        }
        reports
    }

    /// Whether the manifest is being pushed: too late to cancel.
    pub(crate) fn pushing(&self) -> bool {
        self.pushing
    }

    /// The requests that the daemon listed, taken out.
    pub(crate) fn proxied(&mut self) -> Vec<Proxied> {
        std::mem::take(&mut self.proxied)
    }

    /// The step that the daemon blames, or else the first that ended with an error of its own. Steps that were
    /// only stopped because another one failed say "context canceled".
    pub(crate) fn failed(&self, blamed: &[String]) -> Option<FailedStep> {
        let mut blamed = blamed.iter().filter_map(|digest| self.steps.get(digest));
        let step = blamed.find(|step| !step.name.is_empty()).or_else(|| {
            let own = |error: &String| !error.ends_with("context canceled");
            let steps = self.steps.values().filter(|step| !step.name.starts_with(IMPORTING));
            let failed = steps.filter(|step| step.error.as_ref().is_some_and(own));
            failed.min_by_key(|step| step.completed.map_or(i128::MAX, nanos))
        })?;
        Some(FailedStep { name: step.name.clone(), tail: step.tail.iter().cloned().collect() })
    }

    /// The last lines of the step that was stopped with the build.
    pub(crate) fn stopped_tail(&self) -> Vec<String> {
        let stopped = self.steps.values().filter(|step| step.state != State::Ended || step.error.is_some());
        let last = stopped.max_by_key(|step| step.started.map_or(i128::MIN, nanos));
        last.map(|step| step.tail.iter().cloned().collect()).unwrap_or_default()
    }

    fn start(&mut self, vertex: &Vertex, reports: &mut Vec<Progress>) {
        let name = self.tidy(&vertex.name);
        let tells = self.starts < MOST_STARTS;
        let Some(step) = self.step(&vertex.digest) else { return };
        if let Some(name) = name {
            step.name = name;
        }
        if vertex.started.is_none() || vertex.started == step.started {
            return;
        }
        step.started = vertex.started;
        let resumed = step.state == State::Resting;
        step.state = State::Running;
        if !resumed {
            step.told = tells;
        }
        let name = step.name.clone();
        self.resting.retain(|digest| *digest != vertex.digest);
        self.end_others(&vertex.digest, reports);
        if !resumed && tells {
            self.starts += 1;
            reports.push(Progress::StepStarted { name });
        }
    }

    fn complete(&mut self, vertex: Vertex, reports: &mut Vec<Progress>) {
        let Some(completed) = vertex.completed else { return };
        if self.steps.get(&vertex.digest).is_none_or(|step| step.state != State::Running) {
            return;
        }
        self.flush(&vertex.digest, reports);
        let error = self.tidy(&vertex.error);
        let failed = error.is_some();
        if let Some(step) = self.steps.get_mut(&vertex.digest) {
            step.state = State::Resting;
            step.completed = Some(completed);
            step.spent += step.started.map_or(Duration::ZERO, |started| between(started, completed));
            step.cached = vertex.cached;
            step.error = error;
        }
        self.resting.push(vertex.digest);
        if failed {
            self.end_others("", reports);
        }
    }

    /// Reports the ends of all that rests but `digest`, now that something else moves.
    fn end_others(&mut self, digest: &str, reports: &mut Vec<Progress>) {
        let resting = std::mem::take(&mut self.resting);
        let (stays, ends): (Vec<_>, Vec<_>) = resting.into_iter().partition(|other| other == digest);
        self.resting = stays;
        for other in ends {
            let Some(step) = self.steps.get_mut(&other) else { continue };
            step.state = State::Ended;
            if step.error.is_none() {
                // Only a failure's tail is ever asked for.
                let tail = std::mem::take(&mut step.tail);
                self.kept -= tail.iter().map(String::len).sum::<usize>();
            }
            let (name, cached, error) = (step.name.clone(), step.cached, step.error.clone());
            let took = std::mem::take(&mut step.spent);
            if step.told {
                reports.push(Progress::StepEnded { name, cached, took, error });
            }
        }
    }

    fn log(&mut self, log: &VertexLog, reports: &mut Vec<Progress>) {
        let limit = self.limits.line;
        self.end_others(&log.vertex, reports);
        let Some(step) = self.step(&log.vertex) else { return };
        let [output, error] = &mut step.streams;
        let stream = if log.stream == OUTPUT { output } else { error };
        let lines = stream.push(&log.msg, limit);
        for line in lines {
            self.line(&log.vertex, line, reports);
        }
    }

    fn flush(&mut self, digest: &str, reports: &mut Vec<Progress>) {
        let Some(step) = self.steps.get_mut(digest) else { return };
        let lines: Vec<Line> = step.streams.iter_mut().filter_map(Lines::finish).collect();
        for line in lines {
            self.line(digest, line, reports);
        }
    }

    fn line(&mut self, digest: &str, line: Line, reports: &mut Vec<Progress>) {
        self.list(digest, &line.text);
        let line = bounded(self.redactor.mask(line.text), self.limits.line, line.cut);
        if let Some(step) = self.steps.get_mut(digest) {
            if step.tail.len() >= self.limits.tail
                && let Some(oldest) = step.tail.pop_front()
            {
                self.kept -= oldest.len();
            }
            if self.kept + line.len() <= MOST_KEPT {
                self.kept += line.len();
                step.tail.push_back(line.clone());
            }
        }
        let before = self.reported;
        self.reported = before.saturating_add(line.len() + 1);
        if self.reported <= self.limits.total {
            reports.push(Progress::Log { line });
        } else if before <= self.limits.total {
            let total = self.limits.total;
            reports.push(Progress::Log {
                line: format!("[more output is dropped: the limit is {total} bytes]"),
            });
        }
    }

    fn list(&mut self, digest: &str, line: &str) {
        let Some(step) = self.steps.get_mut(digest) else { return };
        let request = Some(line).filter(|_| step.listing).and_then(|line| Proxied::parse(&step.name, line));
        step.listing = request.is_some() || line == LIST;
        if self.proxied.len() < MOST_REQUESTS {
            self.proxied.extend(request);
        }
    }

    fn step(&mut self, digest: &str) -> Option<&mut Step> {
        let full = self.steps.len() >= MOST_STEPS;
        if digest.len() > LONGEST_DIGEST || full && !self.steps.contains_key(digest) {
            return None;
        }
        Some(self.steps.entry(digest.to_owned()).or_default())
    }

    fn tidy(&self, text: &str) -> Option<String> {
        (!text.is_empty()).then(|| bounded(self.redactor.mask(clean(text)), LONGEST_NAME, 0))
    }
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
}

fn between(start: Timestamp, end: Timestamp) -> Duration {
    u64::try_from(nanos(end) - nanos(start)).map_or(Duration::ZERO, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use bollard_buildkit_proto::moby::buildkit::v1::VertexStatus;

    use super::*;

    fn steps() -> Steps {
        let limits = LogLimits { line: 40, total: 100, tail: 2 };
        Steps::new(limits, Redactor::default())
    }

    fn at(millis: i64) -> Option<Timestamp> {
        Some(Timestamp { seconds: millis / 1000, nanos: i32::try_from(millis % 1000).unwrap() * 1_000_000 })
    }

    fn vertex(digest: &str, name: &str, started: Option<i64>, completed: Option<i64>) -> Vertex {
        Vertex {
            digest: digest.into(),
            name: name.into(),
            started: started.and_then(at),
            completed: completed.and_then(at),
            ..Vertex::default()
        }
    }

    fn log(digest: &str, stream: i64, text: &str) -> VertexLog {
        VertexLog { vertex: digest.into(), stream, msg: text.into(), timestamp: None }
    }

    fn message(vertexes: Vec<Vertex>, logs: Vec<VertexLog>) -> StatusResponse {
        StatusResponse { vertexes, logs, ..StatusResponse::default() }
    }

    fn started(name: &str) -> Progress {
        Progress::StepStarted { name: name.into() }
    }

    fn ended(name: &str, took: u64) -> Progress {
        Progress::StepEnded {
            name: name.into(),
            cached: false,
            took: Duration::from_millis(took),
            error: None,
        }
    }

    fn line(text: &str) -> Progress {
        Progress::Log { line: text.into() }
    }

    #[test]
    fn a_step_is_reported_once_whatever_is_repeated() {
        let mut steps = steps();
        assert_eq!(steps.apply(message(vec![vertex("a", "RUN x", None, None)], vec![])), []);
        let running = message(vec![vertex("a", "RUN x", Some(1000), None)], vec![]);
        assert_eq!(steps.apply(running.clone()), [started("RUN x")]);
        assert_eq!(steps.apply(running), []);
        let done = message(vec![vertex("a", "RUN x", Some(1000), Some(2500))], vec![]);
        assert_eq!(steps.apply(done.clone()), []);
        assert_eq!(steps.apply(done), []);
        assert_eq!(steps.finish(), [ended("RUN x", 1500)]);
    }

    #[test]
    fn runs_in_a_row_are_one_step_and_a_run_after_others_is_another() {
        let mut steps = steps();
        let run =
            |digest: &str, from, to| message(vec![vertex(digest, digest, Some(from), Some(to))], vec![]);
        assert_eq!(steps.apply(run("a", 1, 2)), [started("a")]);
        assert_eq!(steps.apply(run("a", 5, 9)), []);
        assert_eq!(steps.apply(run("b", 10, 11)), [ended("a", 5), started("b")]);
        assert_eq!(steps.apply(run("a", 20, 21)), [ended("b", 1), started("a")]);
        assert_eq!(steps.finish(), [ended("a", 1)]);
    }

    #[test]
    fn logs_before_their_vertex_and_between_others_stay_whole_lines() {
        let mut steps = steps();
        assert_eq!(steps.apply(message(vec![], vec![log("a", 1, "he")])), []);
        let both = vec![log("b", 1, "other\n"), log("a", 2, "error\n"), log("a", 1, "llo\nrest")];
        assert_eq!(steps.apply(message(vec![], both)), [line("other"), line("error"), line("hello")]);
        let end = steps.apply(message(vec![vertex("a", "RUN x", Some(0), Some(1))], vec![]));
        assert_eq!(end, [started("RUN x"), line("rest")]);
        assert_eq!(steps.finish(), [ended("RUN x", 1)]);
    }

    #[test]
    fn a_step_ends_after_its_own_logs_and_before_those_of_another() {
        let mut steps = steps();
        let first = message(vec![vertex("a", "RUN x", Some(0), Some(1))], vec![log("a", 1, "one\ntwo")]);
        assert_eq!(steps.apply(first), [started("RUN x"), line("one"), line("two")]);
        let other = steps.apply(message(vec![], vec![log("b", 1, "three\n")]));
        assert_eq!(other, [ended("RUN x", 1), line("three")]);
    }

    #[test]
    fn output_beyond_the_limit_is_dropped_once_and_the_tail_is_kept() {
        let mut steps = steps();
        steps.apply(message(vec![vertex("a", "RUN x", Some(0), None)], vec![]));
        let many: String = (0..20).map(|n| format!("line number {n}\n")).collect();
        let reports = steps.apply(message(vec![], vec![log("a", 1, &many)]));
        let dropped = reports.iter().filter(|report| format!("{report:?}").contains("dropped")).count();
        assert!(reports.len() < 10 && dropped == 1, "{reports:?}");
        let failing = Vertex { error: "exit code: 1".into(), ..vertex("a", "RUN x", Some(0), Some(1)) };
        steps.apply(message(vec![failing], vec![]));
        let failed = steps.failed(&["a".into()]).unwrap();
        assert_eq!(failed.tail, ["line number 18", "line number 19"]);
    }

    #[test]
    fn the_step_with_an_error_of_its_own_is_to_blame() {
        let mut steps = steps();
        let with = |digest: &str, error: &str| Vertex {
            error: error.into(),
            ..vertex(digest, digest, Some(0), Some(1))
        };
        steps.apply(message(vec![with("a", "context canceled"), with("b", "no such file")], vec![]));
        assert_eq!(steps.failed(&[]).unwrap().name, "b");
        assert_eq!(steps.failed(&["a".into()]).unwrap().name, "a");
        assert_eq!(steps.failed(&["unknown".into()]).unwrap().name, "b");
    }

    #[test]
    fn unfinished_lines_are_reported_at_the_end_of_the_stream() {
        let mut steps = steps();
        steps.apply(message(vec![], vec![log("a", 1, "half")]));
        assert_eq!(steps.finish(), [line("half")]);
        assert_eq!(steps.finish(), []);
    }

    #[test]
    fn names_errors_and_lines_are_cleaned_and_masked() {
        let redactor = Redactor::default();
        redactor.remember(b"s3cret");
        let mut steps = Steps::new(LogLimits::default(), redactor);
        let failing =
            Vertex { error: "s3cret\nx".into(), ..vertex("a", "RUN \x1b[31ms3cret", Some(0), Some(0)) };
        let reports = steps.apply(message(vec![failing], vec![log("a", 1, "is s3cret\n")]));
        let expected = Progress::StepEnded {
            name: "RUN ***".into(),
            cached: false,
            took: Duration::ZERO,
            error: Some("***\\u{a}x".into()),
        };
        assert_eq!(reports, [started("RUN ***"), line("is ***"), expected]);
    }

    #[test]
    fn pushing_the_manifest_is_noticed() {
        let mut steps = steps();
        let status = |id: &str| StatusResponse {
            statuses: vec![VertexStatus { id: id.into(), ..VertexStatus::default() }],
            ..StatusResponse::default()
        };
        steps.apply(status("pushing layers"));
        assert!(!steps.pushing());
        steps.apply(status("pushing manifest for registry:80/a@sha256:0"));
        assert!(steps.pushing());
    }

    #[test]
    fn steps_have_a_limit() {
        let mut steps = steps();
        for n in 0..MOST_STEPS + 10 {
            steps.apply(message(vec![], vec![log(&n.to_string(), 1, "x")]));
        }
        assert_eq!(steps.steps.len(), MOST_STEPS);
    }

    /// Whatever a daemon makes up: numbers of streams, names of steps, and starts without end.
    #[test]
    fn what_a_daemon_makes_up_has_a_limit() {
        let mut steps = steps();
        for stream in 0..1000 {
            steps.apply(message(vec![], vec![log("a", stream, "x")]));
        }
        let pending = [line("x"), line(&format!("{}… (959 bytes cut)", "x".repeat(40)))];
        assert_eq!(steps.finish(), pending, "one line of each of two streams");

        let long = "d".repeat(LONGEST_DIGEST + 1);
        let named = message(vec![vertex(&long, "RUN x", Some(1), None)], vec![log(&long, 1, "x\n")]);
        assert_eq!(steps.apply(named), []);
        assert_eq!(steps.steps.len(), 1);

        let mut events = 0;
        for at in 1..=i64::try_from(MOST_STARTS + 10).unwrap() {
            let both = vec![vertex("b", "b", Some(at), Some(at)), vertex("c", "c", Some(at), Some(at))];
            events += steps.apply(message(both, vec![])).len();
        }
        events += steps.finish().len();
        assert_eq!(events, 2 * MOST_STARTS, "each start with its end");
    }

    #[test]
    fn the_last_lines_of_all_steps_have_a_limit_together() {
        let limits = LogLimits { line: 4096, total: 0, tail: 40 };
        let mut steps = Steps::new(limits, Redactor::default());
        let many = format!("{}\n", "x".repeat(4096)).repeat(40);
        for n in 0..300 {
            steps.apply(message(vec![], vec![log(&n.to_string(), 1, &many)]));
        }
        let kept: usize = steps.steps.values().flat_map(|step| &step.tail).map(String::len).sum();
        assert!(kept <= MOST_KEPT && kept == steps.kept && kept > MOST_KEPT / 2, "{kept}");
        // What ends well makes room.
        steps.apply(message(vec![vertex("0", "RUN x", Some(1), Some(1))], vec![]));
        steps.finish();
        assert_eq!(steps.kept, kept - 40 * 4096);
    }
}
