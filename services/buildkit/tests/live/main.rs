//! The adapter against the real daemon, forge and registry.

mod builds;
mod support;
