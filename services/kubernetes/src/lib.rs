//! Kubernetes: builder pods, the policies around them, and a warm pool of daemons behind
//! [`fabrique_ports::builder::Placement`].
//!
//! Functional core, thin shell. Everything that can be a pure function is one, tested by snapshots and properties
//! without a cluster:
//!
//! * [`config`]: what an operator decides, checked as a whole;
//! * [`pod`] and [`daemon_toml`]: the pod of both isolations, and its daemon's configuration;
//! * [`pki`]: one authority, a serving certificate for each pod, client certificates in memory;
//! * [`pool`]: the warm pool, a state machine over what the pods' annotations say;
//! * [`autopsy`]: why a pod is over, by the fields of its status;
//! * [`isolation`]: which isolation the nodes allow; [`rbac`]: every right that is used, as data;
//! * [`inspect`]: what a doctor asks, without starting anything;
//! * [`inventory`]: what the whole cluster has, for whoever compares it with what apps declare;
//! * [`deployer`]: Argo CD's webhook secret, and the proof that it is told of pushes;
//! * [`secrets`]: secrets that are derived from others, and the rights that this takes;
//! * [`network`]: policies from a typed allow-list, and the refusal of anything that opens the world.
//!
//! [`KubernetesPlacement`] is the shell: it watches the pods, lets the pool decide, and does what it says. A build on
//! a warm daemon costs two requests to the API server (claim and release), a cold pod three (ConfigMap, Pod,
//! Secret).
//!
//! This crate must not know why something is built, how a solve works, or any other adapter. It reads no files and
//! no environment: settings, certificates and the client for the API server come in from outside.

pub mod autopsy;
mod cluster;
pub mod config;
pub mod daemon_toml;
pub mod deployer;
mod error;
mod finding;
pub mod inspect;
pub mod inventory;
pub mod isolation;
pub mod labels;
pub mod network;
pub mod pki;
mod placement;
pub mod pod;
pub mod pool;
mod proxy;
pub mod rbac;
pub mod secrets;
#[cfg(test)]
mod testing;

pub use error::KubernetesError;
pub use finding::Finding;
pub use placement::KubernetesPlacement;
