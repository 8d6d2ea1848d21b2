//! A worker as a process beside the cluster, which can be killed at any effect, with its builds in pods of the cluster:
//! what the gates of scenario 34 cannot strike at so precisely, or would need an installation of its own for.
//!
//! Every test has a forge, a bus and a registry of its own, a namespace of builders with the policies and the rights
//! that the placement has anywhere, and seconds where people wait for minutes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail the test")]

mod crashes;
mod ends;
mod fetched;
mod ground;
mod pulled;
mod scene;
