//! How pods end, or never begin, and what is said about it.

use fabrique_ports::builder::{Autopsy, Placed, Placement};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, EvictParams};

use crate::ground::{Ground, lease, need};

#[tokio::test]
async fn a_deletion_and_an_eviction_under_a_build_are_told_apart() {
    let Some(ground) = Ground::with_policies("userns").await else { return };
    let placement = ground.placement("worker-1").await;
    let (deleted, evicted) = tokio::join!(lease(&placement, "one"), lease(&placement, "two"));
    assert_eq!(placement.autopsy(&deleted.daemon).await, Autopsy::Alive);

    ground.kubectl(&["delete", "pod", &deleted.daemon.name, "--wait=false"]).await;
    assert_eq!(placement.autopsy(&deleted.daemon).await, Autopsy::Died("was deleted".into()));

    let pods: Api<Pod> = Api::namespaced(ground.admin().await, &ground.namespace);
    pods.evict(&evicted.daemon.name, &EvictParams::default()).await.unwrap();
    assert_eq!(placement.autopsy(&evicted.daemon).await, Autopsy::Died("was evicted".into()));
    ground.end().await;
}

#[tokio::test]
async fn a_daemon_that_ends_by_itself_is_told() {
    let Some(ground) = Ground::with_policies("userns").await else { return };
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    // Process 1 of the container ignores what it does not handle, but from the kernel's parent namespace.
    ground.kubectl(&["exec", &leased.daemon.name, "--", "bash", "-c", "kill -TERM 1"]).await;
    let autopsy = placement.autopsy(&leased.daemon).await;
    assert!(matches!(&autopsy, Autopsy::Died(why) if why.contains("exit code")), "{autopsy:?}");
    ground.end().await;
}

#[tokio::test]
async fn without_a_network_policy_no_builder_becomes_ready() {
    let Some(mut ground) = Ground::new("userns").await else { return };
    ground.settings.gate.limit = std::time::Duration::from_secs(3);
    let placement = ground.placement("worker-1").await;
    let Placed::Full(why) = placement.acquire(&need("citation", 12)).await.unwrap() else {
        panic!("a builder is ready that everybody can talk through")
    };
    assert!(why.contains("network policy"), "{why}");
    ground.end().await;
}

#[tokio::test]
async fn a_builder_that_no_node_takes_is_explained_by_the_scheduler() {
    let Some(mut ground) = Ground::with_policies("userns").await else { return };
    ground.settings.scheduling.node_selector.insert("disk".into(), "none-has-this".into());
    let placement = ground.placement("worker-1").await;
    let Placed::Full(why) = placement.acquire(&need("citation", 5)).await.unwrap() else {
        panic!("scheduled")
    };
    assert!(why.contains("nodes are available"), "{why}");
    ground.end().await;
}
