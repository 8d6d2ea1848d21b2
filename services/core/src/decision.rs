//! The one decision: what an app needs next, and why.

use std::fmt;

use crate::failure::{Failure, FailureKind};
use crate::id::{BuildKey, Channel, EnvironmentName, Revision};
use crate::relation::{Relation, Watched};
use crate::time::Timestamp;
use crate::verdict::{Candidate, Verdict, judge_image, judge_infra};
use crate::view::{Declared, LastBuilt, Recorded, Target, View};

/// The answer: what to do next and the reason, with what every channel of every environment needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What to do next.
    pub action: Action,
    /// Why, for people.
    pub reason: Reason,
    /// What each channel needs, in the order of the registration.
    pub channels: Vec<ChannelVerdict>,
}

/// What one channel of one environment needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelVerdict {
    /// The environment.
    pub environment: EnvironmentName,
    /// The channel.
    pub channel: Channel,
    /// What it needs.
    pub verdict: Verdict,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a build.
    Build {
        /// From this revision.
        revision: Revision,
        /// Under this key.
        key: BuildKey,
        /// Whether to ignore the cache.
        no_cache: bool,
    },
    /// Let the running build go on.
    Continue,
    /// Stop the running build; the next decision says what follows.
    Stop {
        /// The newer target, or nothing when nothing is to be built any more.
        superseded_by: Option<Revision>,
    },
    /// Write to `cluster/apps`, one commit per advance.
    Commit(Vec<Advance>),
    /// Decide again at this time, or earlier when something changes.
    WaitUntil(Timestamp),
    /// Nothing until something changes.
    Nothing,
}

/// One commit to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advance {
    /// Deploy the image of the target.
    Image {
        /// Where.
        environment: EnvironmentName,
        /// From this revision.
        revision: Revision,
        /// This image.
        image: Recorded,
        /// Built under this key.
        key: BuildKey,
    },
    /// Copy and fill the overlay.
    Infra {
        /// Where.
        environment: EnvironmentName,
        /// At this revision.
        revision: Revision,
        /// Under this key its refusals are counted.
        key: BuildKey,
    },
}

/// Why the decision is what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// There is nothing to build: no branch, no repository.
    NoTarget(String),
    /// The target is not built yet.
    NotBuilt(Revision),
    /// It failed before and is tried again.
    Retry {
        /// The revision.
        revision: Revision,
        /// Which attempt this is, from 2.
        attempt: u32,
    },
    /// The target's image is recorded and answered for by the registry.
    Recorded(Revision),
    /// The overlay changed.
    InfraChanged(Revision),
    /// A build of the target, or of something as good, is under way.
    Building(Revision),
    /// The running build is finished first, since too many in a row were superseded.
    FinishFirst {
        /// The revision under way.
        running: Revision,
        /// The target that follows.
        next: Revision,
    },
    /// The running build's digest is recorded: it is written back first.
    PastNoReturn(Revision),
    /// A newer target came.
    Superseded {
        /// The revision under way.
        running: Revision,
        /// The newer target.
        by: Revision,
    },
    /// The running build is not wanted any more.
    NotWanted {
        /// The revision under way.
        running: Revision,
        /// Why.
        why: String,
    },
    /// The last attempt at this very build failed.
    Failed {
        /// Its kind.
        kind: FailureKind,
        /// One sentence.
        message: String,
        /// How many attempts there were.
        attempts: u32,
        /// Whether they are used up.
        dead: bool,
    },
    /// The target is built and there is no environment to write to.
    Built(Revision),
    /// Every channel has what it needs or waits for a person: the most telling of them.
    Settled(Verdict),
}

/// What the app needs next, and why.
#[must_use]
pub fn decide(view: &View) -> Decision {
    let Target::At { revision, key } = &view.target else { return without_target(view) };
    let released = view.memory.released.as_ref() == Some(revision);
    let channels = judge_all(view, released);
    let (action, reason) = Deciding { view, revision, key, channels: &channels }.answer();
    Decision { action, reason, channels }
}

fn without_target(view: &View) -> Decision {
    let why = match &view.target {
        Target::Nothing(why) => why.clone(),
        Target::At { .. } => String::new(),
    };
    let (action, reason) = match &view.memory.running {
        Some(running) if !running.pushed => (
            Action::Stop { superseded_by: None },
            Reason::NotWanted { running: running.revision.clone(), why },
        ),
        Some(_) | None => (Action::Nothing, Reason::NoTarget(why)),
    };
    Decision { action, reason, channels: Vec::new() }
}

fn judge_all(view: &View, released: bool) -> Vec<ChannelVerdict> {
    view.environments
        .iter()
        .flat_map(|environment| {
            let image = judge_image(environment, Candidate::Target, released, &view.declared);
            let image_comes = image == Verdict::Advance && view.record.is_some();
            let has_image = environment.image.digest.is_some() || image_comes;
            let infra = judge_infra(environment, has_image, released, &view.declared);
            [(Channel::Image, image), (Channel::Infra, infra)].map(|(channel, verdict)| ChannelVerdict {
                environment: environment.name.clone(),
                channel,
                verdict,
            })
        })
        .collect()
}

struct Deciding<'a> {
    view: &'a View,
    revision: &'a Revision,
    key: &'a BuildKey,
    channels: &'a [ChannelVerdict],
}

impl Deciding<'_> {
    fn answer(&self) -> (Action, Reason) {
        if let Some(answer) = self.running() {
            return answer;
        }
        let advances = self.advances();
        let answer = if let Some(first) = advances.first() {
            let reason = match first {
                Advance::Image { .. } => Reason::Recorded(self.revision.clone()),
                Advance::Infra { .. } => Reason::InfraChanged(self.revision.clone()),
            };
            self.resting().unwrap_or((Action::Commit(advances), reason))
        } else if self.image_wanted() && self.view.record.is_none() {
            self.build()
        } else {
            self.settled()
        };
        self.until_an_overlay_is_due(answer)
    }

    /// What becomes of a build under way; nothing when there is none.
    fn running(&self) -> Option<(Action, Reason)> {
        let running = self.view.memory.running.as_ref()?;
        let under_way = || running.revision.clone();
        if running.pushed {
            return Some((Action::Continue, Reason::PastNoReturn(under_way())));
        }
        if let Some(cancelled) = self.view.memory.cancelled() {
            let why = cancelled.message.clone();
            return Some((
                Action::Stop { superseded_by: None },
                Reason::NotWanted { running: under_way(), why },
            ));
        }
        if self.wanted_but_for_a_slip() {
            return Some((Action::Continue, Reason::Building(under_way())));
        }
        if !self.image_wanted() {
            let why = self.most_telling().map_or_else(|| "nothing needs it".to_owned(), |v| v.to_string());
            return Some((
                Action::Stop { superseded_by: None },
                Reason::NotWanted { running: under_way(), why },
            ));
        }
        let as_good = running.key == *self.key
            || (running.revision != *self.revision
                && self.view.running_to_target == Some(Watched::Unchanged));
        if as_good {
            return Some((Action::Continue, Reason::Building(under_way())));
        }
        let on_branch = self.view.running_to_target.is_some();
        if on_branch && self.view.memory.supersedes >= self.view.policy.max_supersedes {
            let reason = Reason::FinishFirst { running: under_way(), next: self.revision.clone() };
            return Some((Action::Continue, reason));
        }
        Some((
            Action::Stop { superseded_by: Some(self.revision.clone()) },
            Reason::Superseded { running: under_way(), by: self.revision.clone() },
        ))
    }

    fn advances(&self) -> Vec<Advance> {
        let advance = |channel: &ChannelVerdict| {
            let environment = channel.environment.clone();
            let (revision, key) = (self.revision.clone(), self.key.clone());
            match channel.channel {
                Channel::Image => {
                    let image = self.view.record.clone()?;
                    Some(Advance::Image { environment, revision, image, key })
                }
                Channel::Infra if self.resting_overlay(channel).is_some() => None,
                Channel::Infra => Some(Advance::Infra { environment, revision, key }),
            }
        };
        self.channels.iter().filter(|c| c.verdict == Verdict::Advance).filter_map(advance).collect()
    }

    /// How the forge refused the last push of a wanted overlay that has to wait since then.
    fn resting_overlay(&self, channel: &ChannelVerdict) -> Option<&Failure> {
        if channel.channel != Channel::Infra || channel.verdict != Verdict::Advance {
            return None;
        }
        let memory = self.view.memory.environments.get(&channel.environment)?;
        memory.infra.failure_at(self.key).filter(|failure| self.view.now < failure.not_before)
    }

    /// An app with nothing else to do is looked at again when a refused overlay is due. A build's own failure says more of
    /// the target than that its overlay waits.
    fn until_an_overlay_is_due(&self, (action, reason): (Action, Reason)) -> (Action, Reason) {
        let resting = self.channels.iter().filter_map(|channel| self.resting_overlay(channel));
        let Some(failure) = resting.min_by_key(|failure| failure.not_before) else { return (action, reason) };
        let until = match action {
            Action::Nothing => failure.not_before,
            Action::WaitUntil(until) => until.min(failure.not_before),
            Action::Build { .. } | Action::Continue | Action::Stop { .. } | Action::Commit(_) => {
                return (action, reason);
            }
        };
        let is_told = matches!(reason, Reason::Failed { .. });
        (Action::WaitUntil(until), if is_told { reason } else { Reason::failed(failure) })
    }

    fn image_wanted(&self) -> bool {
        if self.view.environments.is_empty() {
            return self.outdated() && self.view.declared == Declared::Admitted;
        }
        self.channels.iter().any(|c| c.channel == Channel::Image && c.verdict == Verdict::Advance)
    }

    /// Whether only a slip in another app's registration keeps the image from being wanted.
    fn wanted_but_for_a_slip(&self) -> bool {
        if !matches!(self.view.declared, Declared::Suspended(_)) {
            return false;
        }
        if self.view.environments.is_empty() {
            return self.outdated();
        }
        let released = self.view.memory.released.as_ref() == Some(self.revision);
        self.view.environments.iter().any(|environment| {
            judge_image(environment, Candidate::Target, released, &Declared::Admitted) == Verdict::Advance
        })
    }

    /// Whether an app without environments lacks a build of its target.
    fn outdated(&self) -> bool {
        self.view.record.is_none() && self.view.last_built.as_ref().is_none_or(LastBuilt::is_outdated)
    }

    /// What to say of a target that an app without environments needs no build of, although it was never built.
    fn unchanged_since_built(&self) -> Option<Verdict> {
        let step = self.view.last_built.as_ref().map(|last| &last.step)?;
        let skipped = step.relation != Relation::Same && step.watched == Watched::Unchanged;
        (skipped && self.view.record.is_none()).then(|| Verdict::Unchanged { since: step.from.clone() })
    }

    /// Starts the build, unless the last attempt at it says to wait.
    fn build(&self) -> (Action, Reason) {
        let start = |reason| {
            let action = Action::Build {
                revision: self.revision.clone(),
                key: self.key.clone(),
                no_cache: self.view.memory.no_cache,
            };
            (action, reason)
        };
        let Some(failure) = self.last_failure() else {
            return start(Reason::NotBuilt(self.revision.clone()));
        };
        if !failure.kind.retryable() {
            return (Action::Nothing, Reason::failed(failure));
        }
        self.resting().unwrap_or_else(|| {
            start(Reason::Retry {
                revision: self.revision.clone(),
                attempt: failure.attempts.saturating_add(1),
            })
        })
    }

    fn last_failure(&self) -> Option<&Failure> {
        self.view.memory.failure.as_ref().filter(|f| f.key == *self.key)
    }

    /// The wait that a failed attempt at this key left behind, whether it failed to build or to commit.
    fn resting(&self) -> Option<(Action, Reason)> {
        let failure = self.last_failure().filter(|f| f.kind.retryable() && self.view.now < f.not_before)?;
        Some((Action::WaitUntil(failure.not_before), Reason::failed(failure)))
    }

    fn settled(&self) -> (Action, Reason) {
        let reason = match self.most_telling() {
            Some(verdict) => Reason::Settled(verdict),
            None => Reason::Built(self.revision.clone()),
        };
        let release = self.channels.iter().filter_map(|c| match &c.verdict {
            Verdict::Held { until, .. } => *until,
            Verdict::Advance
            | Verdict::UpToDate
            | Verdict::OtherImage { .. }
            | Verdict::Unchanged { .. }
            | Verdict::TakenBack { .. }
            | Verdict::Rewound { .. }
            | Verdict::DeployedUnknown { .. }
            | Verdict::Older { .. }
            | Verdict::NotDescendant { .. }
            | Verdict::OffBranch
            | Verdict::NotReady(_)
            | Verdict::Misdeclared(_)
            | Verdict::Trouble(_)
            | Verdict::NoImageYet
            | Verdict::NotAutomatic => None,
        });
        (release.min().map_or(Action::Nothing, Action::WaitUntil), reason)
    }

    /// What waits for a person says most, whatever the channel; then an image says more than an infra. An app without
    /// environments has no channel, and what it declares may stop its build.
    fn most_telling(&self) -> Option<Verdict> {
        if self.view.environments.is_empty() {
            let stopped = self.view.declared.verdict().filter(|_| self.outdated());
            return stopped.or_else(|| self.unchanged_since_built());
        }
        let rank = |c: &ChannelVerdict| match (&c.verdict, c.channel) {
            (Verdict::Trouble(_), _) => 0,
            (Verdict::TakenBack { .. }, _) => 1,
            (Verdict::Rewound { .. } | Verdict::DeployedUnknown { .. }, _) => 2,
            (Verdict::Held { .. }, _) => 3,
            (Verdict::Misdeclared(_) | Verdict::NotReady(_), _) => 4,
            (Verdict::Older { .. } | Verdict::NotDescendant { .. } | Verdict::OffBranch, _) => 5,
            (Verdict::Unchanged { .. } | Verdict::OtherImage { .. }, Channel::Image) => 6,
            (Verdict::Advance | Verdict::UpToDate, Channel::Image) => 7,
            (Verdict::Unchanged { .. } | Verdict::OtherImage { .. }, Channel::Infra) => 8,
            (Verdict::Advance | Verdict::UpToDate, Channel::Infra) => 9,
            (Verdict::NoImageYet, _) => 10,
            (Verdict::NotAutomatic, _) => 11,
        };
        self.channels.iter().min_by_key(|c| rank(c)).map(|c| c.verdict.clone())
    }
}

impl Reason {
    /// Whether the attempts are used up: it is a dead letter.
    #[must_use]
    pub fn is_dead_letter(&self) -> bool {
        matches!(self, Reason::Failed { dead: true, .. })
    }

    fn failed(failure: &Failure) -> Self {
        Reason::Failed {
            kind: failure.kind,
            message: failure.message.clone(),
            attempts: failure.attempts,
            dead: failure.dead,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoTarget(why) => write!(f, "nothing to build: {why}"),
            Reason::NotBuilt(revision) => write!(f, "{} is not built yet", revision.short()),
            Reason::Retry { revision, attempt } => write!(f, "attempt {attempt} at {}", revision.short()),
            Reason::Recorded(revision) => write!(f, "{} is built and recorded", revision.short()),
            Reason::InfraChanged(revision) => write!(f, "the overlay changed up to {}", revision.short()),
            Reason::Building(revision) => write!(f, "{} is being built", revision.short()),
            Reason::FinishFirst { running, next } => write!(
                f,
                "{} is finished before {}, since earlier builds were superseded in a row",
                running.short(),
                next.short()
            ),
            Reason::PastNoReturn(revision) => {
                write!(f, "{} is pushed and being written back", revision.short())
            }
            Reason::Superseded { running, by } => {
                write!(f, "{} is superseded by {}", running.short(), by.short())
            }
            Reason::NotWanted { running, why } => {
                write!(f, "{} is not wanted any more: {why}", running.short())
            }
            Reason::Failed { kind: FailureKind::Cancelled, message, .. } => {
                write!(f, "{message}; a newer revision or `fabrique retry` starts again")
            }
            Reason::Failed { kind: FailureKind::Source, message, .. } => {
                write!(
                    f,
                    "failed by its source: {message}; a newer revision or `fabrique retry` starts again"
                )
            }
            Reason::Failed { kind: FailureKind::Unplaced, message, .. } => {
                write!(f, "waits for a builder: {message}")
            }
            Reason::Failed { message, attempts, dead: false, .. } => {
                write!(f, "attempt {attempts} failed and is tried again: {message}")
            }
            Reason::Failed { message, attempts, dead: true, .. } => {
                write!(
                    f,
                    "dead letter after {attempts} attempts: {message}; `fabrique dlq replay` starts again"
                )
            }
            Reason::Built(revision) => {
                write!(f, "{} is built and there is nothing to write back", revision.short())
            }
            Reason::Settled(verdict) => verdict.fmt(f),
        }
    }
}
