//! Random histories against the one decision and its rules.
//!
//! A small model of everything around `fabrique_core` (a source repository, `cluster/apps`, a registry,
//! the records, the wake protocol, workers that crash and are overtaken) is driven by proptest. After every
//! step the six sentences of "What must hold, whatever fails" are checked against the model's true
//! history, and once more when the faults stop and the world has come to rest. A failure prints the shrunk
//! history, one line per step.
#![expect(clippy::expect_used, reason = "the model makes valid identifiers, or the test is wrong")]

mod apps;
mod audit;
mod fairness;
mod gather;
mod history;
mod ids;
mod retries;
mod scenarios;
mod source;
mod verdicts;
mod worker;
mod world;

use proptest::prelude::*;
use proptest::test_runner::Config;

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
