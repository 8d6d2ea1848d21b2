//! How pods end, or never begin, and what is said about it.

use std::collections::BTreeSet;

use fabrique_core::failure::FailureKind;
use fabrique_core::id::AppName;
use fabrique_kubernetes::config::{AppMemory, Bytes};
use fabrique_kubernetes::pod::CONFIG_MAP;
use fabrique_kubernetes::rbac::RULES;
use fabrique_ports::builder::{Autopsy, Condition, Placed, Placement};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams};
use serde_json::json;

use crate::ground::{Ground, eventually, isolation, lease, lost, need};

/// An end that is nobody's fault but the place's.
pub(crate) fn environment(why: &str) -> Autopsy {
    Autopsy::Died { kind: FailureKind::Environment, why: why.to_owned() }
}

#[tokio::test]
async fn a_deletion_and_an_eviction_under_a_build_are_told_apart() {
    let Some(ground) = Ground::with_policies(isolation()).await else { return };
    let placement = ground.placement("worker-1").await;
    let (deleted, evicted) = tokio::join!(lease(&placement, "one"), lease(&placement, "two"));
    assert_eq!(placement.autopsy(&deleted.daemon, &lost()).await, Autopsy::Alive);

    ground.kubectl(&["delete", "pod", &deleted.daemon.name, "--wait=false"]).await;
    assert_eq!(placement.autopsy(&deleted.daemon, &lost()).await, environment("was deleted"));

    let pods: Api<Pod> = Api::namespaced(ground.admin().await, &ground.namespace);
    pods.evict(&evicted.daemon.name, &EvictParams::default()).await.unwrap();
    assert_eq!(placement.autopsy(&evicted.daemon, &lost()).await, environment("was evicted"));
    // By now everything has been done that needs a right: none is there for nothing.
    placement.release(deleted, Condition::Doubt).await;
    placement.release(evicted, Condition::Doubt).await;
    let third = lease(&placement, "three").await;
    placement.release(third, Condition::Doubt).await;
    // Server-side apply is a patch, which needs the right to create too.
    let implied = ("create".to_owned(), "configmaps".to_owned());
    let rights: BTreeSet<(String, String)> = RULES
        .iter()
        .flat_map(|rule| rule.verbs.iter().map(|verb| ((*verb).to_owned(), rule.resource.to_owned())))
        .filter(|right| *right != implied)
        .collect();
    eventually("every right is used", async || ground.asked().into_iter().collect::<BTreeSet<_>>() == rights)
        .await;
}

#[tokio::test]
async fn a_daemon_that_ends_by_itself_is_told() {
    let Some(ground) = Ground::with_policies(isolation()).await else { return };
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    ground.kubectl(&["exec", &leased.daemon.name, "--", "bash", "-c", "kill -TERM 1"]).await;
    let autopsy = placement.autopsy(&leased.daemon, &lost()).await;
    assert!(matches!(&autopsy, Autopsy::Died { why, .. } if why.contains("exit code")), "{autopsy:?}");
}

/// The kernel takes the daemon for the worst offender, as it would in a build that fills the daemon's own memory.
#[tokio::test]
async fn a_daemon_that_is_killed_for_memory_is_told_and_the_next_one_has_more() {
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
    let limit = AppMemory { start: None, limit: Bytes::mebi(400) };
    ground.settings.apps.insert(AppName::parse("citation").unwrap(), limit);
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    // Many small ones, or the kernel would take the hog and leave the daemon.
    let hogs = r"echo 1000 > /proc/1/oom_score_adj
        for _ in {1..60}; do (x=$(head -c 8M /dev/zero | tr '\0' a); sleep 60) & done; wait";
    let _ = ground
        .cluster
        .kubectl(&["exec", "--namespace", &ground.namespace, &leased.daemon.name, "--", "bash", "-c", hogs])
        .await;
    assert_eq!(placement.autopsy(&leased.daemon, &lost()).await, Autopsy::OutOfMemory);
    placement.release(leased, Condition::Doubt).await;
    let next = lease(&placement, "citation").await;
    let pod = ground.pod(&next.daemon.name).await;
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["memory"], "400Mi");
}

#[tokio::test]
async fn without_a_network_policy_no_builder_becomes_ready() {
    let Some(mut ground) = Ground::new(isolation()).await else { return };
    ground.settings.gate.limit = std::time::Duration::from_secs(3);
    let placement = ground.placement("worker-1").await;
    let Placed::Full(why) = placement.acquire(&need("citation", 12)).await.unwrap() else {
        panic!("a builder is ready that everybody can talk through")
    };
    assert!(why.contains("network policy"), "{why}");
}

#[tokio::test]
async fn a_builder_that_no_node_takes_is_explained_by_the_scheduler() {
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
    ground.settings.scheduling.node_selector.insert("disk".into(), "none-has-this".into());
    let placement = ground.placement("worker-1").await;
    let Placed::Full(why) = placement.acquire(&need("citation", 5)).await.unwrap() else {
        panic!("scheduled")
    };
    assert!(why.contains("nodes are available"), "{why}");
}

/// As in a cluster whose only node with room is the control plane's: the build waits and says why.
#[tokio::test]
async fn a_builder_for_which_only_the_control_plane_is_left_is_pending_with_the_schedulers_reason() {
    let Some(mut ground) = Ground::with_policies("userns").await else { return };
    let control = ("kubernetes.io/hostname".to_owned(), "control".to_owned());
    ground.settings.scheduling.node_selector.extend([control]);
    let placement = ground.placement("worker-1").await;
    let Placed::Full(why) = placement.acquire(&need("citation", 5)).await.unwrap() else {
        panic!("it builds on the control plane")
    };
    assert!(why.contains("didn't match Pod's node affinity/selector"), "{why}");
    let phases = "jsonpath={range .items[*]}{.status.phase}@{.spec.nodeName} {end}";
    let pods = ground.kubectl(&["get", "pods", "--output", phases]).await;
    assert_eq!(pods.trim(), "Pending@");

    // The node's taint keeps it away as well: one that tolerates that is kept away by its affinity alone.
    let builder = &ground.pods().await[0];
    let mut tolerant = ground.pod(builder).await;
    tolerant["metadata"] = json!({ "name": "tolerant", "namespace": ground.namespace });
    tolerant.as_object_mut().unwrap().remove("status");
    tolerant["spec"]["tolerations"] = json!([{ "operator": "Exists" }]);
    ground.cluster.apply(&tolerant.to_string()).await.unwrap();
    let told = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
    let told = async || ground.kubectl(&["get", "pod", "tolerant", "--output", told]).await;
    eventually("the scheduler to have looked", async || !told().await.is_empty()).await;
    let told = told().await;
    assert!(told.contains("3 node(s) didn't match Pod's node affinity/selector"), "{told}");
}

/// What making all builders anew rests on, as after a rotation of their authority.
#[tokio::test]
async fn with_the_config_map_that_owns_them_all_builders_and_their_certificates_go() {
    let Some(ground) = Ground::with_policies(isolation()).await else { return };
    let placement = ground.placement("worker-1").await;
    lease(&placement, "citation").await;
    // No worker is there to make any meanwhile.
    drop(placement);
    let listed = async |kind: &str| {
        let names = ground.kubectl(&["get", kind, "--output", "name"]).await;
        names.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!((listed("pods").await.len(), listed("secrets").await.len()), (1, 1));
    ground.kubectl(&["delete", "configmap", CONFIG_MAP]).await;
    eventually("the builders are gone", async || listed("pods").await.is_empty()).await;
    eventually("their certificates are gone", async || listed("secrets").await.is_empty()).await;
}
