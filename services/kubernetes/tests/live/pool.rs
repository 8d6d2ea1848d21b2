//! Whom a daemon serves, and how long: what `pool`'s own tests say of rules, of pods.

use std::time::Duration;

use fabrique_core::id::TrustDomain;
use fabrique_kubernetes::KubernetesPlacement;
use fabrique_ports::builder::{Condition, Need, Placement as _, PlacementLease};

use crate::ground::{Ground, eventually, lease, lease_for, need};

/// A build that ended well.
async fn builds(placement: &KubernetesPlacement, need: Need) -> PlacementLease {
    let leased = lease_for(placement, need).await;
    placement.release(leased.clone(), Condition::Clean).await;
    leased
}

#[tokio::test]
async fn a_daemon_serves_the_app_whose_cache_it_has_and_no_other_trust_domain() {
    let Some(ground) = Ground::with_policies("userns").await else { return };
    let placement = ground.placement("worker-1").await;
    let (citation, mediawatch) = tokio::join!(lease(&placement, "citation"), lease(&placement, "mediawatch"));
    let uids = [ground.uid(&citation.daemon.name).await, ground.uid(&mediawatch.daemon.name).await];
    placement.release(citation.clone(), Condition::Clean).await;
    placement.release(mediawatch.clone(), Condition::Clean).await;
    // Both are free each time, so that either could be had.
    for _ in 0..2 {
        assert_eq!(builds(&placement, need("mediawatch", 60)).await.daemon, mediawatch.daemon);
        assert_eq!(builds(&placement, need("citation", 60)).await.daemon, citation.daemon);
    }
    let elsewhere = Need { trust: TrustDomain::parse("zephyr").unwrap(), ..need("citation", 60) };
    let stranger = lease_for(&placement, elsewhere).await;
    let uid = ground.uid(&stranger.daemon.name).await;
    assert!(!uid.is_empty() && !uids.contains(&uid), "a daemon of atlas serves zephyr");
}

#[tokio::test]
async fn a_rootless_daemon_serves_one_app_however_well_its_builds_end() {
    let Some(ground) = Ground::with_policies("rootless").await else { return };
    let placement = ground.placement("worker-1").await;
    let first = builds(&placement, need("citation", 60)).await;
    let uid = ground.uid(&first.daemon.name).await;
    assert_eq!(
        builds(&placement, need("citation", 60)).await.daemon,
        first.daemon,
        "its own app has it again"
    );
    let other = lease(&placement, "mediawatch").await;
    let other = ground.uid(&other.daemon.name).await;
    assert!(!other.is_empty() && other != uid, "a daemon of citation serves mediawatch");
}

#[tokio::test]
async fn a_daemon_that_ran_its_builds_gets_no_further_one() {
    let Some(mut ground) = Ground::with_policies("userns").await else { return };
    ground.settings.pool.builds = 1;
    let placement = ground.placement("worker-1").await;
    let first = lease(&placement, "citation").await;
    let uid = ground.uid(&first.daemon.name).await;
    placement.release(first, Condition::Clean).await;
    let second = lease(&placement, "citation").await;
    assert_ne!(ground.uid(&second.daemon.name).await, uid);
}

#[tokio::test]
async fn an_idle_daemon_retires_and_as_many_as_are_always_kept_warm_come_by_themselves() {
    let Some(mut ground) = Ground::with_policies("userns").await else { return };
    let placement = ground.placement("worker-1").await;
    builds(&placement, need("citation", 60)).await;
    assert!(placement.drain(Duration::from_secs(10)).await);
    drop(placement);
    assert_eq!(ground.pods().await.len(), 1, "it is not idle for long yet");
    // It starts none, so that neither has to be long enough for one.
    let mut impatient = ground.settings.clone();
    let soon = Duration::from_secs(2);
    (impatient.pool.idle, impatient.pool.start, impatient.gate.limit) = (soon, soon, soon);
    let placement = ground.placement_with(impatient, "worker-2").await;
    eventually("the idle daemon to be gone", async || ground.pods().await.is_empty()).await;
    drop(placement);

    ground.settings.pool.always_warm = [(TrustDomain::parse("atlas").unwrap(), 1)].into();
    let placement = ground.placement("worker-3").await;
    let ready = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";
    let warm = async || ground.kubectl(&["get", "pods", "--output", ready]).await == "True";
    eventually("a daemon for whom nobody asked", warm).await;
    let before = ground.pods().await;
    let leased = builds(&placement, need("citation", 60)).await;
    assert_eq!([leased.daemon.name], before.as_slice());
}
