//! Use cases for people: what the command line offers, without a command line.
//!
//! Every use case is a method or a function that returns plain data, serialisable for programs; the binary
//! renders it as a table or as JSON and ends with an [`Exit`]. What fabrique would do and why is asked of
//! the same [`Observer`](fabrique_observer::Observer) and the same decision that workers follow, so an
//! answer here is never a second opinion.
//!
//! | use case | where |
//! | --- | --- |
//! | `status`, `why` | [`Operator::status`], [`Operator::why`] |
//! | `builds`, `logs`, `tail` | [`Operator::builds`], [`Operator::logs`], [`Operator::tail`] |
//! | `retry`, `rebuild`, `cancel`, `release`, `repair` | [`Operator::command`] |
//! | `dlq` | [`Operator::dead_letters`]; replaying one is `retry` |
//! | `hooks ensure` | [`hooks::ensure`] |
//! | `mirror ensure`, `mirror sync`, `mirror status` | [`mirror::ensure`], [`mirror::sync`], [`mirror::status`] |
//! | `validate` | [`validate::live`], [`validate::directory`], [`declared::live`], [`declared::directory`] |
//! | `render` | [`render::live`], [`render::directory`] |
//! | `secrets` | [`secrets::derive`] |
//! | `init` | [`setup::run`] |
//! | `seed` | [`seed::prepare`], [`seed::carry_out`] |
//! | `doctor` | [`doctor::Doctor`] |
//! | the timeline of a push | [`Operator::timeline`], [`timeline::Timeline`] |
//!
//! Commands are requests to whichever worker hears them; nothing here changes an app by itself. `hooks ensure` writes to
//! webhooks, `mirror` to mirrors and to what is known of GitHub, `secrets` to the derived ones, `init` what an
//! installation needs before its first app, and `seed` does what `secrets` and `hooks ensure` do for the apps it is about.
//!
//! This crate must not print, parse arguments or read configuration, and it must not know any server.

mod builds;
mod commands;
pub mod declared;
mod dlq;
pub mod doctor;
mod egress;
pub mod endpoints;
mod error;
mod exit;
pub mod hooks;
mod lookup;
pub mod mirror;
mod operator;
pub mod render;
pub mod secrets;
pub mod seed;
pub mod setup;
mod status;
pub mod tail;
pub mod timeline;
pub mod validate;
mod why;

pub use commands::Outcome;
pub use dlq::{DeadLetter, Stuck};
pub use egress::BuildEgress;
pub use error::OperatorError;
pub use exit::Exit;
pub use operator::{Operator, Ports};
pub use status::{AppStatus, ChannelStatus, EnvironmentStatus, FailureStatus, RunningStatus, Status};
pub use why::{MemoryFacts, RecordFacts, Why};
