//! Gate 4: what happens to a build's pod, and to who drives it, while it runs or is written back.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fabrique_bed::Moment;
use fabrique_scenarios::{BUILDS, Installation, OWN};
use serde_json::json;

use crate::faults::{Told, UnderWay, ends_in_one_commit};
use crate::gates::{Gate, conclude, fresh};
use crate::seeded;

pub(crate) static DELETED: Gate = Gate::new("4 pod deleted", |installation| Box::pin(deleted(installation)));
pub(crate) static EVICTED: Gate = Gate::new("4 pod evicted", |installation| Box::pin(evicted(installation)));
pub(crate) static STARVED: Gate =
    Gate::new("4 out of memory", |installation| Box::pin(starved(installation)));
pub(crate) static DRAINED: Gate = Gate::new("4 node drained", |installation| Box::pin(drained(installation)));
pub(crate) static KILLED: Gate = Gate::new("4 worker killed", |installation| Box::pin(killed(installation)));
pub(crate) static KILLED_BEFORE_COMMIT: Gate =
    Gate::new("4 worker killed before the commit", |installation| {
        Box::pin(killed_with_its_push_held_up(installation, Moment::BeforeTheUpdate))
    })
    .long();
pub(crate) static KILLED_AFTER_COMMIT: Gate = Gate::new("4 worker killed after the commit", |installation| {
    Box::pin(killed_with_its_push_held_up(installation, Moment::AfterTheUpdate))
})
.long();

/// How long after its push the build of a node that is drained is not through yet: where people ask `why` may go with
/// the node, and has to come up elsewhere before it is.
const DRAINING: Duration = Duration::from_secs(45);
/// Makes the kernel take the daemon when the pod is out of memory, and the pod be so. Many small ones, or it would take
/// the hog and leave the daemon.
const HOGS: &str = r"echo 1000 > /proc/1/oom_score_adj
    for _ in {1..120}; do (x=$(head -c 8M /dev/zero | tr '\0' a); sleep 60) & done; wait";

async fn deleted(installation: &'static Installation) -> Result<()> {
    let build = UnderWay::push(installation, seeded::app()?).await?;
    let delete = ["delete", "pod", &build.pod, "--namespace", BUILDS, "--wait=false"];
    installation.cluster.kubectl(&delete).await?;
    build.loses_its_pod(&["was deleted"]).await?;
    build.ends_in_one_commit(Told::Everywhere(&["was deleted"])).await
}

async fn evicted(installation: &'static Installation) -> Result<()> {
    let build = UnderWay::push(installation, seeded::app()?).await?;
    let pod = &build.pod;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": BUILDS },
    });
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), eviction.to_string())?;
    let path = format!("/api/v1/namespaces/{BUILDS}/pods/{pod}/eviction");
    let file = file.path().to_string_lossy();
    installation.cluster.kubectl(&["create", "--raw", &path, "--filename", &file]).await?;
    build.loses_its_pod(&["was evicted"]).await?;
    build.ends_in_one_commit(Told::Everywhere(&["was evicted"])).await
}

/// Where the kernel ends one process, which it does with cgroup v1, it is the daemon, whose container's status says so.
async fn starved(installation: &'static Installation) -> Result<()> {
    let build = UnderWay::push(installation, seeded::app()?).await?;
    let exec = ["exec", "--namespace", BUILDS, &build.pod, "--", "bash", "-c", HOGS];
    // It ends with the container that it is in.
    let (_, told) =
        tokio::join!(installation.cluster.kubectl(&exec), build.loses_its_pod(&["out of memory"]));
    told?;
    build.ends_in_one_commit(Told::Everywhere(&["out of memory"])).await
}

/// A whole node, with whatever else runs there, but for the worker: it is to see what becomes of its build.
async fn drained(installation: &'static Installation) -> Result<()> {
    let kubectl = async |args: &[&str]| installation.cluster.kubectl(args).await;
    installation.take_away_builders().await?;
    let worker = installation.list(OWN, "pods", "app.kubernetes.io/component=worker").await?;
    let [worker] = worker.as_slice() else { anyhow::bail!("not one worker") };
    let spared = worker["spec"]["nodeName"].as_str().context("a worker without a node")?;
    kubectl(&["cordon", spared]).await?;
    let build = UnderWay::push_until(installation, seeded::app()?, DRAINING).await;
    kubectl(&["uncordon", spared]).await?;
    let build = build?;
    let flags = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s"];
    let drain = [&["drain", &build.node], flags.as_slice()].concat();
    let told = ["its node was drained"];
    let (drained, gone) = tokio::join!(kubectl(&drain), build.loses_its_pod(&told));
    // One node has room for everything, but the next gate wants two.
    kubectl(&["uncordon", &build.node]).await?;
    drained.and(gone)?;
    for role in ["receiver", "worker"] {
        installation.rolled_out(role).await?;
    }
    build.is_through_elsewhere().await?;
    build.ends_in_one_commit(Told::Everywhere(&told)).await
}

async fn killed(installation: &'static Installation) -> Result<()> {
    let build = UnderWay::push(installation, seeded::app()?).await?;
    installation.kill9("worker").await?;
    installation.rolled_out("worker").await?;
    build.ends_in_one_commit(Told::InHistory(&["its worker went away"])).await
}

/// The image is recorded, and the commit under way at the forge: not on the branch yet, or on it and not acknowledged.
/// Nothing is built again.
async fn killed_with_its_push_held_up(installation: &'static Installation, moment: Moment) -> Result<()> {
    let app = seeded::app()?;
    let trap = installation.cluster.gitea().trap("cluster", "apps", moment)?;
    let revision = app.push(&fresh("held up")).await?;
    trap.sprung().await?;
    installation.kill9("worker").await?;
    trap.open()?;
    installation.rolled_out("worker").await?;
    ends_in_one_commit(installation, app, &revision, Told::Nothing).await
}

#[tokio::test]
async fn gate_4_a_build_whose_pod_is_deleted_ends_in_one_commit() {
    conclude(DELETED.passed().await);
}

#[tokio::test]
async fn gate_4_a_build_whose_pod_is_evicted_ends_in_one_commit() {
    conclude(EVICTED.passed().await);
}

#[tokio::test]
async fn gate_4_a_build_whose_daemon_is_killed_for_memory_ends_in_one_commit() {
    conclude(STARVED.passed().await);
}

#[tokio::test]
async fn gate_4_a_build_whose_node_is_drained_ends_in_one_commit() {
    conclude(DRAINED.passed().await);
}

#[tokio::test]
async fn gate_4_a_build_whose_worker_is_killed_ends_in_one_commit() {
    conclude(KILLED.passed().await);
}

#[tokio::test]
#[ignore = "long: killed at every effect is each worker of `tests/pods`"]
async fn gate_4_a_build_whose_worker_is_killed_before_its_commit_ends_in_one_commit() {
    conclude(KILLED_BEFORE_COMMIT.passed().await);
}

#[tokio::test]
#[ignore = "long: killed at every effect is each worker of `tests/pods`"]
async fn gate_4_a_build_whose_worker_is_killed_after_its_commit_ends_in_one_commit() {
    conclude(KILLED_AFTER_COMMIT.passed().await);
}
