//! What an app's registration wishes for, and its pod has.

use std::time::Duration;

use fabrique_core::app::BuildResources;
use fabrique_kubernetes::config::{Bytes, Millicores};
use fabrique_ports::builder::{Condition, Need, Placed, Placement};
use serde_json::json;

use crate::ground::{Ground, isolation, lease, need};
use crate::workshop::Workshop;

fn wishing(app: &str, resources: BuildResources) -> Need {
    Need { resources, ..need(app, 60) }
}

#[tokio::test]
async fn a_pod_has_what_its_apps_registration_wishes_for_and_other_apps_have_their_own() {
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
    ground.settings.cache.size = Bytes::mebi(512);
    ground.settings.resources.ephemeral_storage = Some(Bytes::mebi(64));
    let placement = ground.placement("worker-1").await;
    let wishes = BuildResources {
        cpu: Some(Millicores(150)),
        cpu_limit: Some(Millicores(1500)),
        memory: Some(Bytes::mebi(320)),
        memory_limit: None,
        ephemeral_storage: Some(Bytes::mebi(256)),
    };
    let leased = match placement.acquire(&wishing("large", wishes)).await.unwrap() {
        Placed::Lease(lease) => lease,
        Placed::Full(why) | Placed::Refused(why) => panic!("no lease: {why}"),
    };
    let pod = ground.pod(&leased.daemon.name).await;
    let wanted = json!({
        "requests": { "cpu": "150m", "memory": "320Mi", "ephemeral-storage": "768Mi" },
        "limits": { "cpu": "1500m", "memory": "320Mi", "ephemeral-storage": "768Mi" },
    });
    assert_eq!(pod["spec"]["containers"][0]["resources"], wanted);
    // And so says the node that runs it.
    assert_eq!(pod["status"]["containerStatuses"][0]["resources"], wanted);

    let workshop = Workshop::new(&ground).await;
    let dockerfile = format!("FROM {}\nRUN echo fine\n", ground.cluster.images().busybox);
    let output = workshop.output(&workshop.builder(&[]), &leased.daemon, "large", &dockerfile).await;
    assert!(output.contains("fine"), "{output}");
    placement.release(leased.clone(), Condition::Clean).await;

    // It is no pod for an app whose processor time has no limit.
    let other = lease(&placement, "other").await;
    assert_ne!(other.daemon.name, leased.daemon.name);
    let pod = ground.pod(&other.daemon.name).await;
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["cpu"], json!(null));
}

#[tokio::test]
async fn what_is_more_than_the_builders_configuration_permits_is_refused_with_its_key_and_costs_no_pod() {
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
    ground.settings.max.memory = Some(Bytes::mebi(512));
    let placement = ground.placement("worker-1").await;
    let wishes = BuildResources { memory_limit: Some(Bytes::gibi(1)), ..BuildResources::default() };
    let Placed::Refused(why) = placement.acquire(&wishing("large", wishes)).await.unwrap() else {
        panic!("it was given more than is permitted")
    };
    assert_eq!(why, "1Gi of memory are wished for, and max.memory permits 512Mi at the most");
    assert_eq!(ground.pods().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_build_that_may_outlast_its_pod_is_refused_with_the_key_and_costs_no_pod() {
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
    ground.settings.pool.longest_build = Duration::from_mins(10);
    let placement = ground.placement("worker-1").await;
    let long = Need { timeout: Duration::from_mins(11), ..need("long", 60) };
    let Placed::Refused(why) = placement.acquire(&long).await.unwrap() else {
        panic!("its pod may end before it")
    };
    assert_eq!(why, "the build may take 11m, and pool.longest_build permits 10m at the most");
    assert_eq!(ground.pods().await, Vec::<String>::new());
}
