//! What deploys and what runs stays inside: knocked at from pods of the apps', of Argo CD's and of fabrique's own
//! namespace, with their policies, without, and with them again.

use std::collections::BTreeMap;

use fabrique_bed::{Cluster, Doors as Listening};
use serde_json::json;

use crate::doors::{Doors, expected, start_pod, until};
use crate::ground::{Ground, Policies, builders_alone, ground, kind};

/// Where nothing is built.
const NAMESPACES: [&str; 3] = ["apps", "argocd", "fabrique"];
/// The policy that keeps them inside, in each of them.
const AIR_GAP: &str = "inside-only";
const POD: &str = "air-gap";
/// Of whoever listens for this test.
const LISTENERS: &str = "air-gap-doors";

/// Every door, and whether it is open: the inside, and then hosts outside. That one of them is on the builders' list is
/// for builders.
fn doors() -> Doors {
    let at = |host: &str, port, open| (host.to_owned(), port, open);
    vec![
        at("gitea", 3000, true),
        at("registry", 80, true),
        at("198.18.0.11", 6443, true),
        at("permitted.example", 443, false),
        at("forbidden.example", 443, false),
        at("198.19.255.11", 8443, false),
        at("169.254.169.254", 80, false),
    ]
}

/// What each of them reaches, once it is `wanted`, or after a while.
async fn answers(cluster: &Cluster, wanted: &BTreeMap<String, bool>) -> Vec<BTreeMap<String, bool>> {
    let doors = doors();
    let asked = NAMESPACES.map(|namespace| until(cluster, namespace, POD, &doors, wanted));
    let [apps, argocd, fabrique] = asked;
    let (apps, argocd, fabrique) = tokio::join!(apps, argocd, fabrique);
    vec![apps, argocd, fabrique]
}

async fn in_force(ground: Ground) {
    let air_gap = |document: &serde_json::Value| {
        kind(document) == "NetworkPolicy" && document["metadata"]["name"] == AIR_GAP
    };
    ground.apply_bench(air_gap).await;
}

async fn remove(cluster: &Cluster) {
    for namespace in NAMESPACES {
        let delete = ["delete", "pod", POD, "--ignore-not-found", "--now", "--namespace", namespace];
        cluster.kubectl(&delete).await.unwrap();
    }
    cluster.kubectl(&["delete", "namespace", LISTENERS, "--ignore-not-found"]).await.unwrap();
}

/// One test, because it takes the policies away for a moment.
#[tokio::test]
async fn pods_of_apps_of_argo_cd_and_of_fabrique_reach_the_inside_and_nothing_outside() {
    let Some(ground) = ground().await else { return };
    let _alone = builders_alone().await;
    let cluster = ground.cluster;
    // What a run that failed has left goes first: its pods hold addresses of the nodes.
    remove(cluster).await;
    in_force(ground).await;
    cluster.kubectl(&["create", "namespace", LISTENERS]).await.unwrap();
    let world = ["198.19.255.10:443", "198.19.255.11:443", "198.19.255.11:8443"];
    let listening = Listening::open(cluster, LISTENERS, &world).await.unwrap();
    for namespace in NAMESPACES {
        start_pod(cluster, namespace, POD, &json!({})).await;
    }
    let wanted = expected(&doors());
    let open: BTreeMap<String, bool> = wanted.keys().map(|door| (door.clone(), true)).collect();
    let with = answers(cluster, &wanted).await;
    let policies = Policies::of(ground).await;
    // Fabrique's own have a default deny beside it, by which they would reach nothing at all.
    let deny = ["delete", "networkpolicy", "default-deny", "--namespace=fabrique"];
    cluster.kubectl(&deny).await.unwrap();
    for namespace in NAMESPACES {
        cluster.kubectl(&["delete", "networkpolicy", AIR_GAP, "--namespace", namespace]).await.unwrap();
    }
    let without = answers(cluster, &open).await;
    drop(policies);
    let again = answers(cluster, &wanted).await;
    drop(listening);
    remove(cluster).await;
    assert_eq!(with, vec![wanted.clone(); 3], "{NAMESPACES:?} with their policies");
    assert_eq!(without, vec![open; 3], "{NAMESPACES:?} without them");
    assert_eq!(again, vec![wanted; 3], "{NAMESPACES:?} with them again");
}
