//! The files of `cluster/apps`, pure: bytes in, bytes out.
//!
//! `cluster/apps` is the git repository through which everything reaches production. This crate reads its
//! registrations ([`registration`]) and compositions ([`composition`]), knows where else in the files a
//! deployed value has to show ([`binding`], [`placeholder`], [`fabrique_yaml::path`]), and plans each automatic
//! commit ([`plan`]) as a set of [`changes::Changes`] with a message whose trailers ([`message`]) let all state
//! be rebuilt from git. What Argo CD reads of it is rendered ([`render`]).
//!
//! Three rules hold everywhere:
//!
//! * **Exact.** An edit replaces the bytes of a value and no others; what cannot be proven is refused
//!   ([`fabrique_yaml`]).
//! * **All or nothing.** A plan sets every binding of its channel or returns a [`Refusal`] that tells a
//!   person what happened, where, and what to do next. A plan that changes nothing is no plan.
//! * **Least privilege.** Paths are checked against a scope, symlinks are never followed.
//!
//! It must not know how files are fetched, committed or pushed, what the time is, or whether a commit is
//! *wanted*: ancestry, "taken back" and supersession are decided in `fabrique-core` on the values that
//! [`head`] observes.

pub mod batch;
pub mod binding;
pub mod changes;
pub mod composition;
pub mod head;
pub mod layout;
pub mod message;
pub mod overlay;
pub mod placeholder;
pub mod plan;
pub mod refusal;
pub mod registration;
pub mod render;
pub mod tree;

pub use batch::Batch;
pub use changes::{Changes, Scope};
pub use fabrique_yaml::{Finding, did_you_mean};
pub use message::{CommitMessage, Trailers};
pub use overlay::OverlayFiles;
pub use plan::{Plan, Planned};
pub use refusal::Refusal;
pub use registration::{Registrations, Rules};
pub use tree::{Entry, FileKind, Tree};
