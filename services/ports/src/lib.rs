//! The doors between the services and the world: an async trait for each thing that a peer is asked for, in the
//! words of the domain.
//!
//! Services (receiver, worker, reconciler, operator) are written against these traits; adapters (gitea,
//! git, github, registry, bus, buildkit, kubernetes, argocd) implement them and never know each other; the binary wires them.
//! Expected outcomes are values ([`PushOutcome::Moved`], [`BranchHead::NoBranch`]); a [`PortError`] is a
//! surprise that says whether trying again can help.
//!
//! This crate must not know any wire format, client library or configuration.

mod ambient;
pub mod applications;
pub mod builder;
pub mod bus;
pub mod delivery;
pub mod deployments;
pub mod egress;
mod error;
pub mod forge;
pub mod inventory;
pub mod records;
pub mod registry;
pub mod secrets;
pub mod setup;
pub mod source;
#[cfg(feature = "testing")]
pub mod testing;
pub mod upstream;

pub use ambient::Ambient;
pub use error::{Fault, Peer, PortError, PortResult};
