//! One push from its delivery to its commit, with how long everything took.

use std::fmt;
use std::time::Duration;

use fabrique_core::id::{AppName, BuildId, Digest, Revision};
use fabrique_core::time::Timestamp;
use fabrique_ports::bus::{Event, EventBody};
use fabrique_ports::records::BuildPhase;
use futures::StreamExt as _;
use serde::Serialize;

use crate::error::OperatorError;
use crate::exit::Exit;
use crate::operator::Operator;
use crate::tail::{line, phase_text, seconds};

/// More events than any push makes.
const MOST_EVENTS: usize = 10_000;
/// What is told of a push may be older than the end of `git push`: the forge tells of it while the client still
/// waits for its answer, and clocks differ.
const EARLY: Duration = Duration::from_mins(1);
/// How long the delivery of a push is waited for when an earlier one of the same revision is at its end already.
const LATE: Duration = Duration::from_secs(5);

/// One push, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// The app.
    pub app: AppName,
    /// The pushed revision.
    pub revision: Revision,
    /// When the push ended, where the caller knows, or when its first event happened.
    pub start: Timestamp,
    /// What happened, in order.
    pub rows: Vec<Row>,
    /// How many events about the same revision belong to an earlier push of it and are left out.
    pub left_out: usize,
    /// How it ended; nothing while it is under way.
    pub end: Option<End>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Milliseconds since the start; negative where it was told of before `git push` returned.
    pub offset_ms: i64,
    /// `push`, `delivery`, `wake`, `decision`, `build`, `step`, `digest`, `commit` or `warning`.
    pub stage: &'static str,
    /// What.
    pub text: String,
}

/// How a push ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "end", rename_all = "kebab-case")]
pub enum End {
    /// Its image is what the composition shows.
    Committed {
        /// The image.
        digest: Digest,
        /// The commits on `cluster/apps`; none for an app without environments.
        commits: Vec<Revision>,
        /// Milliseconds since the start.
        after_ms: i64,
    },
    /// It is not, and this says why.
    NotCommitted {
        /// Why.
        why: String,
        /// Whether it is nobody's fault but the machines', so that another attempt follows. Not where attempts are
        /// used up, once that is decided.
        tried_again: bool,
        /// Milliseconds since the start.
        after_ms: i64,
    },
}

impl Timeline {
    /// Folds `events`, in any order, to the push of `revision`. `pushed` is when `git push` returned; without
    /// it the clock starts at the first event. What is older than `pushed` belongs to this push if its delivery
    /// is older too, and to an earlier push of the same revision otherwise.
    #[must_use]
    pub fn fold(
        app: &AppName,
        revision: &Revision,
        pushed: Option<Timestamp>,
        events: impl IntoIterator<Item = Event>,
    ) -> Self {
        let mut told: Vec<Event> = events.into_iter().collect();
        told.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
        told.dedup_by(|a, b| a.id == b.id);
        let mut fold =
            Fold { app, revision, start: pushed, build: None, commits: Vec::new(), rows: vec![], end: None };
        let first = pushed.map_or(0, |at| first_of(&told, at, |event| fold.is_delivery(event)));
        let (before, told) = told.split_at(first);
        let left_out = before.iter().filter(|event| fold.concerns(event)).count();
        if let Some(at) = pushed {
            fold.row(at, "push", format!("{} arrived at the forge", revision.short()));
        }
        for event in told {
            // A failure may be followed by another attempt; a commit is the end.
            if matches!(fold.end, Some(End::Committed { .. })) {
                break;
            }
            fold.take(event);
        }
        let start = fold.start.unwrap_or_default();
        // The push itself may be younger than what was told of it.
        fold.rows.sort_by_key(|row| row.offset_ms);
        let (app, revision) = (app.clone(), revision.clone());
        Timeline { app, revision, start, rows: fold.rows, left_out, end: fold.end }
    }

    /// Whether nothing more is to come.
    fn is_over(&self) -> bool {
        !matches!(self.end, None | Some(End::NotCommitted { tried_again: true, .. }))
    }

    /// How the process ends: well when the push is committed.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match &self.end {
            Some(End::Committed { .. }) => Exit::Ok,
            Some(End::NotCommitted { .. }) | None => Exit::Findings,
        }
    }
}

/// The rows, then one line that says how it ended.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            writeln!(f, "{:>9}  {:<8}  {}", seconds_exactly(row.offset_ms), row.stage, row.text)?;
        }
        if self.left_out > 0 {
            writeln!(f, "left out {} events of an earlier push of this revision", self.left_out)?;
        }
        let (app, revision) = (&self.app, self.revision.short());
        match &self.end {
            Some(End::Committed { digest, after_ms, .. }) => {
                write!(f, "committed {app} {revision} {digest} in {}", seconds_signed(*after_ms))
            }
            Some(End::NotCommitted { why, after_ms, .. }) => {
                write!(f, "not committed {app} {revision} after {}: {why}", seconds_signed(*after_ms))
            }
            None => write!(f, "{app} {revision} is still under way"),
        }
    }
}

/// `1.649 s`
fn seconds_exactly(millis: i64) -> String {
    let (sign, millis) = (sign(millis), millis.unsigned_abs());
    format!("{sign}{}.{:03} s", millis / 1000, millis % 1000)
}

/// `1.6 s`
fn seconds_signed(millis: i64) -> String {
    format!("{}{}", sign(millis), seconds(millis.unsigned_abs()))
}

fn sign(millis: i64) -> &'static str {
    if millis < 0 { "-" } else { "" }
}

/// Where the events of the push begin that ended at `pushed`: with its delivery where that came early, else with the
/// first event after it.
fn first_of(told: &[Event], pushed: Timestamp, is_delivery: impl Fn(&Event) -> bool) -> usize {
    let later = told.partition_point(|event| event.at < pushed);
    let (early, late) = told.split_at(later);
    if late.iter().any(&is_delivery) {
        return later;
    }
    early.iter().rposition(is_delivery).unwrap_or(later)
}

struct Fold<'a> {
    app: &'a AppName,
    revision: &'a Revision,
    start: Option<Timestamp>,
    /// The attempt at this revision, once there is one.
    build: Option<BuildId>,
    commits: Vec<Revision>,
    rows: Vec<Row>,
    end: Option<End>,
}

impl Fold<'_> {
    fn is_delivery(&self, event: &Event) -> bool {
        matches!(
            &event.body,
            EventBody::Delivery { after, woken, .. }
                if after == self.revision.as_str() && woken.contains(self.app)
        )
    }

    /// Whether an event is about this app at this revision.
    fn concerns(&self, event: &Event) -> bool {
        let about = match &event.body {
            EventBody::Decision { app, target, .. } => target.as_ref().map(|target| (app, target)),
            EventBody::Build { app, revision, .. } | EventBody::Commit { app, revision, .. } => {
                Some((app, revision))
            }
            EventBody::Delivery { .. }
            | EventBody::Step { .. }
            | EventBody::Command { .. }
            | EventBody::Warning { .. } => None,
        };
        self.is_delivery(event) || about == Some((self.app, self.revision))
    }

    fn take(&mut self, event: &Event) {
        match &event.body {
            EventBody::Delivery { .. } if self.is_delivery(event) => {
                self.row(event.at, "delivery", line(event).text);
                self.row(event.at, "wake", format!("{} is to be looked at", self.app));
            }
            EventBody::Decision { app, target: Some(target), action, reason, dead_letter }
                if app == self.app && target == self.revision =>
            {
                self.row(event.at, "decision", line(event).text);
                let open = match &self.end {
                    // What is tried in an hour or so is not waited for.
                    None => action == "nothing" || *dead_letter,
                    Some(End::NotCommitted { tried_again: true, .. }) => *dead_letter,
                    Some(End::NotCommitted { .. } | End::Committed { .. }) => false,
                };
                if open && self.commits.is_empty() {
                    self.not_committed(event.at, reason.clone(), false);
                }
            }
            EventBody::Build { app, build, revision, phase }
                if app == self.app && revision == self.revision =>
            {
                self.build = Some(build.clone());
                self.phase(event.at, phase);
            }
            EventBody::Step { app, build, .. } if app == self.app && Some(build) == self.build.as_ref() => {
                self.row(event.at, "step", line(event).text);
            }
            EventBody::Commit { app, commit, revision, digest, .. }
                if app == self.app && revision == self.revision =>
            {
                self.row(event.at, "commit", line(event).text);
                self.commits.push(commit.clone());
                // An adopted image has no build that would say that it is committed.
                if let (Some(digest), None) = (digest, &self.build) {
                    self.committed(event.at, digest.clone());
                }
            }
            EventBody::Warning { app: Some(app), .. } if app == self.app => {
                self.row(event.at, "warning", line(event).text);
            }
            EventBody::Delivery { .. }
            | EventBody::Decision { .. }
            | EventBody::Build { .. }
            | EventBody::Step { .. }
            | EventBody::Commit { .. }
            | EventBody::Command { .. }
            | EventBody::Warning { .. } => {}
        }
    }

    fn phase(&mut self, at: Timestamp, phase: &BuildPhase) {
        match phase {
            BuildPhase::Queued | BuildPhase::Preparing | BuildPhase::Building => {
                self.end = None;
                self.row(at, "build", phase_text(phase));
            }
            BuildPhase::Pushed { digest } => self.row(at, "digest", digest.to_string()),
            BuildPhase::Committed { digest, commits } => {
                for commit in commits {
                    if !self.commits.contains(commit) {
                        self.commits.push(commit.clone());
                    }
                }
                self.row(at, "build", phase_text(phase));
                self.committed(at, digest.clone());
            }
            BuildPhase::NotCommitted { .. } | BuildPhase::Failed { .. } | BuildPhase::Superseded { .. } => {
                let why = phase_text(phase);
                self.row(at, "build", why.clone());
                let tried_again = matches!(phase, BuildPhase::Failed { kind, .. } if kind.retryable());
                self.not_committed(at, why, tried_again);
            }
        }
    }

    fn not_committed(&mut self, at: Timestamp, why: String, tried_again: bool) {
        let after_ms = self.offset(at);
        self.end = Some(End::NotCommitted { why, tried_again, after_ms });
    }

    fn committed(&mut self, at: Timestamp, digest: Digest) {
        let after_ms = self.offset(at);
        self.end = Some(End::Committed { digest, commits: self.commits.clone(), after_ms });
    }

    fn row(&mut self, at: Timestamp, stage: &'static str, text: String) {
        let offset_ms = self.offset(at);
        self.rows.push(Row { offset_ms, stage, text });
    }

    fn offset(&mut self, at: Timestamp) -> i64 {
        let start = *self.start.get_or_insert(at);
        let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        millis(start.until(at)) - millis(at.until(start))
    }
}

impl Operator {
    /// Follows the push of `revision` to its end, for at most `patience`. Events since `since` count; when
    /// that is the moment `git push` returned, set `from_push`: the clock starts there, and what was told of the
    /// push in the minute before counts too.
    ///
    /// # Errors
    /// When the bus cannot be read.
    pub async fn timeline(
        &self,
        app: &AppName,
        revision: &Revision,
        since: Timestamp,
        from_push: bool,
        patience: Duration,
    ) -> Result<Timeline, OperatorError> {
        let pushed = from_push.then_some(since);
        let early = if from_push { u64::try_from(EARLY.as_millis()).unwrap_or(u64::MAX) } else { 0 };
        let from = Timestamp(since.0.saturating_sub(early));
        let mut events = self.ports.events.tail(Some(app), Some(from)).await?;
        let mut seen: Vec<Event> = Vec::new();
        let deadline = tokio::time::Instant::now() + patience;
        let mut until = deadline;
        while seen.len() < MOST_EVENTS {
            let Ok(Some(event)) = tokio::time::timeout_at(until, events.next()).await else { break };
            match event {
                Ok(event) => seen.push(event),
                Err(error) => tracing::debug!(%error, "an event could not be read"),
            }
            let ends = matches!(
                seen.last().map(|e| &e.body),
                Some(EventBody::Build { .. } | EventBody::Commit { .. } | EventBody::Decision { .. })
            );
            if !ends || !Timeline::fold(app, revision, pushed, seen.iter().cloned()).is_over() {
                continue;
            }
            if seen.last().is_none_or(|last| from_push && last.at < since) {
                // The end of this push, or of an earlier one of the same revision: its own delivery tells.
                until = deadline.min(tokio::time::Instant::now() + LATE);
            } else {
                break;
            }
        }
        Ok(Timeline::fold(app, revision, pushed, seen))
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::decision::Reason;
    use fabrique_core::failure::FailureKind;
    use fabrique_core::id::{EnvironmentName, RepoName};

    use super::*;

    const PUSHED: Timestamp = Timestamp(10_000);

    fn app() -> AppName {
        AppName::parse("citation").unwrap()
    }

    fn revision(digits: &str) -> Revision {
        Revision::parse(&digits.repeat(10)).unwrap()
    }

    fn digest() -> Digest {
        Digest::parse(&format!("sha256:{}", "2e".repeat(32))).unwrap()
    }

    fn build() -> BuildId {
        BuildId::parse("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap()
    }

    fn event(millis: u64, body: EventBody) -> Event {
        Event { id: format!("{millis:08}"), at: Timestamp(10_000 + millis), trace: None, body }
    }

    fn delivery(millis: u64, after: &Revision) -> Event {
        let repo = RepoName::parse("atlas/citation").unwrap();
        let reference = "refs/heads/main".to_owned();
        let (after, delivery) = (after.to_string(), String::new());
        event(
            millis,
            EventBody::Delivery { repo, reference, after, delivery, woken: vec![app()], ignored: None },
        )
    }

    fn decision(millis: u64, target: &Revision) -> Event {
        let reason = format!("{} is not built yet", target.short());
        let target = Some(target.clone());
        let action = "build".to_owned();
        event(millis, EventBody::Decision { app: app(), target, action, reason, dead_letter: false })
    }

    fn phase(millis: u64, of: &Revision, phase: BuildPhase) -> Event {
        event(millis, EventBody::Build { app: app(), build: build(), revision: of.clone(), phase })
    }

    fn step(millis: u64) -> Event {
        let (name, took) = ("[2/3] RUN make".to_owned(), 400);
        event(
            millis,
            EventBody::Step { app: app(), build: build(), name, cached: false, millis: took, error: None },
        )
    }

    fn commit(millis: u64, of: &Revision) -> Event {
        event(
            millis,
            EventBody::Commit {
                app: app(),
                environment: EnvironmentName::parse("prod").unwrap(),
                channel: "image".to_owned(),
                commit: revision("c0de"),
                revision: of.clone(),
                digest: Some(digest()),
            },
        )
    }

    fn fold(events: Vec<Event>) -> Timeline {
        Timeline::fold(&app(), &revision("1b1d"), Some(PUSHED), events)
    }

    #[test]
    fn a_push_is_told_from_its_delivery_to_its_commit() {
        let this = revision("1b1d");
        let committed = BuildPhase::Committed { digest: digest(), commits: vec![revision("c0de")] };
        let timeline = fold(vec![
            phase(1_610, &this, committed),
            delivery(220, &this),
            decision(260, &this),
            phase(300, &this, BuildPhase::Building),
            step(900),
            phase(1_200, &this, BuildPhase::Pushed { digest: digest() }),
            commit(1_600, &this),
        ]);
        assert_eq!(timeline.exit(), Exit::Ok);
        insta::assert_snapshot!(timeline, @r"
          0.000 s  push      1b1d1b1d1b1d arrived at the forge
          0.220 s  delivery  refs/heads/main at 1b1d1b1d1b1d wakes citation
          0.220 s  wake      citation is to be looked at
          0.260 s  decision  build 1b1d1b1d1b1d: 1b1d1b1d1b1d is not built yet
          0.300 s  build     building
          0.900 s  step      [2/3] RUN make 0.4 s
          1.200 s  digest    sha256:2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e
          1.600 s  commit    image of prod shows 1b1d1b1d1b1d as sha256:2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e (commit c0dec0dec0de)
          1.610 s  build     committed sha256:2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e in c0dec0dec0de
        committed citation 1b1d1b1d1b1d sha256:2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e in 1.6 s
        ");
    }

    #[test]
    fn other_pushes_and_doubled_events_leave_no_trace() {
        let this = revision("1b1d");
        let timeline = fold(vec![
            delivery(220, &this),
            delivery(220, &this),
            delivery(230, &revision("aaaa")),
            decision(240, &revision("aaaa")),
            phase(
                250,
                &revision("aaaa"),
                BuildPhase::Failed { kind: FailureKind::Source, message: String::new() },
            ),
        ]);
        assert_eq!(timeline.rows.len(), 3);
        assert_eq!((timeline.end.clone(), timeline.exit()), (None, Exit::Findings));
    }

    #[test]
    fn an_adopted_image_is_committed_without_a_build() {
        let this = revision("1b1d");
        let timeline = fold(vec![delivery(220, &this), commit(400, &this)]);
        let end = End::Committed { digest: digest(), commits: vec![revision("c0de")], after_ms: 400 };
        assert_eq!(timeline.end, Some(end));
    }

    #[test]
    fn a_failed_build_ends_the_timeline_with_its_reason() {
        let this = revision("1b1d");
        let failed = BuildPhase::Failed { kind: FailureKind::Source, message: "exit code 2".to_owned() };
        let timeline = fold(vec![delivery(220, &this), phase(900, &this, failed), decision(950, &this)]);
        let shown = timeline.to_string();
        assert_eq!(
            shown.lines().last().unwrap(),
            "not committed citation 1b1d1b1d1b1d after 0.9 s: failed (source): exit code 2"
        );
    }

    #[test]
    fn a_later_attempt_overrules_a_failed_one() {
        let this = revision("1b1d");
        let failed = BuildPhase::Failed { kind: FailureKind::Infrastructure, message: String::new() };
        let failure = phase(300, &this, failed);
        let timeline = fold(vec![failure.clone()]);
        assert!(!timeline.is_over(), "{timeline}");
        assert!(matches!(timeline.end, Some(End::NotCommitted { tried_again: true, .. })), "{timeline}");
        let timeline = fold(vec![failure, phase(500, &this, BuildPhase::Building)]);
        assert_eq!(timeline.end, None);
    }

    #[test]
    fn a_dead_letter_is_the_end_and_an_attempt_that_follows_is_not() {
        let this = revision("1b1d");
        let failed = |millis| {
            let (kind, message) = (FailureKind::Infrastructure, "no registry".to_owned());
            phase(millis, &this, BuildPhase::Failed { kind, message })
        };
        let waits = |millis, dead| {
            let (kind, message, attempts) = (FailureKind::Infrastructure, "no registry".to_owned(), 5);
            let reason = Reason::Failed { kind, message, attempts, dead };
            let (dead_letter, reason) = (reason.is_dead_letter(), reason.to_string());
            let (target, action) = (Some(this.clone()), "wait".to_owned());
            event(millis, EventBody::Decision { app: app(), target, action, reason, dead_letter })
        };
        assert!(!fold(vec![failed(300), waits(310, false)]).is_over());
        let timeline = fold(vec![failed(300), waits(310, false), failed(900), waits(910, true)]);
        assert!(timeline.is_over());
        assert_eq!(
            timeline.to_string().lines().last().unwrap(),
            "not committed citation 1b1d1b1d1b1d after 0.9 s: dead letter after 5 attempts: no registry; `fabrique dlq \
             replay` starts again"
        );
        let replayed = phase(2_000, &this, BuildPhase::Queued);
        assert_eq!(fold(vec![failed(900), waits(910, true), replayed]).end, None);
    }

    #[test]
    fn a_push_that_needs_nothing_ends_with_its_reason() {
        let this = revision("1b1d");
        let (target, reason) = (Some(this.clone()), "no watched path changed since aaaaaaaaaaaa".to_owned());
        let action = "nothing".to_owned();
        let nothing = EventBody::Decision { app: app(), target, action, reason, dead_letter: false };
        let timeline = fold(vec![delivery(220, &this), event(300, nothing)]);
        let shown = timeline.to_string();
        assert_eq!(
            shown.lines().last().unwrap(),
            "not committed citation 1b1d1b1d1b1d after 0.3 s: no watched path changed since aaaaaaaaaaaa"
        );
    }

    #[test]
    fn without_the_moment_of_the_push_the_clock_starts_at_the_first_event() {
        let this = revision("1b1d");
        let timeline = Timeline::fold(&app(), &this, None, vec![delivery(220, &this), decision(260, &this)]);
        let offsets: Vec<i64> = timeline.rows.iter().map(|row| row.offset_ms).collect();
        assert_eq!(offsets, [0, 0, 40]);
    }

    /// An event of `millis` before the end of `git push`.
    fn early(millis: u64, mut event: Event) -> Event {
        event.id = format!("early {millis}");
        event.at = Timestamp(PUSHED.0 - millis);
        event
    }

    #[test]
    fn a_delivery_that_came_before_git_push_returned_is_told_with_all_that_follows() {
        let this = revision("1b1d");
        let other = early(900, decision(0, &revision("aaaa")));
        let timeline =
            fold(vec![other, early(120, delivery(0, &this)), early(80, decision(0, &this)), step(5)]);
        insta::assert_snapshot!(timeline, @r"
         -0.120 s  delivery  refs/heads/main at 1b1d1b1d1b1d wakes citation
         -0.120 s  wake      citation is to be looked at
         -0.080 s  decision  build 1b1d1b1d1b1d: 1b1d1b1d1b1d is not built yet
          0.000 s  push      1b1d1b1d1b1d arrived at the forge
        citation 1b1d1b1d1b1d is still under way
        ");
        assert_eq!(timeline.left_out, 0);
    }

    #[test]
    fn what_belongs_to_an_earlier_push_of_the_same_revision_is_left_out_and_counted() {
        let this = revision("1b1d");
        let committed = BuildPhase::Committed { digest: digest(), commits: vec![revision("c0de")] };
        let earlier = [early(900, delivery(0, &this)), early(500, phase(0, &this, committed))];
        let alone = fold(earlier.to_vec());
        assert!(matches!(alone.end, Some(End::Committed { after_ms: -500, .. })), "{alone}");
        let timeline = fold([earlier.to_vec(), vec![delivery(220, &this)]].concat());
        assert_eq!((timeline.left_out, timeline.end.clone()), (2, None));
        assert!(timeline.to_string().contains("left out 2 events"), "{timeline}");
    }
}
