//! The adapter against real git: local repositories for what needs no forge, and the bed's Gitea for the rest.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

#[path = "live/forge.rs"]
mod forge;
#[path = "live/local.rs"]
mod local;
#[path = "live/pushes.rs"]
mod pushes;
#[path = "live/support.rs"]
mod support;
#[path = "live/trouble.rs"]
mod trouble;
#[path = "live/writers.rs"]
mod writers;
