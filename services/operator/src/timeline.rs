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
    /// How it ended; nothing while it is under way.
    pub end: Option<End>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Milliseconds since the start.
    pub offset: u64,
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
        after: u64,
    },
    /// It is not, and this says why.
    NotCommitted {
        /// Why.
        why: String,
        /// Milliseconds since the start.
        after: u64,
    },
}

impl Timeline {
    /// Folds `events`, in any order, to the push of `revision`. `pushed` is when `git push` returned; without
    /// it the clock starts at the first event.
    #[must_use]
    pub fn fold(
        app: &AppName,
        revision: &Revision,
        pushed: Option<Timestamp>,
        events: impl IntoIterator<Item = Event>,
    ) -> Self {
        let mut told: Vec<Event> =
            events.into_iter().filter(|event| pushed.is_none_or(|at| at <= event.at)).collect();
        told.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
        told.dedup_by(|a, b| a.id == b.id);
        let mut fold =
            Fold { app, revision, start: pushed, build: None, commits: Vec::new(), rows: vec![], end: None };
        if let Some(at) = pushed {
            fold.row(at, "push", format!("{} arrived at the forge", revision.short()));
        }
        for event in &told {
            // A failure may be followed by another attempt; a commit is the end.
            if matches!(fold.end, Some(End::Committed { .. })) {
                break;
            }
            fold.take(event);
        }
        let start = fold.start.unwrap_or_default();
        Timeline { app: app.clone(), revision: revision.clone(), start, rows: fold.rows, end: fold.end }
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
            writeln!(f, "{:>9}  {:<8}  {}", seconds_exactly(row.offset), row.stage, row.text)?;
        }
        let (app, revision) = (&self.app, self.revision.short());
        match &self.end {
            Some(End::Committed { digest, after, .. }) => {
                write!(f, "committed {app} {revision} {digest} in {}", seconds(*after))
            }
            Some(End::NotCommitted { why, after }) => {
                write!(f, "not committed {app} {revision} after {}: {why}", seconds(*after))
            }
            None => write!(f, "{app} {revision} is still under way"),
        }
    }
}

/// `1.649 s`
fn seconds_exactly(millis: u64) -> String {
    format!("{}.{:03} s", millis / 1000, millis % 1000)
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
    fn take(&mut self, event: &Event) {
        match &event.body {
            EventBody::Delivery { after, woken, .. }
                if after == self.revision.as_str() && woken.contains(self.app) =>
            {
                self.row(event.at, "delivery", line(event).text);
                self.row(event.at, "wake", format!("{} is to be looked at", self.app));
            }
            EventBody::Decision { app, target: Some(target), action, reason }
                if app == self.app && target == self.revision =>
            {
                self.row(event.at, "decision", line(event).text);
                if action == "nothing" && self.commits.is_empty() && self.end.is_none() {
                    self.not_committed(event.at, reason.clone());
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
                self.not_committed(at, why);
            }
        }
    }

    fn not_committed(&mut self, at: Timestamp, why: String) {
        let after = self.offset(at);
        self.end = Some(End::NotCommitted { why, after });
    }

    fn committed(&mut self, at: Timestamp, digest: Digest) {
        let after = self.offset(at);
        self.end = Some(End::Committed { digest, commits: self.commits.clone(), after });
    }

    fn row(&mut self, at: Timestamp, stage: &'static str, text: String) {
        let offset = self.offset(at);
        self.rows.push(Row { offset, stage, text });
    }

    fn offset(&mut self, at: Timestamp) -> u64 {
        let start = *self.start.get_or_insert(at);
        u64::try_from(start.until(at).as_millis()).unwrap_or(u64::MAX)
    }
}

impl Operator {
    /// Follows the push of `revision` to its end, for at most `patience`. Events since `since` count; when
    /// that is the moment `git push` returned, set `from_push` and the clock starts there.
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
        let mut events = self.ports.events.tail(Some(app), Some(since)).await?;
        let mut seen: Vec<Event> = Vec::new();
        let deadline = tokio::time::Instant::now() + patience;
        while seen.len() < MOST_EVENTS {
            let Ok(Some(event)) = tokio::time::timeout_at(deadline, events.next()).await else { break };
            match event {
                Ok(event) => seen.push(event),
                Err(error) => tracing::debug!(%error, "an event could not be read"),
            }
            let ends = matches!(
                seen.last().map(|e| &e.body),
                Some(EventBody::Build { .. } | EventBody::Commit { .. } | EventBody::Decision { .. })
            );
            if ends && Timeline::fold(app, revision, pushed, seen.iter().cloned()).end.is_some() {
                break;
            }
        }
        Ok(Timeline::fold(app, revision, pushed, seen))
    }
}

#[cfg(test)]
mod tests {
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
        event(millis, EventBody::Decision { app: app(), target, action: "build".to_owned(), reason })
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
        let end = End::Committed { digest: digest(), commits: vec![revision("c0de")], after: 400 };
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
        let timeline = fold(vec![phase(300, &this, failed), phase(500, &this, BuildPhase::Building)]);
        assert_eq!(timeline.end, None);
    }

    #[test]
    fn a_push_that_needs_nothing_ends_with_its_reason() {
        let this = revision("1b1d");
        let (target, reason) = (Some(this.clone()), "no watched path changed since aaaaaaaaaaaa".to_owned());
        let nothing = EventBody::Decision { app: app(), target, action: "nothing".to_owned(), reason };
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
        let offsets: Vec<u64> = timeline.rows.iter().map(|row| row.offset).collect();
        assert_eq!(offsets, [0, 0, 40]);
    }
}
