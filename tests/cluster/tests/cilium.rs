//! What CiliumNetworkPolicies the API server takes in the builders' namespace, with the component's admission policy.
//! Cilium itself is not here: its policies are known to the API server as a kind with any content.

use fabrique_bed::wait_until;
use fabrique_cluster_tests::manifests;
use serde_json::{Value, json};

use crate::ground::{BUILDS, Ground, SOON, ground, kind, try_object};
use crate::restricted::expected;

fn policy(egress: &Value) -> Value {
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": { "name": "more", "namespace": BUILDS },
        "spec": { "endpointSelector": {}, "egress": egress },
    })
}

/// An egress rule on port 443, with `destination` as its other key.
fn rule(key: &str, destination: Value) -> Value {
    let mut rule = json!({ "toPorts": [{ "ports": [{ "port": "443", "protocol": "TCP" }] }] });
    rule[key] = destination;
    json!([rule])
}

async fn install(ground: Ground) -> Vec<Value> {
    expected(ground).await;
    let component = manifests::documents(&manifests::base_with(&["cilium"]).await.unwrap()).unwrap();
    let (policies, rest): (Vec<_>, Vec<_>) =
        component.into_iter().partition(|document| kind(document) == "CiliumNetworkPolicy");
    for document in rest {
        if document["metadata"]["name"] == "fabrique-builder-cilium" {
            ground.cluster.apply(&document.to_string()).await.unwrap();
        }
    }
    let world = policy(&rule("toEntities", json!(["world"])));
    let refused = || async { try_object(ground.client().await, &world).await.err() };
    wait_until("the admission policy to be in force", SOON, refused).await.unwrap();
    policies
}

#[tokio::test]
async fn policies_that_open_the_world_by_name_are_refused_and_the_components_own_are_taken() {
    let Some(ground) = ground().await else { return };
    let own = install(ground).await;
    let client = ground.client().await;
    assert!(!own.is_empty());
    for policy in own {
        assert_eq!(try_object(client.clone(), &policy).await, Ok(()), "{policy}");
    }
    let names = |pattern: &str| {
        let dns = json!({ "ports": [{ "port": "53" }], "rules": { "dns": [{ "matchPattern": pattern }] } });
        json!([{ "toEndpoints": [{ "matchLabels": { "k8s-app": "kube-dns" } }], "toPorts": [dns] }])
    };
    for (egress, reason) in [
        (json!([{ "toPorts": [{ "ports": [{ "port": "443" }] }] }]), "means everybody"),
        (rule("toCIDR", json!([])), "means everybody"),
        (rule("toEntities", json!(["World-IPv4"])), "stands for the world"),
        (rule("toEntities", json!(["all"])), "stands for the world"),
        (rule("toFQDNs", json!([{ "matchPattern": "*" }])), "without wildcards"),
        (rule("toFQDNs", json!([{ "matchPattern": "*.pypi.org" }])), "without wildcards"),
        (names("*"), "asked by wildcard"),
        (rule("toCIDR", json!(["0.0.0.0/0"])), "wider than a /8"),
        (rule("toCIDRSet", json!([{ "cidr": "128.0.0.0/1" }])), "wider than a /8"),
        (rule("toCIDRSet", json!([{ "cidrGroupRef": "everybody" }])), "cannot be judged"),
        (json!([{ "toFQDNs": [{ "matchName": "pypi.org" }] }]), "ports are named"),
        (
            json!([{ "toFQDNs": [{ "matchName": "pypi.org" }], "toPorts": [{ "ports": [{ "port": "4222" }] }] }]),
            "never reach NATS",
        ),
    ] {
        let answer = try_object(client.clone(), &policy(&egress)).await;
        assert!(answer.as_ref().is_err_and(|told| told.contains(reason)), "{egress}: {answer:?}");
    }
    for egress in [json!([]), json!([{}]), rule("toCIDR", json!(["192.0.2.1"])), names("*.cluster.local")] {
        assert_eq!(try_object(client.clone(), &policy(&egress)).await, Ok(()), "{egress}");
    }
}
