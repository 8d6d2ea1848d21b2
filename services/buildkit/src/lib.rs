//! BuildKit: builds an image from a revision on a daemon, and pushes it by digest.
//!
//! [`BuildkitBuilder`] implements [`fabrique_ports::builder::Builder`] straight over the daemon's Control API,
//! without a command line or a client library in between. One build is three calls on one connection, all sent
//! at once:
//!
//! * `Solve` ([`solve`]) lasts as long as the build and answers with the digest ([`digest`]);
//! * `Status` ([`status`]) streams steps and their output;
//! * `Session` ([`session`]) is a tunnel through which the daemon asks *us*: for our health, for the token of
//!   the one git host that the build reads from, for the secrets that this build may mount, and whether each
//!   thing may be fetched ([`egress`]), from which and the steps it is known what was ([`fetches`]).
//!
//! Dropping the `Solve` call is how a build is cancelled. A failure carries types, and [`failure`] turns them
//! into whose turn it is: the source's, the daemon's or the network's.
//!
//! What no daemon would build is told from the Dockerfile alone ([`dockerfile`]).
//!
//! [`StaticPlacement`] implements [`fabrique_ports::builder::Placement`] over a fixed list of daemons.
//!
//! This crate must not know why something is built, what happens to the digest, or any other adapter: it asks
//! the registry through the port only. It never reads configuration files or the environment, apart from the
//! certificates and build secrets whose places its configuration names.

mod base;
mod builder;
mod channel;
mod config;
mod digest;
mod dockerfile;
mod egress;
mod error;
mod failure;
mod fetches;
mod handshake;
mod placement;
mod policy;
mod proxy;
mod redact;
mod secrets;
mod session;
mod solve;
mod status;
mod text;
mod version;
mod vouched;

pub use builder::BuildkitBuilder;
pub use config::{
    BuildkitConfig, IssueTls, IssuedTls, LogLimits, Patience, Provenance, Tls, TlsFiles, TlsIdentity,
};
pub use error::BuildkitError;
pub use handshake::Handshake;
pub use placement::{StaticDaemon, StaticPlacement, StaticSettings};
pub use secrets::{DirectorySecrets, SECRET_LIMIT, SecretValue};
pub use version::{FLOOR, Version};
