//! What Kubernetes itself does to builds: drains, deadlines, restarts.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fabrique_bed::{Cluster, Peer};
use fabrique_core::failure::FailureKind;
use fabrique_kubernetes::config::{Bytes, Images};
use fabrique_ports::builder::{Autopsy, BuildOutcome, Condition, Placed, Placement};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams};
use serde_json::json;

use crate::ends::environment;
use crate::ground::{Ground, eventually, isolation, lease, lost, need};
use crate::workshop::{Recorder, Workshop};

/// A node that takes no more pods, until this is dropped.
pub(crate) struct Cordon<'a> {
    cluster: &'a Cluster,
    node: String,
}

impl<'a> Cordon<'a> {
    pub(crate) async fn on(cluster: &'a Cluster, node: &str) -> Self {
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
    let Some(ground) = Ground::alone_with_policies(isolation).await else { return };
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
    let autopsy = placement.autopsy(&drained.daemon, &lost()).await;
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
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
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
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
    ground.settings.gate.limit = Duration::from_secs(20);
    let pool = &mut ground.settings.pool;
    (pool.start, pool.life) = (Duration::from_secs(20), Duration::from_secs(15));
    pool.longest_build = Duration::from_secs(1);
    ground.settings.patience.autopsy = Duration::from_secs(60);
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    assert_eq!(placement.autopsy(&leased.daemon, &lost()).await, environment("reached its deadline"));
}

/// Containers live on without it, and builds in them.
#[tokio::test]
async fn a_build_outlives_a_restart_of_its_nodes_containerd() {
    let Some(ground) = Ground::alone_with_policies(isolation()).await else { return };
    let placement = ground.placement("worker-1").await;
    let workshop = Workshop::new(&ground).await;
    let leased = lease(&placement, "citation").await;
    let node = ground.node(&leased.daemon.name).await;
    let containerd = ground.cluster.peer(&format!("containerd-{node}"));
    let dockerfile =
        format!("FROM {}\nRUN echo started; sleep 10; echo fine\n", ground.cluster.images().busybox);
    let builder = workshop.builder(&[]);
    let recorder = Arc::new(Recorder::default());
    let restart = async {
        eventually("the step runs", async || recorder.output().contains("started")).await;
        containerd.kill9().await.unwrap();
        assert!(!recorder.output().contains("fine"), "it was over by then");
        containerd.start_again().await.unwrap();
    };
    let building = workshop.build_telling(&builder, &leased.daemon, "citation", &dockerfile, &recorder);
    let (built, ()) = tokio::join!(building, restart);
    assert!(matches!(built, BuildOutcome::Pushed(_)), "{built:?}\n{}", recorder.output());
    assert!(recorder.output().contains("fine"), "{}", recorder.output());
    assert_eq!(placement.autopsy(&leased.daemon, &lost()).await, Autopsy::Alive);
    eventually("the node is ready", async || {
        ground.cluster.kubectl(&["get", "node", &node]).await.is_ok_and(|text| !text.contains("NotReady"))
    })
    .await;
}

/// A peer that is stopped where it stands, until this is dropped.
pub(crate) struct Frozen<'a>(&'a Peer);

impl<'a> Frozen<'a> {
    pub(crate) fn now(peer: &'a Peer) -> Self {
        peer.pause().unwrap();
        Self(peer)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = self.0.resume();
    }
}

/// Daemons are dialled by their address, so that a build needs the API server at its beginning and its end only. A
/// claim that cannot be renewed meanwhile is nobody's proof of death.
#[tokio::test]
async fn a_build_outlives_an_api_server_that_is_away() {
    let Some(ground) = Ground::alone_with_policies(isolation()).await else { return };
    let (placement, bystander) = (ground.placement("worker-1").await, ground.placement("worker-2").await);
    let workshop = Workshop::new(&ground).await;
    let leased = lease(&placement, "citation").await;
    let uid = ground.uid(&leased.daemon.name).await;
    eventually("both see it", async || bystander.daemons().contains(&leased.daemon)).await;
    let api_server = ground.cluster.peer("kube-apiserver");
    let away = Duration::from_secs(30);
    let dockerfile = format!(
        "FROM {}\nRUN echo started; sleep {}; echo fine\n",
        ground.cluster.images().busybox,
        away.as_secs() + 2
    );
    let recorder = Arc::new(Recorder::default());
    let builder = workshop.builder(&[]);
    let build = workshop.build_telling(&builder, &leased.daemon, "citation", &dockerfile, &recorder);
    let outage = async {
        eventually("the step runs", async || recorder.output().contains("started")).await;
        let _frozen = Frozen::now(api_server);
        tokio::time::sleep(away).await;
    };
    let (outcome, ()) = tokio::join!(build, outage);
    assert!(matches!(outcome, BuildOutcome::Pushed(_)), "{outcome:?}\n{}", recorder.output());

    // The claim is still ours, and is given back now that the API server listens.
    placement.release(leased.clone(), Condition::Clean).await;
    assert!(placement.drain(Duration::from_secs(30)).await);
    let again = lease(&bystander, "citation").await;
    assert_eq!(again.daemon, leased.daemon);
    assert_eq!(ground.uid(&leased.daemon.name).await, uid, "it is another pod");
    assert_eq!(ground.pods().await, [leased.daemon.name]);
    assert_eq!(ground.kubectl(&["get", "secrets", "--output", "name"]).await.lines().count(), 1);
}

/// What a machine that loses power does: its kubelet says nothing more, and its containers are gone.
#[tokio::test]
async fn a_lost_node_is_told_and_the_next_daemon_is_elsewhere() {
    let Some(ground) = Ground::alone_with_policies(isolation()).await else { return };
    let placement = ground.placement("worker-1").await;
    let workshop = Workshop::new(&ground).await;
    let leased = lease(&placement, "citation").await;
    let name = leased.daemon.name.clone();
    let (node, uid) = (ground.node(&name).await, ground.uid(&name).await);
    let kubelet = ground.cluster.peer(&format!("kubelet-{node}"));
    let dockerfile = format!("FROM {}\nRUN echo started; sleep 200\n", ground.cluster.images().busybox);
    let recorder = Arc::new(Recorder::default());
    let builder = workshop.builder(&[]);
    let build = workshop.build_telling(&builder, &leased.daemon, "citation", &dockerfile, &recorder);
    let outage = async {
        eventually("the step runs", async || recorder.output().contains("started")).await;
        let frozen = Frozen::now(kubelet);
        kill_pod(&uid);
        frozen
    };
    let (outcome, frozen) = tokio::join!(build, outage);
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
    assert_eq!(placement.autopsy(&leased.daemon, &failure).await, environment("lost its node"));
    placement.release(leased, Condition::Doubt).await;
    let next = lease(&placement, "citation").await;
    assert_ne!(ground.node(&next.daemon.name).await, node);
    drop(frozen);
    eventually("nothing is left of the lost one", async || ground.pods().await == [next.daemon.name.clone()])
        .await;
    let ready = ["wait", "--for=condition=Ready", "--timeout=60s", &format!("node/{node}")];
    ground.cluster.kubectl(&ready).await.unwrap();
}

/// Every process of a pod, past the kubelet: by the pod's own control group.
pub(crate) fn kill_pod(uid: &str) {
    let underscored = uid.replace('-', "_");
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let groups = fs::read_to_string(format!("/proc/{name}/cgroup")).ok()?;
        let inside = name.parse::<u32>().is_ok() && (groups.contains(uid) || groups.contains(&underscored));
        inside.then_some(name)
    });
    let processes: Vec<String> = processes.collect();
    assert!(!processes.is_empty(), "no process of pod {uid} is to be seen");
    // Those that end with another are gone by then.
    let _ = Command::new("kill").arg("-9").args(processes).stderr(Stdio::null()).status().unwrap();
}

/// Two priority classes below everybody else's, until this is dropped.
struct Classes<'a>(&'a Ground);

impl<'a> Classes<'a> {
    async fn new(ground: &'a Ground) -> Self {
        for (name, value) in [("low", -100), ("high", -50)] {
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                "metadata": { "name": format!("{name}-{}", ground.namespace) },
            });
            ground.cluster.apply(&class.to_string()).await.unwrap();
        }
        Self(ground)
    }

    fn name(&self, which: &str) -> String {
        format!("{which}-{}", self.0.namespace)
    }
}

impl Drop for Classes<'_> {
    fn drop(&mut self) {
        let mut kubectl = self.0.cluster.kubectl_command().into_std();
        kubectl.args(["delete", "--wait=false", "priorityclass", &self.name("low"), &self.name("high")]);
        let _ = kubectl.output();
    }
}

#[tokio::test]
async fn a_builder_that_a_pod_of_a_higher_priority_displaces_is_told_and_the_next_is_elsewhere() {
    let Some(mut ground) = Ground::alone_with_policies(isolation()).await else { return };
    let memory = "jsonpath={.items[?(@.metadata.name=='worker-1')].status.allocatable.memory}";
    let memory = ground.kubectl(&["get", "nodes", "--output", memory]).await;
    let kibi: u64 = memory.trim().strip_suffix("Ki").unwrap().parse().unwrap();
    // A node holds one such pod, and little of it is used.
    let most = Bytes(kibi * 1024 / 5 * 3);
    ground.settings.resources.memory = most;
    ground.settings.scheduling.priority_class = Some(format!("low-{}", ground.namespace));
    let classes = Classes::new(&ground).await;
    let placement = ground.placement("worker-1").await;
    let workshop = Workshop::new(&ground).await;
    let leased = lease(&placement, "citation").await;
    let node = ground.node(&leased.daemon.name).await;
    let base = &ground.cluster.images().busybox;
    let dockerfile = format!("FROM {base}\nRUN echo started; sleep 200\n");
    let recorder = Arc::new(Recorder::default());
    let builder = workshop.builder(&[]);
    let build = workshop.build_telling(&builder, &leased.daemon, "citation", &dockerfile, &recorder);
    let important = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "important", "namespace": ground.namespace },
        "spec": {
            "priorityClassName": classes.name("high"), "nodeSelector": { "kubernetes.io/hostname": node },
            "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{
                "name": "important", "image": base, "command": ["sleep", "600"],
                "resources": { "requests": { "memory": most.to_string() } },
            }],
        },
    });
    let displace = async {
        eventually("the step runs", async || recorder.output().contains("started")).await;
        ground.cluster.apply(&important.to_string()).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(build, displace);
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
    let autopsy = placement.autopsy(&leased.daemon, &failure).await;
    assert_eq!(autopsy, environment("was preempted by a pod of a higher priority"));
    placement.release(leased, Condition::Doubt).await;
    let next = lease(&placement, "citation").await;
    assert_ne!(ground.node(&next.daemon.name).await, node);
}
