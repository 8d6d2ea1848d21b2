//! Gate 6: pushes that nobody hears of.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fabrique_scenarios::{Installation, SampleApp, until, verdicts};

use crate::gates::{Gate, Passed, conclude};
use crate::{replayed, seeded};

pub(crate) static NATS: Gate = Gate::new("6 NATS away");
pub(crate) static HOOK: Gate = Gate::new("6 webhook gone");

const NOTICED: Duration = Duration::from_secs(60);

pub(crate) async fn passed_nats() -> Passed {
    NATS.pass(replayed::passed(), nats_away).await
}

pub(crate) async fn passed_hook() -> Passed {
    HOOK.pass(replayed::passed(), webhook_gone).await
}

async fn nats_away(installation: &'static Installation) -> Result<()> {
    let app = seeded::app()?;
    let nats = installation.cluster.nats().peer();
    nats.stop().await?;
    let refused = pushed_without_a_bus(installation, app).await;
    nats.start_again().await?;
    let revision = refused?;
    installation.rolled_out("receiver").await?;
    installation.rolled_out("worker").await?;
    healed_by_the_sweep(installation, app, &revision).await
}

/// Pushes while no receiver can store a wake.
async fn pushed_without_a_bus(installation: &Installation, app: &SampleApp) -> Result<String> {
    until("the receivers to be taken out of the Service", NOTICED, async || {
        let receivers = installation.get(fabrique_scenarios::OWN, "deployment", "receiver").await?;
        let ready = receivers["status"]["readyReplicas"].as_u64().unwrap_or(0);
        ensure!(ready == 0, "{ready} receivers are still ready");
        Ok(())
    })
    .await?;
    app.push("while the bus was away").await
}

async fn webhook_gone(installation: &'static Installation) -> Result<()> {
    let app = seeded::app()?;
    let gitea = installation.cluster.gitea();
    let hooks = format!("/repos/{}/hooks", app.repo());
    let there = gitea.api("GET", &hooks, None).await?;
    for hook in there.as_array().context("no list of webhooks")? {
        gitea.api("DELETE", &format!("{hooks}/{}", hook["id"]), None).await?;
    }
    let revision = app.push("told to nobody").await?;
    healed_by_the_sweep(installation, app, &revision).await?;
    installation.job("hooks").await?;
    verdicts::hooked_once(&gitea.api("GET", &hooks, None).await?, installation.hook_url())?;
    Ok(())
}

/// Nobody knows of the push until the CronJob's job has run.
async fn healed_by_the_sweep(installation: &Installation, app: &SampleApp, revision: &str) -> Result<()> {
    installation.at_rest_or_behind(app).await?;
    let before = installation.composition(&app.name).await?;
    ensure!(before.is_some_and(|before| before.revision != revision), "somebody told of the push");
    installation.job("reconciler").await?;
    installation.deployed(app, revision).await?;
    let deployments = installation.deployments().await?;
    let deployment = verdicts::committed_once(&deployments, &app.name, revision)?;
    installation.running(app, deployment).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "takes minutes on two cores: ./just scenarios"]
async fn gate_6_a_push_while_nats_is_away_is_found_by_the_sweep() {
    conclude(passed_nats().await);
}

#[tokio::test]
async fn gate_6_a_push_that_no_webhook_tells_of_is_found_by_the_sweep() {
    conclude(passed_hook().await);
}
