//! Where an app's next build goes after its node failed one.

use std::sync::Arc;

use fabrique_kubernetes::KubernetesPlacement;
use fabrique_ports::builder::{BuildOutcome, Condition, Placement};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams};
use serde_json::json;

use crate::ends::environment;
use crate::ground::{Ground, eventually, isolation, lease};
use crate::outages::{Cordon, Frozen, kill_pod};
use crate::workshop::{Recorder, Workshop};

/// Something that fills most of a node by what it reserves, and uses nothing: the scheduler would rather have any
/// other node.
async fn fill(ground: &Ground, node: &str) {
    let path = format!("jsonpath={{.items[?(@.metadata.name=='{node}')].status.allocatable.memory}}");
    let memory = ground.kubectl(&["get", "nodes", "--output", &path]).await;
    let kibi: u64 = memory.trim().strip_suffix("Ki").unwrap().parse().unwrap();
    let ballast = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "ballast", "namespace": ground.namespace },
        "spec": {
            "nodeSelector": { "kubernetes.io/hostname": node },
            "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
            "containers": [{
                "name": "ballast", "image": ground.cluster.images().busybox, "command": ["sleep", "600"],
                "resources": { "requests": { "memory": format!("{}Ki", kibi / 5 * 3) } },
            }],
        },
    });
    ground.cluster.apply(&ballast.to_string()).await.unwrap();
    ground.kubectl(&["wait", "--for=condition=Ready", "--timeout=60s", "pod/ballast"]).await;
}

/// Two nodes, of which the scheduler likes `worker-1` more, and two workers.
struct Scene {
    ground: Ground,
    /// Whose builds fail.
    failing: KubernetesPlacement,
    /// Who drives no build, and sees what becomes of pods.
    bystander: KubernetesPlacement,
    workshop: Workshop,
}

impl Scene {
    async fn new() -> Option<Self> {
        let ground = Ground::alone_with_policies(isolation()).await?;
        fill(&ground, "worker-2").await;
        let (failing, bystander) = (ground.placement("one").await, ground.placement("two").await);
        let workshop = Workshop::new(&ground).await;
        Some(Self { ground, failing, bystander, workshop })
    }

    /// Begins a build of `citation`, which is on `worker-1`, and strikes its pod in the midst of it. The autopsy has to
    /// say that it is the environment's fault, and this.
    async fn build_and(&self, strike: impl AsyncFnOnce(&str), told: &str) {
        let leased = lease(&self.failing, "citation").await;
        let pod = leased.daemon.name.clone();
        assert_eq!(self.ground.node(&pod).await, "worker-1");
        let recorder = Arc::new(Recorder::default());
        let base = &self.ground.cluster.images().busybox;
        let dockerfile = format!("FROM {base}\nRUN echo started; sleep 200\n");
        let builder = self.workshop.builder(&[]);
        let build = self.workshop.build_telling(&builder, &leased.daemon, "citation", &dockerfile, &recorder);
        let strike = async {
            eventually("the step runs", async || recorder.output().contains("started")).await;
            strike(&pod).await;
        };
        let (outcome, ()) = tokio::join!(build, strike);
        let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
        assert_eq!(self.failing.autopsy(&leased.daemon, &failure).await, environment(told));
        self.failing.release(leased, Condition::Doubt).await;
    }

    async fn evict(&self, pod: &str) {
        let pods: Api<Pod> = Api::namespaced(self.ground.admin().await, &self.ground.namespace);
        pods.evict(pod, &EvictParams::default()).await.unwrap();
    }

    /// It is ready, and the controllers have taken off the taints that keep pods away: that of a cordon outlives it by
    /// a moment.
    async fn worker_1_takes_pods_again(&self) {
        let ready = ["wait", "--for=condition=Ready", "--timeout=60s", "node/worker-1"];
        self.ground.cluster.kubectl(&ready).await.unwrap();
        let taints = ["get", "node", "worker-1", "--output=jsonpath={.spec.taints}"];
        eventually("the node takes pods again", async || {
            self.ground.cluster.kubectl(&taints).await.is_ok_and(|taints| taints.is_empty())
        })
        .await;
    }

    /// The next build of another app is on `worker-1` again, as the scheduler likes it; that of `citation` is not,
    /// and passes.
    async fn only_the_failed_app_keeps_away(&self, retrying: &KubernetesPlacement) {
        let other = lease(&self.bystander, "other").await;
        assert_eq!(self.ground.node(&other.daemon.name).await, "worker-1");
        let again = lease(retrying, "citation").await;
        assert_eq!(self.ground.node(&again.daemon.name).await, "worker-2");
        let dockerfile = format!("FROM {}\nRUN echo fine\n", self.ground.cluster.images().busybox);
        let builder = self.workshop.builder(&[]);
        let output = self.workshop.output(&builder, &again.daemon, "citation", &dockerfile).await;
        assert!(output.contains("fine"), "{output}");
    }
}

/// An eviction leaves its node as the scheduler's own first choice, and other apps go there. The app that failed does
/// not, whichever worker takes it next.
#[tokio::test]
#[ignore = "long: a drained build and a lost node are tried elsewhere in every run"]
async fn an_evicted_build_is_tried_again_on_the_node_that_the_scheduler_likes_less() {
    let Some(scene) = Scene::new().await else { return };
    scene.build_and(async |pod| scene.evict(pod).await, "was evicted").await;
    scene.only_the_failed_app_keeps_away(&scene.bystander).await;
}

/// A node that was drained is soon open again, and empty.
#[tokio::test]
async fn a_drained_build_is_tried_again_on_another_node_although_its_own_is_open_again() {
    let Some(scene) = Scene::new().await else { return };
    let mut cordon = None;
    let drain = async |pod: &str| {
        cordon = Some(Cordon::on(scene.ground.cluster, "worker-1").await);
        scene.evict(pod).await;
    };
    scene.build_and(drain, "was evicted because its node was drained").await;
    drop(cordon);
    scene.worker_1_takes_pods_again().await;
    scene.only_the_failed_app_keeps_away(&scene.bystander).await;
}

/// A node that was lost may be back before the next attempt. Its loss is learnt by who asked for it.
#[tokio::test]
async fn a_build_whose_node_was_lost_is_tried_again_on_another_node_although_its_own_is_back() {
    let Some(scene) = Scene::new().await else { return };
    let kubelet = scene.ground.cluster.peer("kubelet-worker-1");
    let mut frozen = None;
    let lose = async |pod: &str| {
        let uid = scene.ground.uid(pod).await;
        frozen = Some(Frozen::now(kubelet));
        kill_pod(&uid);
    };
    scene.build_and(lose, "lost its node").await;
    drop(frozen);
    scene.worker_1_takes_pods_again().await;
    eventually("nothing is left of the lost one", async || scene.ground.pods().await == ["ballast"]).await;
    scene.only_the_failed_app_keeps_away(&scene.failing).await;
}
