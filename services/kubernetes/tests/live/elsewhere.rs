//! Where an app's next build goes after its node failed one.

use std::sync::Arc;

use fabrique_ports::builder::{BuildOutcome, Condition, Placement};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams};
use serde_json::json;

use crate::ends::environment;
use crate::ground::{Ground, eventually, isolation, lease};
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

/// An eviction leaves its node as the scheduler's own first choice, and other apps go there. The app that failed does
/// not, whichever worker takes it next.
#[tokio::test]
async fn an_evicted_build_is_tried_again_on_the_node_that_the_scheduler_likes_less() {
    let Some(ground) = Ground::alone_with_policies(isolation()).await else { return };
    fill(&ground, "worker-2").await;
    let (placement, bystander) = (ground.placement("one").await, ground.placement("two").await);
    let workshop = Workshop::new(&ground).await;
    let evicted = lease(&placement, "citation").await;
    assert_eq!(ground.node(&evicted.daemon.name).await, "worker-1");
    let recorder = Arc::new(Recorder::default());
    let dockerfile = format!("FROM {}\nRUN echo started; sleep 100\n", ground.cluster.images().busybox);
    let builder = workshop.builder(&[]);
    let build = workshop.build_telling(&builder, &evicted.daemon, "citation", &dockerfile, &recorder);
    let pods: Api<Pod> = Api::namespaced(ground.admin().await, &ground.namespace);
    let evict = async {
        eventually("the step runs", async || recorder.output().contains("started")).await;
        pods.evict(&evicted.daemon.name, &EvictParams::default()).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(build, evict);
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
    assert_eq!(placement.autopsy(&evicted.daemon, &failure).await, environment("was evicted"));
    placement.release(evicted, Condition::Doubt).await;

    let other = lease(&bystander, "other").await;
    assert_eq!(ground.node(&other.daemon.name).await, "worker-1");
    let again = lease(&bystander, "citation").await;
    assert_eq!(ground.node(&again.daemon.name).await, "worker-2");
    let dockerfile = format!("FROM {}\nRUN echo fine\n", ground.cluster.images().busybox);
    let output = workshop.output(&builder, &again.daemon, "citation", &dockerfile).await;
    assert!(output.contains("fine"), "{output}");
}
