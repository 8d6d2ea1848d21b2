//! What Kubernetes itself does to builds: drains, deadlines, restarts.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use fabrique_bed::Cluster;
use fabrique_core::failure::FailureKind;
use fabrique_kubernetes::config::Images;
use fabrique_ports::builder::{Autopsy, BuildOutcome, Condition, Placed, Placement};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams};

use crate::ends::environment;
use crate::ground::{Ground, eventually, lease, need};
use crate::workshop::{Recorder, Workshop};

/// A node that takes no more pods, until this is dropped.
struct Cordon<'a> {
    cluster: &'a Cluster,
    node: String,
}

impl<'a> Cordon<'a> {
    async fn on(cluster: &'a Cluster, node: &str) -> Self {
        cluster.kubectl(&["cordon", node]).await.unwrap();
        Self { cluster, node: node.to_owned() }
    }
}

impl Drop for Cordon<'_> {
    fn drop(&mut self) {
        let mut kubectl = self.cluster.kubectl_command().into_std();
        let _ = kubectl.args(["uncordon", &self.node]).stdout(Stdio::null()).status();
    }
}

/// `kubectl drain` marks the node and then uses the Eviction API. The build is never blamed for it.
async fn a_drain_under_a_build_is_told_and_the_next_daemon_is_elsewhere(isolation: &str) {
    let Some(ground) = Ground::with_policies(isolation).await else { return };
    let placement = ground.placement("worker-1").await;
    let workshop = Workshop::new(&ground).await;
    let drained = lease(&placement, "citation").await;
    let node = ground.node(&drained.daemon.name).await;
    let pods: Api<Pod> = Api::namespaced(ground.admin().await, &ground.namespace);
    let recorder = Arc::new(Recorder::default());
    let dockerfile = format!("FROM {}\nRUN echo started; sleep 100\n", ground.cluster.images().busybox);
    let builder = workshop.builder(&[]);
    let build = workshop.build_telling(&builder, &drained.daemon, "citation", &dockerfile, &recorder);
    let drain = async {
        eventually("the step runs", async || recorder.output().contains("started")).await;
        let cordon = Cordon::on(ground.cluster, &node).await;
        pods.evict(&drained.daemon.name, &EvictParams::default()).await.unwrap();
        cordon
    };
    let (outcome, _cordon) = tokio::join!(build, drain);
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    let autopsy = placement.autopsy(&drained.daemon).await;
    assert_eq!(autopsy, environment("was evicted because its node was drained"));
    placement.release(drained, Condition::Doubt).await;
    let next = lease(&placement, "citation").await;
    assert_ne!(ground.node(&next.daemon.name).await, node);
}

#[tokio::test]
async fn a_drain_under_a_build_in_a_user_namespace_is_told_and_the_next_daemon_is_elsewhere() {
    a_drain_under_a_build_is_told_and_the_next_daemon_is_elsewhere("userns").await;
}

#[tokio::test]
async fn a_drain_under_a_rootless_build_is_told_and_the_next_daemon_is_elsewhere() {
    a_drain_under_a_build_is_told_and_the_next_daemon_is_elsewhere("rootless").await;
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_told_by_kubernetes_own_word() {
    let Some(mut ground) = Ground::with_policies("userns").await else { return };
    let nothing = format!("registry:80/base/nothing@sha256:{}", "0".repeat(64));
    let builder = serde_json::from_value(nothing.into()).unwrap();
    ground.settings.images = Images { builder, gate: None };
    let placement = ground.placement("worker-1").await;
    let Placed::Full(why) = placement.acquire(&need("citation", 15)).await.unwrap() else {
        panic!("there is no such image")
    };
    assert!(why.contains("cannot pull its image"), "{why}");
}

#[tokio::test]
async fn a_pod_that_reaches_its_own_deadline_is_told() {
    let Some(mut ground) = Ground::with_policies("userns").await else { return };
    ground.settings.gate.limit = Duration::from_secs(20);
    let pool = &mut ground.settings.pool;
    (pool.start, pool.life) = (Duration::from_secs(20), Duration::from_secs(15));
    pool.longest_build = Duration::from_secs(1);
    ground.settings.patience.autopsy = Duration::from_secs(60);
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    assert_eq!(placement.autopsy(&leased.daemon).await, environment("reached its deadline"));
}

/// Containers live on without it, and builds in them.
#[tokio::test]
async fn a_build_outlives_a_restart_of_its_nodes_containerd() {
    let Some(ground) = Ground::with_policies("userns").await else { return };
    let placement = ground.placement("worker-1").await;
    let workshop = Workshop::new(&ground).await;
    let leased = lease(&placement, "citation").await;
    let node = ground.node(&leased.daemon.name).await;
    let containerd = ground.cluster.peer(&format!("containerd-{node}"));
    let dockerfile = format!("FROM {}\nRUN sleep 10 && echo fine\n", ground.cluster.images().busybox);
    let builder = workshop.builder(&[]);
    let restart = async {
        containerd.kill9().await.unwrap();
        containerd.start_again().await.unwrap();
    };
    let (built, ()) =
        tokio::join!(workshop.build(&builder, &leased.daemon, "citation", &dockerfile), restart);
    assert!(built.1.contains("fine"), "{built:?}");
    assert_eq!(placement.autopsy(&leased.daemon).await, Autopsy::Alive);
    eventually("the node is ready", async || {
        ground.cluster.kubectl(&["get", "node", &node]).await.is_ok_and(|text| !text.contains("NotReady"))
    })
    .await;
}
