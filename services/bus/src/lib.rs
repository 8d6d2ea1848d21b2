//! The bus: NATS JetStream behind the traits of [`fabrique_ports::bus`] and [`fabrique_ports::records`].
//!
//! Everything that fabrique keeps or says goes through one [`Bus`], which is cheap to clone and safe to share:
//!
//! | trait | what it is here |
//! | --- | --- |
//! | `Wakes` | one publish into `FABRIQUE_WAKE`, which keeps the newest message per app; its sequence is the generation |
//! | `Board` | last-per-subject readers over `FABRIQUE_WAKE` and the bucket `FABRIQUE_WORK`, and compare-and-swap on the latter |
//! | `Records`, `Memories`, `BuildHistory` | JSON in the buckets `FABRIQUE_RECORDS`, `FABRIQUE_MEMORY`, `FABRIQUE_BUILDS` |
//! | `Upstreams` | JSON in the bucket `FABRIQUE_UPSTREAM`, written by one role alone |
//! | `Logs` | `fabrique_log.<build>` in `FABRIQUE_LOGS`, outside of `fabrique.>` so that watching events stays readable |
//! | `Events` | `fabrique.<kind>.…` in `FABRIQUE_EVENTS`, bodies after `proto/fabrique/v1`, CloudEvents headers |
//! | `Commands` | core NATS request and reply on `fabrique.command.<verb>.<app>` |
//! | `BusSetup` | makes what is missing, reports what differs, never changes what exists |
//!
//! # What to know
//!
//! * **The bus is a hint, git is the truth.** Nothing here may be needed to know what should run.
//! * **Acknowledged is stored, not synced**, unless the server says `sync_interval: always`; `inspect` asks.
//! * **A timeout is an unknown outcome.** While the connection is down a publish waits in the client and may still be
//!   stored after the call has failed. Wakes are safe to repeat, swaps are guarded by their revision, events carry a
//!   message id.
//! * **Reads go to the stream's leader**, so that whoever wrote reads its own write on a replicated bus too.
//! * **Readers are short-lived consumers of ours** (`reader`), thrown away and made again on any doubt: a missed
//!   heartbeat, a gap in the numbering, a deleted consumer or stream. Nothing relies on a consumer that survives.
//!
//! This crate must not know what a wake leads to, when to retry a build, or where its configuration comes from.

mod batch;
mod board;
mod builds;
mod codec;
mod commands;
mod config;
mod connection;
mod error;
mod events;
mod kv;
pub mod layout;
mod login;
mod logs;
mod reader;
mod records;
mod rights;
mod server;
mod setup;
pub mod token;
mod upstream;
mod wakes;

pub use config::{BusConfig, Credentials, Limits, Timeouts, Tls};
pub use connection::Bus;
pub use error::BusError;
pub use login::Login;
