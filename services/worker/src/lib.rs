//! From a wake to a digest on `cluster/apps`.
//!
//! A worker follows the board of all apps ([`board`]), claims the due app that was served longest ago
//! ([`lease`]), looks at it and does what the decision says ([`session`]) until nothing is left to do:
//! build ([`building`]) and write back ([`committer`], the one completion path of fresh builds, adopted
//! records and overlays). Whatever it does can be stopped between any two steps and taken up by another
//! worker: every effect is idempotent, the guard and the branch's compare-and-swap decide, the lease only
//! saves work.
//!
//! This crate speaks to the world through `fabrique-ports` only. It must not know any server, clock or
//! source of randomness: time, ids and jitter come from [`Ambient`](fabrique_ports::Ambient).

mod announce;
mod applications;
mod board;
mod building;
mod commands;
mod committer;
mod config;
mod dependants;
mod ending;
mod failing;
mod follow;
mod lease;
mod logging;
mod measure;
mod memory;
mod migrations;
mod outcome;
mod pending;
mod place;
mod recording;
mod run;
mod session;
mod settle;
mod slots;
mod status;
mod statuses;
mod tagging;
#[cfg(test)]
mod testing;
mod unregistered;
mod writeback;

pub use fabrique_supervisor::TaskEnded;

pub use config::{Bounds, Ports, WorkerConfig};
pub use measure::describe;
pub use run::Worker;
