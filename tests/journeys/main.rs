//! Whole journeys through real Gitea, NATS, registry and BuildKit: a push goes in, a digest comes out.
//!
//! Each journey has a stage of its own, so that it may break what it likes.

mod pushes;

use fabrique_stage::{Stage, StageBuilder};

/// The binary under test.
const FABRIQUE: &str = env!("CARGO_BIN_EXE_fabrique");

/// A stage with the usual settings.
async fn stage() -> Stage {
    started(Stage::builder()).await
}

/// A stage as described.
async fn started(builder: StageBuilder) -> Stage {
    Box::pin(builder.start(FABRIQUE)).await.unwrap()
}
