//! Random histories against the one decision and its rules.
//!
//! A small model of everything around `fabrique_core` (a source repository, `cluster/apps`, a registry,
//! the records, the wake protocol, workers that crash and are overtaken) is driven by proptest. After every
//! step what must hold, whatever fails, is checked against the model's true history, and once more when the faults
//! stop and the world has come to rest: that all shows the newest is judged there. Each history ends a second time
//! without the reconciler, so that a lost wake is not made good by a sweep. A failure prints the shrunk history, one
//! line per step.
#![expect(clippy::expect_used, reason = "the model makes valid identifiers, or the test is wrong")]

mod apps;
mod arrivals;
mod audit;
mod fairness;
mod gather;
mod history;
mod ids;
mod quiet;
mod retries;
mod scenarios;
mod source;
mod verdicts;
mod worker;
mod world;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};

/// `PROPTEST_CASES` asks for more cases.
fn config() -> Config {
    Config { failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_six_sentences_hold_in_every_history(
        setup in history::setups(),
        ops in proptest::collection::vec(history::ops(), 1..80),
    ) {
        if let Err(report) = history::play(setup, &ops) {
            return Err(TestCaseError::fail(report));
        }
    }
}

/// The oracle of the sixth sentence has something to judge.
#[test]
fn random_histories_meet_targets_that_change_no_watched_path() {
    let mut runner = TestRunner::deterministic();
    let histories = (history::setups(), proptest::collection::vec(history::ops(), 80));
    let quiet: Vec<u32> = (0..100)
        .map(|_| {
            let (setup, ops) = histories.new_tree(&mut runner).expect("a history").current();
            history::play(setup, &ops).unwrap_or_else(|report| panic!("{report}")).audit.quiet
        })
        .collect();
    let met = quiet.iter().filter(|decisions| **decisions > 0).count();
    assert!(met >= 30, "{met} of 100 histories, {quiet:?}");
}
