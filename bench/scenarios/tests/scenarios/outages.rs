//! Gate 4: what a build outlives of Kubernetes itself.

use std::time::Duration;

use anyhow::{Result, ensure};
use fabrique_scenarios::{Installation, until};
use tokio::time::Instant;

use crate::faults::{Told, UnderWay};
use crate::gates::{Gate, conclude};
use crate::seeded;

pub(crate) static API: Gate =
    Gate::new("4 API server away", |installation| Box::pin(api_away(installation))).long();
pub(crate) static CONTAINERD: Gate =
    Gate::new("4 containerd restarted", |installation| Box::pin(containerd_restarted(installation))).long();

/// How long the API server is away: the build ends meanwhile.
const AWAY: Duration = Duration::from_secs(30);
/// How long a cluster may take to be itself again.
const AGAIN: Duration = Duration::from_mins(2);

async fn api_away(installation: &'static Installation) -> Result<()> {
    let build = UnderWay::push(installation, seeded::app()?).await?;
    let server = installation.cluster.peer("kube-apiserver");
    let back = Instant::now() + AWAY;
    server.stop().await?;
    tokio::time::sleep_until(back).await;
    server.start_again().await?;
    nodes_ready(installation).await?;
    // Argo CD was cut off too, and may have lost the webhook of the commit.
    build.runs_in_the_end().await?;
    build.ends_in_one_commit(Told::Nothing).await
}

async fn containerd_restarted(installation: &'static Installation) -> Result<()> {
    // The forge tries a delivery once, and the cluster's network may still be about to recover from an API server that
    // was away: what is lost then is the sweep's to find, which comes every few minutes outside of scenarios.
    let build = tokio::select! {
        build = UnderWay::push(installation, seeded::app()?) => build?,
        stopped = swept_again_and_again(installation) => return stopped,
    };
    let containerd = installation.cluster.peer(&format!("containerd-{}", build.node));
    containerd.kill9().await?;
    containerd.start_again().await?;
    nodes_ready(installation).await?;
    build.ends_in_one_commit(Told::Nothing).await
}

/// Ends only when a sweep fails.
async fn swept_again_and_again(installation: &Installation) -> Result<()> {
    loop {
        installation.job("reconciler").await?;
    }
}

async fn nodes_ready(installation: &Installation) -> Result<()> {
    until("the nodes to be ready", AGAIN, async || {
        let nodes = installation.list("default", "nodes", "").await?;
        let ready = |node: &serde_json::Value| {
            let conditions = node["status"]["conditions"].as_array();
            conditions
                .is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
        };
        ensure!(!nodes.is_empty() && nodes.iter().all(ready), "some are not");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "long: half a minute without an API server, and Argo CD after it"]
async fn gate_4_a_build_that_outlives_the_api_server_ends_in_one_commit() {
    conclude(API.passed().await);
}

#[tokio::test]
#[ignore = "long: services/kubernetes/tests/live has the same of a build without fabrique around it"]
async fn gate_4_a_build_that_outlives_its_nodes_containerd_ends_in_one_commit() {
    conclude(CONTAINERD.passed().await);
}
