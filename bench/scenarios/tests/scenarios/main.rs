//! Scenario 34, gate by gate, on the bed's cluster: see the README for what each gate plays.
//!
//! Gates are tests of their own, but each passes all those before it first, once, whoever asks: run alone or together,
//! in whatever order the tests are started, the same things happen in the same order, that of `gates::ORDER`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail the test")]

mod broken;
mod crowd;
mod deaf;
mod faults;
mod gates;
mod hostile;
mod outages;
mod pushed;
mod recorded;
mod replayed;
mod seeded;
