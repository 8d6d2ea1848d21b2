use fabrique_core::memory::Built;
use fabrique_core::policy::Policy;
use fabrique_core::time::Timestamp;

use super::*;

fn key() -> BuildKey {
    BuildKey::parse(&"ab".repeat(32)).unwrap()
}

fn built() -> Built {
    Built {
        build: BuildId::parse("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap(),
        key: key(),
        revision: Revision::parse(&"a".repeat(40)).unwrap(),
        digest: Digest::of(b"image"),
    }
}

/// An attempt under way, and how the one before it failed.
fn under_way(earlier: Option<Failure>) -> Memory {
    let Built { build, key, revision, .. } = built();
    let running = Running { build, key, revision, token: 1, started: Timestamp(0), pushed: false };
    Memory { running: Some(running), failure: earlier, ..Memory::default() }
}

fn attempt(kind: FailureKind) -> Attempt {
    let Built { build, key, revision, .. } = built();
    let message = "the registry did not answer".to_owned();
    Attempt { key, revision, build: Some(build), kind, message, log_tail: Vec::new() }
}

#[test]
fn a_failure_of_another_build_does_not_hide_the_earlier_one_of_this() {
    let policy = Policy::default();
    let earlier = policy.failure(None, attempt(FailureKind::Environment), Timestamp(0), 0.5);
    let other = Failure { key: BuildKey::parse(&"cd".repeat(32)).unwrap(), ..earlier.clone() };
    let mut memory = under_way(Some(other));
    failing::note(&mut memory, Some(&earlier), |before| {
        policy.failure(before, attempt(FailureKind::Environment), Timestamp(0), 0.5)
    });
    assert_eq!(memory.failure.unwrap().attempts, 2);
}

#[test]
fn a_build_goes_on_although_its_registration_is_wrong_unless_a_person_cancels_it() {
    let stop = Action::Stop { superseded_by: None };
    let cancelled = Policy::default().failure(None, attempt(FailureKind::Cancelled), Timestamp(0), 0.5);
    for (is_wrong, failure, action) in [
        (true, None, Action::Continue),
        (true, Some(cancelled.clone()), stop.clone()),
        (true, Some(Failure { kind: FailureKind::Environment, ..cancelled.clone() }), Action::Continue),
        (false, None, stop.clone()),
        (false, Some(cancelled), stop),
    ] {
        assert_eq!(
            without_registration(is_wrong, &under_way(failure.clone())),
            action,
            "{is_wrong} {failure:?}"
        );
    }
}
