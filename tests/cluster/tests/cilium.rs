//! What CiliumNetworkPolicies the API server takes in the builders' namespace and for the whole cluster, with the component's admission policy.
//! Cilium itself is not here: its policies are known to the API server as a kind with any content.

use fabrique_bed::wait_until;
use fabrique_cluster_tests::manifests;
use fabrique_kubernetes::network::findings_in;
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

fn asks_for_names(policies: &[Value]) -> bool {
    policies.iter().any(|policy| policy["spec"]["egress"][0]["toPorts"][0]["rules"]["dns"].is_array())
}

async fn install(ground: Ground) -> Vec<Value> {
    expected(ground).await;
    let component = manifests::documents(&manifests::base_with(&["cilium"]).await.unwrap()).unwrap();
    // Policies add up: one that opens DNS whatever the name would undo the other's list.
    let open = |document: &&Value| {
        kind(document) == "NetworkPolicy" && document["spec"]["egress"].to_string().contains("\"port\":53")
    };
    let builders = component.iter().filter(|document| document["metadata"]["namespace"] == BUILDS);
    assert_eq!(builders.filter(open).count(), 0, "DNS is open to builders whatever the name");
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
    assert!(asks_for_names(&own), "nothing lets builders resolve names: {own:?}");
    let client = ground.client().await;
    assert!(!own.is_empty());
    for policy in own {
        assert_eq!(try_object(client.clone(), &policy).await, Ok(()), "{policy}");
    }
    for (violation, egress, reason) in violations().into_iter().chain(violations_of_names()) {
        let answer = try_object(client.clone(), &policy(&egress)).await;
        assert!(
            answer.as_ref().is_err_and(|told| told.contains(reason)),
            "{violation}: {egress}: {answer:?}"
        );
    }
    let mut open = policy(&json!([]));
    open["spec"]["ingress"] = json!([{ "fromEntities": ["cluster"] }]);
    let answer = try_object(client.clone(), &open).await;
    assert!(answer.as_ref().is_err_and(|told| told.contains("who may come in")), "a way in: {answer:?}");
    let addresses = json!(["192.0.2.1", "2001:db8::/32", "10.1.2.3/8"]);
    let by_label = pods(&json!({}), &json!([{ "key": "k8s:app", "operator": "In", "values": ["mirror"] }]));
    let taken = [json!([]), json!([{}]), rule("toCIDR", addresses), names("*.cluster.local"), by_label];
    for egress in taken {
        assert_eq!(try_object(client.clone(), &policy(&egress)).await, Ok(()), "{egress}");
    }
}

/// A policy for the whole cluster.
fn clusterwide(selector: &Value, egress: &Value) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy", "metadata": { "name": "more" },
        "spec": { "endpointSelector": selector, "egress": egress },
    })
}

/// By a policy for the whole cluster builders could be opened without a word about them.
#[tokio::test]
async fn a_policy_for_the_whole_cluster_opens_nothing_to_builders_and_leaves_others_alone() {
    let Some(ground) = ground().await else { return };
    install(ground).await;
    let client = ground.client().await;
    let namespace = |name: &str| json!({ "matchLabels": { "k8s:io.kubernetes.pod.namespace": name } });
    let expression = |operator: &str, values: Value| json!({ "matchExpressions": [{ "key": "k8s:io.kubernetes.pod.namespace", "operator": operator, "values": values }] });
    let theirs = [
        json!({}),
        namespace(BUILDS),
        expression("In", json!(["apps", BUILDS])),
        expression("NotIn", json!(["apps"])),
    ];
    let others = [
        namespace("kube-system"),
        expression("In", json!(["apps"])),
        json!({ "matchLabels": { "app.kubernetes.io/component": "worker" } }),
        json!({ "matchLabels": { "reserved:host": "" } }),
    ];
    let cases = [
        (rule("toEntities", json!(["cluster", "host", "kube-apiserver"])), "entities"),
        (rule("toEntities", json!(["world"])), "entities"),
        (rule("toCIDR", json!(["0.0.0.0/0"])), "wider than a /8"),
        (rule("toFQDNs", json!([{ "matchPattern": "*" }])), "without wildcards"),
        (rule("toCIDR", json!(["169.254.169.254"])), "never opened"),
        (on_port(&json!({ "port": "4222" })), "never reach NATS"),
    ];
    for (egress, reason) in &cases {
        for selector in &theirs {
            let policy = clusterwide(selector, egress);
            let answer = try_object(client.clone(), &policy).await;
            assert!(answer.as_ref().is_err_and(|told| told.contains(reason)), "{policy}: {answer:?}");
            assert!(!findings_in(&policy, BUILDS).is_empty(), "{policy}");
        }
        for selector in &others {
            let policy = clusterwide(selector, egress);
            assert_eq!(try_object(client.clone(), &policy).await, Ok(()), "{policy}");
        }
    }
    let mut nodes = clusterwide(&json!({}), &cases[0].0);
    nodes["spec"]["nodeSelector"] =
        nodes["spec"].as_object_mut().unwrap().remove("endpointSelector").unwrap();
    assert_eq!(try_object(client.clone(), &nodes).await, Ok(()), "{nodes}");
    let named = clusterwide(&json!({}), &on_port(&json!({ "port": "443" })));
    assert_eq!(try_object(client, &named).await, Ok(()), "{named}");
}

/// A rule by which the cluster's DNS is asked for names of this pattern.
fn names(pattern: &str) -> Value {
    dns(&json!({ "dns": [{ "matchPattern": pattern }] }))
}

/// A rule by which the cluster's DNS is asked, with these rules of what for.
fn dns(rules: &Value) -> Value {
    let labels = json!({ "k8s:io.kubernetes.pod.namespace": "kube-system", "k8s:k8s-app": "kube-dns" });
    let mut ports = json!({ "ports": [{ "port": "53" }] });
    if !rules.is_null() {
        ports["rules"] = rules.clone();
    }
    json!([{ "toEndpoints": [{ "matchLabels": labels }], "toPorts": [ports] }])
}

/// A rule to pods of the namespace `apps` with these labels and expressions.
fn pods(labels: &Value, expressions: &Value) -> Value {
    let mut selector = json!({ "matchLabels": labels, "matchExpressions": expressions });
    selector["matchLabels"]["k8s:io.kubernetes.pod.namespace"] = json!("apps");
    rule("toEndpoints", json!([selector]))
}

/// An egress rule to one host, with these ports.
fn on_ports(ports: &Value) -> Value {
    json!([{ "toFQDNs": [{ "matchName": "pypi.org" }], "toPorts": ports }])
}

fn on_port(port: &Value) -> Value {
    on_ports(&json!([{ "ports": [port] }]))
}

/// Names of violations, egress rules that have one, and what the API server says of them.
fn violations() -> Vec<(&'static str, Value, &'static str)> {
    let namespace = json!({ "matchLabels": { "k8s:io.kubernetes.pod.namespace": "apps" } });
    let service = json!({ "k8sService": { "serviceName": "a", "namespace": "b" } });
    vec![
        ("no destination", json!([{ "toPorts": [{ "ports": [{ "port": "443" }] }] }]), "means everybody"),
        ("an empty list of destinations", rule("toCIDR", json!([])), "means everybody"),
        ("the world", rule("toEntities", json!(["World-IPv4"])), "entities"),
        ("everybody", rule("toEntities", json!(["all"])), "entities"),
        ("the API server", rule("toEntities", json!(["kube-apiserver"])), "entities"),
        ("a service", rule("toServices", json!([service])), "cannot be judged"),
        ("nodes", rule("toNodes", json!([{}])), "cannot be judged"),
        ("a group of a cloud's", rule("toGroups", json!([{ "aws": {} }])), "cannot be judged"),
        (
            "a group of ranges",
            rule("toCIDRSet", json!([{ "cidrGroupRef": "everybody" }])),
            "cannot be judged",
        ),
        ("any host", rule("toFQDNs", json!([{ "matchPattern": "*" }])), "without wildcards"),
        (
            "any host of a domain",
            rule("toFQDNs", json!([{ "matchPattern": "*.pypi.org" }])),
            "without wildcards",
        ),
        ("any name", names("*"), "asked by wildcard"),
        ("every pod of the namespace", rule("toEndpoints", json!([{}])), "labels of theirs"),
        ("every pod of another namespace", rule("toEndpoints", json!([namespace])), "labels of theirs"),
        ("every address", rule("toCIDR", json!(["0.0.0.0/0"])), "wider than a /8"),
        ("half of all addresses", rule("toCIDRSet", json!([{ "cidr": "128.0.0.0/1" }])), "wider than a /8"),
        ("all public IPv6 addresses", rule("toCIDR", json!(["2000::/3"])), "wider than a /8"),
        ("a world in pieces", rule("toCIDR", json!(["11.0.0.0/8", "12.0.0.0/9"])), "together"),
        ("cloud metadata", rule("toCIDR", json!(["169.254.169.254"])), "never opened"),
        (
            "a range of link-local addresses",
            rule("toCIDRSet", json!([{ "cidr": "169.254.0.0/24" }])),
            "never opened",
        ),
        ("IPv6 link-local", rule("toCIDR", json!(["fe80::/64"])), "never opened"),
        ("loopback", rule("toCIDR", json!(["127.0.0.1/32"])), "never opened"),
        (
            "cloud metadata as IPv6",
            rule("toCIDR", json!(["::ffff:169.254.169.254"])),
            "a range is an address",
        ),
        ("every port", json!([{ "toFQDNs": [{ "matchName": "pypi.org" }] }]), "means every port"),
        ("an empty list of ports", on_ports(&json!([])), "means every port"),
        ("an empty list inside", on_ports(&json!([{ "ports": [] }])), "means every port"),
        ("nothing of ports inside", on_ports(&json!([{}])), "means every port"),
        ("a protocol without a port", on_port(&json!({ "protocol": "TCP" })), "a port is a number"),
        ("port zero", on_port(&json!({ "port": "0" })), "a port is a number"),
        ("a port by name", on_port(&json!({ "port": "nats" })), "a port is a number"),
        ("the port of NATS", on_port(&json!({ "port": "4222" })), "never reach NATS"),
        ("the port of NATS in hexadecimal", on_port(&json!({ "port": "0x107e" })), "never reach NATS"),
        ("the port of NATS in octal", on_port(&json!({ "port": "010176" })), "never reach NATS"),
        (
            "a range with the port of NATS",
            on_port(&json!({ "port": "4000", "endPort": 5000 })),
            "never reach NATS",
        ),
        ("a range of ports", on_port(&json!({ "port": "8000", "endPort": 8001 })), "named by itself"),
    ]
}

/// The same of pods that are named by what nearly every pod has, or has not, and of names that anybody may ask for.
fn violations_of_names() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        (
            "every pod of another namespace, by its cluster",
            pods(&json!({ "io.cilium.k8s.policy.cluster": "default" }), &json!([])),
            "labels of theirs",
        ),
        (
            "every pod of another namespace, by its account",
            pods(&json!({ "k8s:io.cilium.k8s.policy.serviceaccount": "default" }), &json!([])),
            "labels of theirs",
        ),
        ("nodes of another namespace", pods(&json!({ "reserved:host": "" }), &json!([])), "labels of theirs"),
        (
            "every pod without a label",
            pods(&json!({}), &json!([{ "key": "k8s:app", "operator": "DoesNotExist" }])),
            "labels of theirs",
        ),
        (
            "every pod with another label",
            pods(&json!({}), &json!([{ "key": "k8s:app", "operator": "NotIn", "values": ["none"] }])),
            "labels of theirs",
        ),
        (
            "every pod by an expression on its cluster",
            pods(&json!({}), &json!([{ "key": "io.cilium.k8s.policy.cluster", "operator": "Exists" }])),
            "labels of theirs",
        ),
        ("any name, by port 53 alone", dns(&Value::Null), "together with the names"),
        ("any name, by an empty list", dns(&json!({ "dns": [] })), "together with the names"),
        ("any name, by a rule that names none", dns(&json!({ "dns": [{}] })), "together with the names"),
        ("any name, by rules of another kind", dns(&json!({ "http": [{}] })), "together with the names"),
        (
            "any name of a resolver outside",
            on_port(&json!({ "port": "53", "protocol": "UDP" })),
            "together with the names",
        ),
    ]
}
