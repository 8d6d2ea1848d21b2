//! The adapter against the real daemon, forge and registry.
#![expect(clippy::unwrap_used, reason = "a helper that cannot go on ends its test")]

mod builds;
mod cache;
mod egress;
mod endings;
mod failures;
mod outages;
mod secrets;
mod support;
mod tls;
