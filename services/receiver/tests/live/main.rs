//! The receiver over real HTTP, with Gitea's reader of deliveries and a real NATS. The bus is a stand-in only
//! where it has a fault that a real one cannot be made to have ([`support::FaultyBus`]).

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helpers fail the test")]

mod answers;
mod apps;
mod bounds;
mod bus;
mod drain;
mod garbage;
mod nats;
mod support;
