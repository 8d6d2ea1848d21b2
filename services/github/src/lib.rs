//! GitHub, where the source of some apps is validated, behind [`Origin`](fabrique_ports::upstream::Origin).
//!
//! Only reads: the commits of a branch, and what check runs and commit statuses say of one. The requests and their
//! credentials are octocrab's, on a client of the workspace's reqwest; the answers are read here, since octocrab keeps
//! neither a check run's status nor the headers that say when the next request is welcome.
//!
//! | question | requests |
//! | --- | --- |
//! | the newest commits of a branch | its head, and one page of commits from there |
//! | whether the branch contains a revision | one comparison |
//! | what checks say of a revision | pages of 100 check runs, and of 100 commit statuses |
//!
//! A request beyond GitHub's limits is no error: the answer is [`Asked::Limited`](fabrique_ports::upstream::Asked) with
//! the time from which on it may be asked again.
//!
//! [`Relay`] is the forge's own way to GitHub while it is told to fetch.
//!
//! This crate must not know what is built from what passed, and where it is kept.

mod answers;
mod client;
mod config;
mod error;
mod origin;
mod relay;

pub use client::{Clock, Github};
pub use config::{GithubConfig, Timeouts};
pub use error::GithubError;
pub use relay::{Relay, RelayConfig};
