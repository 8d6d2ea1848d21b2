//! The placement on a real Kubernetes: real schedulers, kubelets, network policies and daemons.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail the test, and show what they saw"
)]

mod admission;
mod crowd;
mod deeds;
mod dial;
mod elsewhere;
mod ends;
mod gates;
mod ground;
mod inspect;
mod inventory;
mod leases;
mod lists;
mod mirrors;
mod outages;
mod pool;
mod proxy;
mod registered;
mod rollout;
mod secrets;
mod steps;
mod walls;
mod wishes;
mod workshop;
