//! Kubernetes: builder pods, the policies around them, and a warm pool of daemons behind
//! [`fabrique_ports::builder::Placement`].
//!
//! Functional core, thin shell. Everything that can be a pure function is one, tested by snapshots and properties
//! without a cluster:
//!
//! * [`config`]: what an operator decides, checked as a whole;
//! * [`pod`] and [`daemon_toml`]: the pod of both isolations, and its daemon's configuration;
//! * [`pki`]: one authority, a serving certificate for each pod, client certificates in memory;
//! * [`network`]: policies from a typed allow-list, and the refusal of anything that opens the world.
//!
//! This crate must not know why something is built, how a solve works, or any other adapter. It reads no files and
//! no environment: settings, certificates and the client for the API server come in from outside.

pub mod config;
pub mod daemon_toml;
mod finding;
pub mod labels;
pub mod network;
pub mod pki;
pub mod pod;
#[cfg(test)]
mod testing;

pub use finding::Finding;
