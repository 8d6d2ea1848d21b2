//! Git as fabrique needs it: the history of the apps' repositories ([`GitHistory`]) and the reading and
//! writing of `cluster/apps` ([`GitDeployments`]), over the git command line and one request of git's protocol.
//!
//! The command line keeps clones and makes commits and packs: without a work tree, by one `git fast-import` and
//! one `git pack-objects` each time. The push itself is a single HTTP request to the forge's `receive-pack`, with
//! the branch's old id in it: a compare-and-swap of the branch on every forge, without asking for its branches
//! first. A write-back so costs little more than what the forge does with it.
//!
//! What holds here:
//!
//! * Git is started with argument arrays, an empty environment, no configuration but this crate's own, no
//!   hooks, no redirects and only the protocols that are allowed. Every call has a timeout and a bound on its
//!   output; a call that is dropped or late is ended with everything it started.
//! * A token is a header: in the environment of one child, scoped to the forge's base URL, or in that request,
//!   whose redirects are not followed. It is never in an argument, in a file or in an error.
//! * Clones are a cache: whatever is wrong with one, it is thrown away and made again from the forge. Several
//!   processes may share a state directory.
//! * A push whose answer is unclear is [`Unknown`](fabrique_ports::deployments::PushOutcome::Unknown). Reading
//!   back is the caller's, as is every retry.
//!
//! Clones are whole, not partial: with `--filter=blob:none` every read of a file would depend on the forge's
//! being up, one request per file.
//!
//! This crate must not know what a composition, a build or a decision is, nor the forge's REST API.

mod checkout;
mod command;
mod config;
mod deployments;
mod error;
mod history;
mod import;
mod lock;
mod mirror;
mod objects;
mod push;
mod receive_pack;
mod remote;
mod report;
mod run;

pub use checkout::Checkout;
pub use config::{AppsRepository, GitConfig, Identity, Limits, ReadTokens, Timeouts};
pub use deployments::GitDeployments;
pub use error::GitError;
pub use history::GitHistory;
