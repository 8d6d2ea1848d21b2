//! The target against the composition, for every app: what no message told is found here.
//!
//! Gitea delivers a webhook at most once, so sooner or later a push is not heard of. A sweep looks at every
//! registered app through the same [`Observer`](fabrique_observer::Observer) and the same decision as a
//! worker, and wakes the apps that need something, saying why. It also wakes what somebody left unfinished:
//! a holder whose record does not move, a build without a worker, a commit whose outcome nobody read back, a
//! commit status that is not final yet. And it ends attempts that the history shows as under way although
//! their worker died without a word and nothing brings another to them, together with their logs.
//!
//! * **Cheap.** An app whose head is deployed costs one request to the forge; one whose head differs in no
//!   watched path costs none beyond that once its history is in the local clone.
//! * **Silent.** A sweep that finds nothing publishes nothing and writes nothing. An app that is due already
//!   is not woken again: its wake is durable, and whoever claims it reads the head afterwards.
//! * **Independent.** A bounded number of apps is looked at at once, and one that cannot be looked at stops
//!   no other.
//!
//! Images and the history are looked after more seldom ([`Depth::Full`]): a tag that keeps a deployed image
//! from garbage collection is set again when it is missing; a deployed image that the registry lost is
//! reported, since only a person can say whether to build it again or to bring it back. Of an app's images one is
//! asked about, the next one each time, and the others as well once that one is not as it should be: two requests an
//! app, whatever it shows.
//!
//! A sweep knows a dead holder by a record that an earlier one saw; one that is alone waits for it instead
//! ([`Reconciler::sweep_alone`]).
//!
//! This crate only wakes, tags, tells, and ends what the history left open. It must not build, commit or change
//! what is remembered.

mod config;
mod history;
mod images;
mod judge;
mod leases;
mod measure;
mod sweep;

pub use config::{Config, Ports};
pub use measure::describe;
pub use sweep::{Closed, Depth, Failed, Finding, Reconciler, Restored, Sweep, Woken};
