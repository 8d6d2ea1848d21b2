//! Gate 2: a push becomes a pod that runs by digest, in both isolations.

use anyhow::{Context as _, Result, ensure};
use fabrique_kubernetes::labels::ISOLATION;
use fabrique_scenarios::{BUILDS, Installation, SYNCED, SampleApp, builder_of, verdicts};
use serde_json::Value;

use crate::gates::{Gate, conclude};
use crate::seeded;

pub(crate) static GATE: Gate = Gate::new("2", |installation| Box::pin(play(installation)));
pub(crate) static OTHER: Gate = Gate::other("2 other isolation", |installation| Box::pin(play(installation)));

async fn play(installation: &'static Installation) -> Result<()> {
    let isolation = installation.isolation().await;
    let app = seeded::app()?;
    installation.at_rest(app, 0).await?;
    let heard = installation.pushes_heard().await?;
    let before = installation.head().await?;
    let revision = app.push(&format!("pushed, {}", isolation.as_str())).await?;
    let composition = installation.deployed(app, &revision).await?;
    let deployments = installation.deployments().await?;
    let deployment = verdicts::committed_once(&deployments, &app.name, &revision)?;
    ensure!(deployment.digest == composition.digest, "{deployment:?} is not {composition:?}");
    let commits = installation.commits_since(&before).await?;
    ensure!(commits == [deployment.commit.as_str()], "not one commit since {before}: {commits:?}");
    let took = installation.running(app, deployment).await?;
    verdicts::within("from the commit to a pod that runs it", took, SYNCED)?;
    // Polling is ten minutes away, and would not be in this log.
    ensure!(installation.pushes_heard().await? > heard, "no webhook told Argo CD of the commit");

    let build = build_of(installation, app, &revision).await?;
    let builder = builder_of(&build).with_context(|| format!("a build without a daemon: {build}"))?;
    let told = build["daemon"].as_str().unwrap_or_default();
    ensure!(
        told.contains(&format!("({}: ", isolation.as_str())),
        "the record gives no reason for its isolation: {told}"
    );
    let pod = installation.get(BUILDS, "pod", builder).await?;
    let label = &pod["metadata"]["labels"][ISOLATION];
    ensure!(label == isolation.as_str(), "built in a pod that is {label}");
    let node = pod["spec"]["nodeName"].as_str().context("a builder without a node")?;
    verdicts::is_worker(&installation.get("default", "node", node).await?)?;
    installation.no_orphans().await
}

/// The one attempt at this revision.
async fn build_of(installation: &Installation, app: &SampleApp, revision: &str) -> Result<Value> {
    let builds = installation.builds(app).await?;
    let mut of_it: Vec<Value> = builds.into_iter().filter(|build| build["revision"] == revision).collect();
    ensure!(of_it.len() == 1, "not one attempt at {revision}: {of_it:#?}");
    of_it.pop().context("not one attempt")
}

#[tokio::test]
async fn gate_2_a_push_becomes_a_pod_that_runs_by_digest() {
    conclude(GATE.passed().await);
}

#[tokio::test]
async fn gate_2_a_push_becomes_a_pod_that_runs_by_digest_in_the_other_isolation_too() {
    conclude(OTHER.passed().await);
}
