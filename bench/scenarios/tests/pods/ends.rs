//! What Kubernetes does to a build's pod, told by a worker to whoever asks: `why`, the history, the events and the commit
//! status; and tried again until there is one commit. What needs no settings of its own is in gate 4: a deletion, an
//! eviction, a drain, the kernel's choice for want of memory; the node's own eviction is in gate 7.

use fabrique_bed::{Cluster, Peer};
use fabrique_kubernetes::config::Bytes;
use fabrique_scenarios::{kill, verdicts};
use serde_json::{Value, json};

use crate::ground::{Ground, is_claimed, uid};
use crate::scene::{APP, Scene};

impl Scene {
    /// Waits until the failure is told by `why`, as this kind and in these words, with what to do next.
    async fn fails(&self, revision: &str, kind: &str, words: &str) {
        let why = self.why_tells(revision, words).await;
        assert_eq!(why["failure"]["kind"], kind, "{why:#}");
        assert!(why["next"].as_str().is_some_and(|next| !next.is_empty()), "{why:#}");
    }

    /// It was told everywhere else, too.
    async fn is_told(&self, revision: &str, words: &str) {
        let stage = &self.ground.stage;
        let builds = stage.json(&["builds", APP]).await.unwrap();
        verdicts::reason_told(builds.as_array().unwrap(), revision, &[words]).unwrap();
        // It ends with 1 where the first attempt was not committed.
        let timeline = ["timeline", APP, "--revision", revision, "--output=json"];
        let (_, timeline, _) = stage.try_command(&timeline).await.unwrap();
        verdicts::events_tell(&serde_json::from_str(&timeline).unwrap(), revision, &[words]).unwrap();
        let statuses = format!("/repos/atlas/{APP}/statuses/{revision}?limit=50");
        let statuses = stage.bed.gitea().api("GET", &statuses, None).await.unwrap();
        verdicts::status_tells(&statuses, APP, &[words]).unwrap();
    }

    /// Waits for a pod that somebody builds on, other than this one.
    async fn another_pod(&self, than: &Value) -> Value {
        let found = fabrique_scenarios::until("another pod", std::time::Duration::from_mins(2), async || {
            let pods = self.ground.pods().await;
            let another = pods.into_iter().find(|pod| is_claimed(pod) && uid(pod) != uid(than));
            another.ok_or_else(|| anyhow::anyhow!("there is none"))
        });
        found.await.unwrap()
    }
}

/// A peer that is stopped where it stands, until this is dropped.
struct Frozen<'a>(&'a Peer);

impl<'a> Frozen<'a> {
    fn now(peer: &'a Peer) -> Self {
        peer.pause().unwrap();
        Self(peer)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = self.0.resume();
    }
}

/// What a machine that loses power does: its kubelet says nothing more, and its containers are gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_whose_node_is_lost_is_told_and_passes_on_another() {
    let Some(ground) = Ground::alone().await else { return };
    let scene = Scene::set(ground).await;
    let revision = scene.push_to_the_gate().await;
    let lost = scene.ground.one_pod("the pod that builds", is_claimed).await;
    let node = lost["spec"]["nodeName"].as_str().unwrap();
    let frozen = Frozen::now(scene.ground.cluster.peer(&format!("kubelet-{node}")));
    kill::signal(uid(&lost), None, "KILL").unwrap();
    scene.fails(&revision, "environment", "lost its node").await;
    let next = scene.another_pod(&lost).await;
    assert_ne!(next["spec"]["nodeName"], node, "it was tried again where it had failed");
    let committed = scene.gate.open_until(scene.ground.stage.committed_once(&scene.app, &revision)).await;
    committed.unwrap();
    drop(frozen);
    // What was lost is taken away once its node is back.
    scene.ends_in_one_commit(&revision, &scene.worker).await;
    scene.is_told(&revision, "lost its node").await;
    is_ready(scene.ground.cluster, node).await;
}

async fn is_ready(cluster: &Cluster, node: &str) {
    let ready = ["wait", "--for=condition=Ready", "--timeout=60s", "node", node];
    cluster.kubectl(&ready).await.unwrap();
}

/// Two priority classes below everybody else's, until this is dropped.
struct Classes<'a>(&'a Cluster, [String; 2]);

impl<'a> Classes<'a> {
    async fn new(ground: &Ground) -> Self {
        let names = ["low", "high"].map(|name| format!("{name}-{}", ground.namespace));
        for (name, value) in names.iter().zip([-100, -50]) {
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                "metadata": { "name": name },
            });
            ground.apply(&class).await;
        }
        Self(ground.cluster, names)
    }
}

impl Drop for Classes<'_> {
    fn drop(&mut self) {
        let mut kubectl = self.0.kubectl_command().into_std();
        let _ = kubectl.args(["delete", "--wait=false", "priorityclass"]).args(&self.1).output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_a_pod_of_a_higher_priority_displaces_is_told_and_passes_on_another_node() {
    let Some(mut ground) = Ground::alone().await else { return };
    let memory = "jsonpath={.items[?(@.metadata.name=='worker-1')].status.allocatable.memory}";
    let memory = ground.kubectl(&["get", "nodes", "--output", memory]).await;
    let kibi: u64 = memory.trim().strip_suffix("Ki").unwrap().parse().unwrap();
    // A node holds one such pod, and little of it is used.
    let most = Bytes(kibi * 1024 / 5 * 3).to_string();
    let classes = Classes::new(&ground).await;
    let [low, high] = &classes.1;
    ground.settings["resources"]["memory"] = json!(most);
    ground.settings["scheduling"] = json!({ "priority_class": low });
    let scene = Scene::set(ground).await;
    let revision = scene.push_to_the_gate().await;
    let displaced = scene.ground.one_pod("the pod that builds", is_claimed).await;
    let node = &displaced["spec"]["nodeName"];
    let important = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "important", "namespace": scene.ground.namespace },
        "spec": {
            "priorityClassName": high, "nodeSelector": { "kubernetes.io/hostname": node },
            "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{
                "name": "important", "image": scene.ground.cluster.images().busybox,
                "command": ["sleep", "600"], "resources": { "requests": { "memory": most } },
            }],
        },
    });
    scene.ground.apply(&important).await;
    let words = "was preempted by a pod of a higher priority";
    scene.fails(&revision, "environment", words).await;
    let next = scene.another_pod(&displaced).await;
    assert_ne!(&next["spec"]["nodeName"], node, "its place was taken");
    scene.ends_in_one_commit(&revision, &scene.worker).await;
    scene.is_told(&revision, words).await;
}

/// Kubernetes' own end to a pod that nobody looks after, which a build meets only when it comes early.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_whose_pod_reaches_its_deadline_is_told_and_passes_in_another() {
    let Some(ground) = Ground::new().await else { return };
    let scene = Scene::set(ground).await;
    let revision = scene.push_to_the_gate().await;
    let ended = scene.ground.one_pod("the pod that builds", is_claimed).await;
    let name = ended["metadata"]["name"].as_str().unwrap();
    let patch = json!({ "spec": { "activeDeadlineSeconds": 1 } }).to_string();
    scene.ground.kubectl(&["patch", "pod", name, "--patch", &patch]).await;
    scene.fails(&revision, "environment", "reached its deadline").await;
    scene.another_pod(&ended).await;
    scene.ends_in_one_commit(&revision, &scene.worker).await;
    scene.is_told(&revision, "reached its deadline").await;
}

/// What an app asks for by accident: its next pod has more, up to its limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_whose_step_outgrows_its_pod_is_told_and_passes_in_one_with_more_memory() {
    let Some(mut ground) = Ground::new().await else { return };
    ground.settings["apps"] = json!({ APP: { "limit": "512Mi" } });
    let scene = Scene::set(ground).await;
    let revision = scene.push("RUN dd if=/dev/zero of=/dev/null bs=300M count=1").await;
    scene.fails(&revision, "environment", "ran out of memory").await;
    scene.ends_in_one_commit(&revision, &scene.worker).await;
    scene.is_told(&revision, "ran out of memory").await;
    let passed = scene.ground.one_pod("the pod that it passed in", |pod| !is_claimed(pod)).await;
    let limit = passed.pointer("/spec/containers/0/resources/limits/memory");
    assert_eq!(limit, Some(&json!("512Mi")), "{passed:#}");
}

/// Nothing was tried, so nothing counts as an attempt: it waits until somebody corrects what keeps it from a pod.
async fn is_told_and_waits_to_be_corrected(mut ground: Ground, wrong: impl FnOnce(&mut Value), words: &str) {
    let right = ground.settings.clone();
    ground.settings["pool"]["start"] = "20s".into();
    ground.settings["gate"]["limit"] = "15s".into();
    wrong(&mut ground.settings);
    ground.stage.settings.patience = "8s".into();
    let mut scene = Scene::set(ground).await;
    let revision = scene.push(&scene.gate.steps()).await;
    scene.fails(&revision, "unplaced", words).await;
    scene.is_told(&revision, words).await;
    scene.worker.peer.stop().await.unwrap();
    scene.ground.settings = right;
    scene.ground.stage.settings.patience = "60s".into();
    scene.ground.configure().await;
    scene.worker = scene.ground.stage.worker().await.unwrap();
    scene.ends_in_one_commit(&revision, &scene.worker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_whose_pods_image_cannot_be_pulled_is_told_and_waits_for_one_that_can() {
    let Some(ground) = Ground::new().await else { return };
    let nothing = format!("registry:80/base/nothing@sha256:{}", "0".repeat(64));
    let wrong = |settings: &mut Value| settings["images"]["builder"] = nothing.into();
    is_told_and_waits_to_be_corrected(ground, wrong, "cannot pull its image").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_has_only_the_control_plane_left_is_told_in_the_schedulers_words_and_waits() {
    let Some(ground) = Ground::new().await else { return };
    let control = json!({ "node_selector": { "kubernetes.io/hostname": "control" } });
    let wrong = |settings: &mut Value| settings["scheduling"] = control;
    is_told_and_waits_to_be_corrected(ground, wrong, "finds no node: 0/3 nodes are available").await;
}
