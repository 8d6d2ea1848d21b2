//! The placement on a real Kubernetes: real schedulers, kubelets, network policies and daemons.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail the test, and show what they saw"
)]

mod deeds;
mod dial;
mod ends;
mod ground;
mod inspect;
mod leases;
mod outages;
mod steps;
mod walls;
mod workshop;
