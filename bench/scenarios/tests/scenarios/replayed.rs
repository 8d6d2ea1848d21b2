//! Gate 3: the same once more, by everybody who could say it.

use anyhow::{Context as _, Result, ensure};
use fabrique_scenarios::{Installation, verdicts};

use crate::gates::{Gate, conclude};
use crate::seeded;

pub(crate) static GATE: Gate = Gate::new("3", |installation| Box::pin(play(installation)));

async fn play(installation: &'static Installation) -> Result<()> {
    let app = seeded::app()?;
    installation.at_rest(app, 0).await?;
    let before = installation.footprint(app).await?;
    let wanted = installation.wanted(app).await?;

    let gitea = installation.cluster.gitea();
    let head = gitea.head("atlas", &app.name, "main").await?.context("a source without a head")?;
    let answer = installation.deliver_push(&app.repo(), &"0".repeat(40), &head).await?;
    ensure!(answer == 202, "the receiver answered {answer}");
    // Or nothing was replayed at all.
    installation.at_rest(app, wanted + 1).await?;
    installation.job("reconciler").await?;
    ensure!(installation.seed().await?.0.is_empty(), "a seed made anew what was there");
    installation.job("hooks").await?;
    installation.at_rest(app, wanted + 1).await?;

    let after = installation.footprint(app).await?;
    verdicts::unchanged(&before, &after)?;
    Ok(())
}

#[tokio::test]
async fn gate_3_a_replay_makes_no_commit_no_pod_and_no_rollout() {
    conclude(GATE.passed().await);
}
