//! Gate 6: pushes that nobody hears of.

use std::time::Duration;

use anyhow::{Result, ensure};
use fabrique_scenarios::{Installation, SampleApp, until, verdicts};
use tokio::time::Instant;

use crate::gates::{Gate, conclude, fresh};
use crate::seeded;

pub(crate) static NATS: Gate =
    Gate::new("6 NATS away", |installation| Box::pin(nats_away(installation))).long();
pub(crate) static HOOK: Gate =
    Gate::new("6 webhook gone", |installation| Box::pin(webhook_gone(installation)));

const NOTICED: Duration = Duration::from_secs(60);
/// How long the bus is away. Gitea delivers some seconds after a push, once, and that must fall into it.
const AWAY: Duration = Duration::from_mins(1);

async fn nats_away(installation: &'static Installation) -> Result<()> {
    let names = ["one", "two"].map(|name| fresh(&format!("unheard-{name}")));
    let created = SampleApp::create_all(installation, &names).await?;
    let mut apps = vec![seeded::app()?];
    for (app, first) in &created {
        installation.deployed(app, first).await?;
        apps.push(app);
    }
    for app in &apps {
        installation.at_rest(app, 0).await?;
    }
    let nats = installation.cluster.nats().peer();
    let back = Instant::now() + AWAY;
    nats.stop().await?;
    let refused = pushed_without_a_bus(installation, &apps).await;
    tokio::time::sleep_until(back).await;
    // They refused the deliveries, but would store those wakes yet if they lived to see the bus.
    let killed = installation.kill9_all("receiver").await;
    nats.start_again().await?;
    let revisions = refused.and_then(|revisions| killed.map(|()| revisions))?;
    installation.rolled_out("receiver").await?;
    installation.rolled_out("worker").await?;
    healed_by_the_sweep(installation, &revisions).await
}

/// Pushes while no receiver can store a wake.
async fn pushed_without_a_bus<'a>(
    installation: &Installation,
    apps: &[&'a SampleApp],
) -> Result<Vec<(&'a SampleApp, String)>> {
    until("the receivers to be taken out of the Service", NOTICED, async || {
        let receivers = installation.get(fabrique_scenarios::OWN, "deployment", "receiver").await?;
        let ready = receivers["status"]["readyReplicas"].as_u64().unwrap_or(0);
        ensure!(ready == 0, "{ready} receivers are still ready");
        Ok(())
    })
    .await?;
    let mut pushed = Vec::new();
    for app in apps {
        app.push("while the bus was away").await?;
        pushed.push((*app, app.push("while it still was").await?));
    }
    Ok(pushed)
}

async fn webhook_gone(installation: &'static Installation) -> Result<()> {
    let app = seeded::app()?;
    installation.unhook(app).await?;
    let revision = app.push("told to nobody").await?;
    healed_by_the_sweep(installation, &[(app, revision)]).await?;
    installation.job("hooks").await?;
    verdicts::hooked_once(&installation.hooks(&app.repo()).await?, installation.hook_url())?;
    Ok(())
}

/// Nobody knows of the pushes until the CronJob's job has run.
async fn healed_by_the_sweep(installation: &Installation, pushed: &[(&SampleApp, String)]) -> Result<()> {
    for (app, revision) in pushed {
        installation.at_rest_or_behind(app).await?;
        let before = installation.composition(&app.name).await?;
        ensure!(before.is_some_and(|before| before.revision != *revision), "somebody told of {revision}");
    }
    installation.job("reconciler").await?;
    for (app, revision) in pushed {
        installation.deployed(app, revision).await?;
    }
    let deployments = installation.deployments().await?;
    for (app, revision) in pushed {
        let deployment = verdicts::committed_once(&deployments, &app.name, revision)?;
        installation.runs(app, &deployment.digest).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "long: a minute without the bus"]
async fn gate_6_pushes_while_nats_is_away_are_found_by_the_sweep() {
    conclude(NATS.passed().await);
}

#[tokio::test]
async fn gate_6_a_push_that_no_webhook_tells_of_is_found_by_the_sweep() {
    conclude(HOOK.passed().await);
}
