use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::BuildKey;
use fabrique_core::time::Timestamp;

use super::*;

fn revision(digit: char) -> Revision {
    Revision::parse(&digit.to_string().repeat(40)).unwrap()
}

fn failed() -> Memory {
    let failure = Failure {
        key: BuildKey::parse(&"ab".repeat(32)).unwrap(),
        revision: revision('a'),
        build: None,
        kind: FailureKind::Source,
        message: "cargo build failed".to_owned(),
        log_tail: Vec::new(),
        attempts: 1,
        at: Timestamp(0),
        not_before: Timestamp(0),
        dead: true,
    };
    Memory { failure: Some(failure), ..Memory::default() }
}

#[test]
fn a_failure_is_forgotten_with_a_commit_of_automation_and_not_with_one_of_a_person() {
    let prod = EnvironmentName::parse("prod").unwrap();
    let committed = Committed { commit: None, revision: revision('b'), digest: None, key: None };
    let automatic = Some((prod.clone(), Channel::Infra, committed.clone()));
    for (automatic, stays) in [(None, true), (automatic, false)] {
        let (mut memory, landed) = (failed(), Landed { commit: revision('c'), automatic });
        remember(&mut memory, &Proposal::default(), &[landed]);
        assert_eq!(memory.failure.is_some(), stays);
        let known = memory.channel(&prod, Channel::Infra).committed;
        assert_eq!(known, (!stays).then(|| committed.clone()), "a person's commit is not automation's");
    }
    let mut memory = failed();
    remember(&mut memory, &Proposal::default(), &[]);
    assert!(memory.failure.is_some(), "nothing landed");
}
