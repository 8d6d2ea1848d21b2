//! The manifests, read and rendered, and what the API server and the network of a real cluster make of them.

mod committed;
