//! The Gitea adapter: heads, commit statuses and webhooks over REST, and the reading of deliveries.
//!
//! [`Gitea`] implements [`Forge`](fabrique_ports::forge::Forge), [`Hooks`](fabrique_ports::forge::Hooks)
//! and [`ForgeInspection`](fabrique_ports::forge::ForgeInspection) with one pooled client, and [`Administrator`]
//! [`ForgeSetup`](fabrique_ports::setup::ForgeSetup). [`Deliveries`] implements [`DeliveryReader`](fabrique_ports::delivery::DeliveryReader) and is pure.
//!
//! Three things about Gitea decide how this crate looks:
//!
//! * **A delivery is a hint that arrives at most once.** Nothing here believes a payload beyond the
//!   repository and the branch it names; what to build is asked through [`Gitea`].
//! * **Answers are coarse.** An unknown revision is a 500 for a commit status, a repository without rights
//!   is a 404 like one that is not there, and a webhook's secret can neither be read nor changed. Where a
//!   status code does not say what happened, a second question does; messages are never parsed.
//! * **A token is as strong as its weakest use.** There is one per [`Purpose`], and a request carries the one
//!   of its purpose only, to the configured server only.
//!
//! This crate must not know what an app, a registration or a build is, nor retry anything: callers know
//! what a retry is worth.

mod admin;
mod client;
mod config;
mod delivery;
mod error;
mod forge;
mod hooks;
mod inspection;
mod mirrors;
mod text;

pub use admin::Administrator;
pub use client::Gitea;
pub use config::{GiteaConfig, Purpose, Timeouts, Tokens};
pub use delivery::Deliveries;
pub use error::GiteaError;
