//! The image registry, by the OCI distribution API: is a digest there, what does a tag point to, make a tag
//! point to a digest; and for `doctor`, whether it takes a push.
//!
//! fabrique believes a registry about one thing only: that it has a manifest of a digest. Everything that is
//! read is checked against the digest it was asked by; what a tag says decides nothing.
//!
//! Plain requests instead of `oci-client`: tagging must send the manifest back under exactly the media type it
//! was stored with, which `oci-client` drops when it pulls, and its bodies and calls as a whole are unbounded.
//! Six requests of the API are all that is needed.
//!
//! * A manifest is read up to 4 MiB, the size that registries must accept; layers are never read.
//! * Redirects are not followed: manifests are served in place, and a redirect could carry credentials away.
//! * Credentials go to the registry they are configured for, or to the token service that it names.
//! * Nothing is retried here; errors say whether retrying can help.
//!
//! The process must have installed a default rustls provider before an [`OciRegistry`] is made.
//!
//! This crate must not know what is built, when or why.

mod auth;
mod client;
mod config;
mod error;
mod media;
mod registry;
mod upload;

pub use config::{Access, Credentials, RegistryConfig, Timeouts};
pub use error::RegistryError;
pub use registry::OciRegistry;
