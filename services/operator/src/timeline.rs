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

/// Where in the course of a push this belongs: what was told in the same millisecond has ids in no order.
fn step_of(body: &EventBody) -> u8 {
    match body {
        EventBody::Delivery { .. } => 0,
        EventBody::Decision { .. } | EventBody::Command { .. } | EventBody::Warning { .. } => 1,
        EventBody::Step { .. } => 5,
        EventBody::Commit { .. } => 7,
        EventBody::Build { phase, .. } => match phase {
            BuildPhase::Queued => 2,
            BuildPhase::Preparing => 3,
            BuildPhase::Building => 4,
            BuildPhase::Pushed { .. } => 6,
            BuildPhase::Committed { .. }
            | BuildPhase::NotCommitted { .. }
            | BuildPhase::Failed { .. }
            | BuildPhase::Superseded { .. } => 8,
        },
    }
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
        told.sort_by(|a, b| (a.at, step_of(&a.body), &a.id).cmp(&(b.at, step_of(&b.body), &b.id)));
        told.dedup_by(|a, b| a.id == b.id);
        let (build, commits, rows, end, left_alone) = (None, Vec::new(), Vec::new(), None, false);
        let mut fold = Fold { app, revision, start: pushed, build, commits, rows, end, left_alone };
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
            // Of a push that changed nothing all may have been over before it.
            Some(End::NotCommitted { why, after_ms, .. }) if *after_ms < 0 => {
                write!(f, "not committed {app} {revision}: {why}")
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
    /// Whether that is because nothing was to be done.
    left_alone: bool,
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
                    self.left_alone = true;
                } else if self.left_alone && matches!(action.as_str(), "build" | "commit") {
                    // What it waited for has come.
                    (self.end, self.left_alone) = (None, false);
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
        self.left_alone = false;
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
mod tests;
