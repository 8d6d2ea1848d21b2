//! Scenario 34, gate by gate, on the bed's cluster: see the README for what each gate plays.
//!
//! Gates are tests of their own, but each passes those before it first, once, whoever asks: run alone or together,
//! in whatever order, the same things happen in the same order.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail the test")]

mod broken;
mod crowd;
mod deaf;
mod gates;
mod pushed;
mod recorded;
mod replayed;
mod seeded;
