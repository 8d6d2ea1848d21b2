//! Gate 4: what Kubernetes does to a build, and to who drives it, while it runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use fabrique_scenarios::{BUILDS, Installation, SampleApp, until, verdicts};
use serde_json::{Value, json};

use crate::gates::{Gate, Passed, conclude, fresh};
use crate::{replayed, seeded};

pub(crate) static DELETED: Gate = Gate::new("4 pod deleted");
pub(crate) static EVICTED: Gate = Gate::new("4 pod evicted");
pub(crate) static KILLED: Gate = Gate::new("4 worker killed");

const GONE: Duration = Duration::from_secs(60);

pub(crate) async fn passed_deleted() -> Passed {
    DELETED.pass(replayed::passed(), deleted).await
}

pub(crate) async fn passed_evicted() -> Passed {
    EVICTED.pass(replayed::passed(), evicted).await
}

pub(crate) async fn passed_killed() -> Passed {
    KILLED.pass(replayed::passed(), killed).await
}

async fn deleted(installation: &'static Installation) -> Result<()> {
    let app = seeded::app()?;
    let (revision, pod, uid) = under_way(installation, app).await?;
    installation.cluster.kubectl(&["delete", "pod", &pod, "--namespace", BUILDS, "--wait=false"]).await?;
    is_gone(installation, &pod, &uid).await?;
    in_the_end_one_commit(installation, app, &revision, &["was deleted"]).await
}

async fn evicted(installation: &'static Installation) -> Result<()> {
    let app = seeded::app()?;
    let (revision, pod, uid) = under_way(installation, app).await?;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": BUILDS },
    });
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), eviction.to_string())?;
    let path = format!("/api/v1/namespaces/{BUILDS}/pods/{pod}/eviction");
    let file = file.path().to_string_lossy();
    installation.cluster.kubectl(&["create", "--raw", &path, "--filename", &file]).await?;
    is_gone(installation, &pod, &uid).await?;
    in_the_end_one_commit(installation, app, &revision, &["was evicted", "drained"]).await
}

async fn killed(installation: &'static Installation) -> Result<()> {
    let app = seeded::app()?;
    let (revision, _, _) = under_way(installation, app).await?;
    let worker = "app.kubernetes.io/component=worker";
    installation.kubectl(&["delete", "pods", "--selector", worker, "--grace-period=0", "--force"]).await?;
    installation.rolled_out("worker").await?;
    in_the_end_one_commit(installation, app, &revision, &[]).await
}

/// Pushes something that builds long enough to be disturbed. Returns the revision, and the pod that builds it.
async fn under_way(installation: &Installation, app: &SampleApp) -> Result<(String, String, Value)> {
    let revision = app.push_steps(&fresh("slow"), "RUN sleep 25").await?;
    let pod = installation.building(app, &revision).await?;
    let uid = installation.get(BUILDS, "pod", &pod).await?["metadata"]["uid"].clone();
    Ok((revision, pod, uid))
}

/// Waits until no pod has both this name, which is given again, and this uid.
async fn is_gone(installation: &Installation, pod: &str, uid: &Value) -> Result<()> {
    until(&format!("{pod} to be gone"), GONE, async || {
        let pods = installation.builders().await?;
        let there = pods.iter().any(|pod| pod["metadata"]["uid"] == *uid);
        ensure!(!there, "it is still there");
        Ok(())
    })
    .await
}

/// One commit, one pod that runs it, no orphan, and a history that says what happened in one of `words`.
async fn in_the_end_one_commit(
    installation: &Installation,
    app: &SampleApp,
    revision: &str,
    words: &[&str],
) -> Result<()> {
    installation.deployed(app, revision).await?;
    let deployments = installation.deployments().await?;
    let deployment = verdicts::committed_once(&deployments, &app.name, revision)?;
    installation.running(app, deployment).await?;
    installation.at_rest(app, 0).await?;
    verdicts::committed_once(&installation.deployments().await?, &app.name, revision)?;
    installation.no_orphans().await?;
    if !words.is_empty() {
        verdicts::reason_told(&installation.builds(app).await?, revision, words)?;
    }
    Ok(())
}

#[tokio::test]
async fn gate_4_a_build_whose_pod_is_deleted_ends_in_one_commit() {
    conclude(passed_deleted().await);
}

#[tokio::test]
#[ignore = "takes minutes on two cores: ./just scenarios"]
async fn gate_4_a_build_whose_pod_is_evicted_ends_in_one_commit() {
    conclude(passed_evicted().await);
}

#[tokio::test]
async fn gate_4_a_build_whose_worker_is_killed_ends_in_one_commit() {
    conclude(passed_killed().await);
}
