//! The bounds inside which automation acts. All of them are configuration.

use std::time::Duration;

use crate::failure::{Failure, FailureKind};
use crate::id::{BuildId, BuildKey, Revision};
use crate::time::Timestamp;

/// Bounds on retries and supersedes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Attempts at one build key before it becomes a dead letter.
    pub max_attempts: u32,
    /// The first backoff; it doubles with each attempt.
    pub backoff_base: Duration,
    /// The longest backoff.
    pub backoff_max: Duration,
    /// How long a dead letter rests between two attempts.
    pub dead_letter_rest: Duration,
    /// How many builds in a row may be superseded before one is finished whatever comes.
    pub max_supersedes: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            backoff_base: Duration::from_secs(2),
            backoff_max: Duration::from_mins(5),
            dead_letter_rest: Duration::from_hours(1),
            max_supersedes: 3,
        }
    }
}

/// What is known about an attempt that just failed.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// What was being built.
    pub key: BuildKey,
    /// From which revision.
    pub revision: Revision,
    /// The attempt, where it got that far.
    pub build: Option<BuildId>,
    /// Its kind.
    pub kind: FailureKind,
    /// One sentence for people.
    pub message: String,
    /// The last lines that the failing step printed.
    pub log_tail: Vec<String>,
}

impl Policy {
    /// The failure to remember after `attempt`, given the previous one. `jitter` in `0.0..=1.0` is drawn by
    /// the caller and spreads the backoff over its upper half.
    #[must_use]
    pub fn failure(
        &self,
        previous: Option<&Failure>,
        attempt: Attempt,
        now: Timestamp,
        jitter: f64,
    ) -> Failure {
        let earlier = previous.filter(|p| p.key == attempt.key).map_or(0, |p| p.attempts);
        let counts = attempt.kind.counts();
        let attempts = earlier.saturating_add(counts.into());
        let dead = attempt.kind.retryable() && counts && attempts >= self.max_attempts;
        let rest = match (attempt.kind.retryable(), dead) {
            (false, _) => Duration::ZERO,
            (true, true) => self.dead_letter_rest,
            // It has waited already: what it is given back for is that others have their turn.
            (true, false) if !counts => self.backoff(1, jitter),
            (true, false) => self.backoff(attempts, jitter),
        };
        Failure {
            key: attempt.key,
            revision: attempt.revision,
            build: attempt.build,
            kind: attempt.kind,
            message: attempt.message,
            log_tail: attempt.log_tail,
            attempts,
            at: now,
            not_before: now.after(rest),
            dead,
        }
    }

    /// The wait after the `attempts`-th failure: exponential, capped, its upper half jittered.
    #[must_use]
    pub fn backoff(&self, attempts: u32, jitter: f64) -> Duration {
        let doublings = attempts.saturating_sub(1).min(20);
        let full = self.backoff_base.saturating_mul(1 << doublings).min(self.backoff_max);
        full / 2 + (full / 2).mul_f64(jitter.clamp(0.0, 1.0))
    }
}
