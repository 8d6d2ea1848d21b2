//! The manifests, read and rendered, and what the API server and the network of a real cluster make of them.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helpers fail the test")]

mod admission;
mod cilium;
mod committed;
mod ground;
mod image;
mod installed;
mod isolation;
mod program;
mod rendered;
mod restricted;
mod rights;
