//! The receiver over real HTTP, with Gitea's reader of deliveries and a real NATS. The bus is faked only where
//! it must misbehave in a way that a real one cannot be made to.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helpers fail the test")]

mod answers;
mod apps;
mod bounds;
mod bus;
mod drain;
mod garbage;
mod support;
