//! The placement on a real Kubernetes: real schedulers, kubelets, network policies and daemons.

mod dial;
mod ends;
mod ground;
mod leases;
mod walls;
