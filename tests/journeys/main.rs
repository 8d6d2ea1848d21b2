//! Whole journeys through real Gitea, NATS, registry and BuildKit: a push goes in, a digest comes out.
//!
//! Each journey has a stage of its own, so that it may break what it likes.

#![expect(clippy::unwrap_used, reason = "a journey's helpers fail the journey")]

mod applications;
mod batches;
mod crashes;
mod declarations;
mod egress;
mod faults;
mod history;
mod load;
mod migrations;
mod mirrors;
mod overlays;
mod policy;
mod pushes;
mod receivers;
mod registrations;
mod scene;
mod statuses;
mod tls;
mod unheard;
mod webhooks;
mod writeback;

use fabrique_stage::{Stage, StageBuilder};

/// The binary under test.
const FABRIQUE: &str = env!("CARGO_BIN_EXE_fabrique");

/// How long anything may take here. Only ever a bound.
const LONG: std::time::Duration = std::time::Duration::from_secs(60);

/// A stage with the usual settings.
async fn stage() -> Stage {
    started(Stage::builder()).await
}

/// A stage as described.
async fn started(builder: StageBuilder) -> Stage {
    Box::pin(builder.start(FABRIQUE)).await.unwrap()
}
