//! The bounds on retries.

use std::time::Duration;

use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::policy::{Attempt, Policy};
use fabrique_core::time::Timestamp;
use proptest::prelude::*;

use crate::ids::{app, key, revision};

fn kinds() -> impl Strategy<Value = FailureKind> {
    prop_oneof![
        Just(FailureKind::Source),
        Just(FailureKind::Environment),
        Just(FailureKind::Infrastructure),
        Just(FailureKind::Unplaced),
        Just(FailureKind::Cancelled),
    ]
}

fn attempt(rev: usize, kind: FailureKind) -> Attempt {
    let message = "it broke".into();
    Attempt {
        key: key(&app(), rev, 0),
        revision: revision(rev),
        build: None,
        kind,
        message,
        log_tail: Vec::new(),
    }
}

fn fails(policy: &Policy, times: u32, kind: FailureKind, jitter: f64) -> Vec<Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    for _ in 0..times {
        let now = failures.last().map_or(Timestamp(0), |failure| failure.not_before);
        failures.push(policy.failure(failures.last(), attempt(1, kind), now, jitter));
    }
    failures
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn waits_double_inside_their_bounds_and_end_in_a_dead_letter(jitter in 0.0..=1.0_f64) {
        let policy = Policy::default();
        let failures = fails(&policy, 12, FailureKind::Infrastructure, jitter);
        for (n, failure) in (1..).zip(&failures) {
            prop_assert_eq!(failure.attempts, n);
            prop_assert_eq!(failure.dead, n >= policy.max_attempts);
            let wait = failure.at.until(failure.not_before);
            if failure.dead {
                prop_assert_eq!(wait, policy.dead_letter_rest);
            } else {
                let full = policy.backoff_base * 2_u32.pow(n - 1);
                prop_assert!(wait >= full / 2 && wait <= full, "{:?} after attempt {}", wait, n);
            }
        }
    }

    #[test]
    fn a_backoff_never_exceeds_its_bound_whatever_the_numbers(
        attempts in any::<u32>(), jitter in any::<f64>(), base in 1..100_000_u64, max in 1..100_000_u64,
    ) {
        let policy = Policy {
            backoff_base: Duration::from_millis(base),
            backoff_max: Duration::from_millis(max),
            ..Policy::default()
        };
        let wait = policy.backoff(attempts, if jitter.is_nan() { 0.0 } else { jitter });
        prop_assert!(wait <= policy.backoff_max);
        prop_assert!(wait >= policy.backoff_base.min(policy.backoff_max) / 2);
    }

    #[test]
    fn what_cannot_be_helped_by_trying_is_no_dead_letter_and_waits_for_nothing(
        kind in kinds().prop_filter("not retryable", |kind| !kind.retryable()), times in 1..20_u32,
    ) {
        for failure in fails(&Policy::default(), times, kind, 0.5) {
            prop_assert!(!failure.dead);
            prop_assert_eq!(failure.not_before, failure.at);
        }
    }

    #[test]
    fn another_key_starts_its_count_anew(times in 1..20_u32, kind in kinds()) {
        let policy = Policy::default();
        let failures = fails(&policy, times, kind, 0.5);
        let other = policy.failure(failures.last(), attempt(2, kind), Timestamp(0), 0.5);
        prop_assert_eq!(other.attempts, u32::from(kind.counts()));
        prop_assert!(!other.dead);
    }

    #[test]
    fn waiting_for_a_builder_uses_no_attempt_up_and_never_ends_in_a_dead_letter(
        failed in 0..4_u32, waits in 1..50_u32, jitter in 0.0..=1.0_f64,
    ) {
        let policy = Policy::default();
        let mut last = fails(&policy, failed, FailureKind::Infrastructure, jitter).pop();
        for _ in 0..waits {
            let waited = policy.failure(last.as_ref(), attempt(1, FailureKind::Unplaced), Timestamp(0), jitter);
            prop_assert_eq!(waited.attempts, failed);
            prop_assert!(!waited.dead);
            prop_assert!(waited.at.until(waited.not_before) <= policy.backoff_base);
            last = Some(waited);
        }
        let tried = policy.failure(last.as_ref(), attempt(1, FailureKind::Infrastructure), Timestamp(0), jitter);
        prop_assert_eq!(tried.attempts, failed + 1);
    }
}
