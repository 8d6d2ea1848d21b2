//! The manifests, read and rendered, and what the API server and the network of a real cluster make of them.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helpers fail the test")]

mod admission;
mod air_gap;
mod app_pods;
mod applications;
mod apps;
mod argo;
mod buckets;
mod bus;
mod cilium;
mod committed;
mod doors;
mod ground;
mod health;
mod image;
mod initialised;
mod installed;
mod isolation;
mod migrated;
mod mirrored;
mod program;
mod project;
mod provided;
mod provisioner;
mod rendered;
mod restricted;
mod rights;
mod seeded;
mod seeds;
mod validated;
