//! Many who ask at once.

use std::collections::BTreeSet;
use std::time::Duration;

use fabrique_ports::builder::{Condition, Placed, Placement};
use futures::future::join_all;

use crate::ground::{Ground, eventually, need};

const CROWD: usize = 200;
const DAEMONS: u16 = 4;
/// Requests to the API server for each who asks. Two where nobody else waits, claim and release; more where two workers
/// reach for one daemon.
const REQUESTS: usize = 5;

#[tokio::test]
async fn two_hundred_at_once_on_four_daemons_are_all_served_and_nothing_is_left() {
    let Some(mut ground) = Ground::with_policies("userns").await else { return };
    (ground.settings.pool.total, ground.settings.pool.per_domain) = (DAEMONS, DAEMONS);
    ground.settings.pool.builds = 1000;
    let workers = [ground.placement("worker-1").await, ground.placement("worker-2").await];
    let served = join_all((0..CROWD).map(async |number| {
        let placement = &workers[number % workers.len()];
        let app = format!("app-{}", number % 20);
        let Placed::Lease(leased) = placement.acquire(&need(&app, 240)).await.unwrap() else {
            panic!("{app} was not served")
        };
        // As long as the shortest of builds.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let name = leased.daemon.name.clone();
        placement.release(leased, Condition::Clean).await;
        name
    }))
    .await;
    let daemons: BTreeSet<String> = served.into_iter().collect();
    assert!(daemons.len() <= usize::from(DAEMONS), "{daemons:?}");

    for placement in &workers {
        assert!(placement.drain(Duration::from_secs(30)).await);
    }
    let claims = "jsonpath={.items[*].metadata.annotations.fabrique/claim}";
    eventually("no claim is left", async || {
        ground.kubectl(&["get", "pods", "--output", claims]).await.trim().is_empty()
    })
    .await;
    let pods = ground.pods().await;
    assert!(pods.len() <= usize::from(DAEMONS), "{pods:?}");
    // A certificate each, and none of a pod that never was.
    let secrets = ground.kubectl(&["get", "secrets", "--output", "name"]).await;
    assert_eq!(secrets.lines().count(), pods.len(), "{secrets}");
    let requests = ground.requests();
    println!("{requests} requests for {CROWD}");
    assert!(requests >= CROWD, "the audit log is not complete: {requests}");
    assert!(requests <= CROWD * REQUESTS, "{requests} requests for {CROWD}");
}
