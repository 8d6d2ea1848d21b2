//! What the API server's admission policies in `k8s/` refuse, and what `network::findings` does, are the same policies:
//! any that can be generated, in the builders' own namespace.

use std::fs;
use std::path::Path;

use fabrique_bed::Cluster;
use fabrique_kubernetes::network::findings_in;
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::ground::{Ground, eventually};

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../k8s");
/// Their namespace in the manifests.
const BUILDS: &str = "fabrique-builds";
/// Policies that are tried of each kind.
const CASES: u32 = 300;

/// An admission policy of the manifests, in force in the namespace of a test.
struct Admission<'a> {
    ground: &'a Ground,
    name: String,
    policies: Api<DynamicObject>,
    resource: ApiResource,
}

impl<'a> Admission<'a> {
    async fn install(ground: &'a Ground, file: &str, name: &str, kind: &GroupVersionKind) -> Self {
        let text = fs::read_to_string(Path::new(MANIFESTS).join(file)).unwrap();
        let own = format!("{name}-{}", ground.namespace);
        let text = text.replace(name, &own).replace(BUILDS, &ground.namespace);
        ground.cluster.apply(&text).await.unwrap();
        let resource = ApiResource::from_gvk(kind);
        let policies = Api::namespaced_with(ground.admin().await, &ground.namespace, &resource);
        Self { ground, name: own, policies, resource }
    }

    fn policy(&self, spec: &Value) -> Value {
        json!({
            "apiVersion": self.resource.api_version, "kind": self.resource.kind,
            "metadata": { "name": "tried", "namespace": self.ground.namespace },
            "spec": spec,
        })
    }

    /// Why the API server does not take it, if it does not.
    async fn refusal(&self, policy: &Value) -> Option<String> {
        let policy: DynamicObject = serde_json::from_value(policy.clone()).unwrap();
        let dry_run = PostParams { dry_run: true, ..Default::default() };
        match self.policies.create(&dry_run, &policy).await {
            Ok(_) => None,
            Err(kube::Error::Api(status)) => {
                // Anything else would be a policy that is none.
                assert!(status.message.contains(&self.name), "{}", status.message);
                Some(status.message.clone())
            }
            Err(error) => panic!("the API server does not answer: {error}"),
        }
    }

    /// Tries policies until one is judged differently, and makes that one small.
    async fn agrees(&self, open: &Value, specs: impl Strategy<Value = Value>) {
        let open = self.policy(open);
        eventually("the admission policy is in force", async || self.refusal(&open).await.is_some()).await;
        let namespace = &self.ground.namespace;
        let judged = std::cell::Cell::new((0, 0));
        let mut runner =
            TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
        let judge = |spec: Value| {
            let policy = self.policy(&spec);
            let refused = Handle::current().block_on(self.refusal(&policy));
            let found = findings_in(&policy, namespace);
            let (refusals, all) = judged.get();
            judged.set((refusals + u32::from(refused.is_some()), all + 1));
            prop_assert_eq!(refused.is_some(), !found.is_empty(), "{}\n{:?}\n{:?}", policy, refused, found);
            Ok(())
        };
        tokio::task::block_in_place(|| runner.run(&specs, judge)).unwrap();
        let (refused, all) = judged.get();
        // Neither answer is the rule.
        assert!(refused > all / 10 && refused < all * 9 / 10, "{refused} of {all} were refused");
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            let mut kubectl = self.ground.cluster.kubectl_command().into_std();
            kubectl.args(["delete", "--wait=false", kind, &self.name]);
            let _ = kubectl.output();
        }
    }
}

/// Mostly what is permitted, or no policy of several rules would be.
fn range() -> impl Strategy<Value = String> {
    let v4 =
        (any::<[u8; 4]>(), 0u8..=32).prop_map(|([a, b, c, d], length)| format!("{a}.{b}.{c}.{d}/{length}"));
    let odd = prop::sample::select(vec![
        "0.0.0.0/0",
        "0.0.0.0/1",
        "128.0.0.0/1",
        "10.0.0.0/8",
        "11.0.0.0/9",
        "11.128.0.0/9",
        "169.254.169.254/32",
        "169.254.0.0/16",
        "169.0.0.0/8",
        "127.0.0.1/32",
        "127.0.0.0/8",
        "::/0",
        "2000::/3",
        "2001::/16",
        "2002::/17",
        "fe80::/64",
        "fe80::1/128",
        "fe80::/10",
        "fec0::/10",
        "::1/128",
        "::/96",
    ]);
    let host = (0u8..255).prop_map(|host| format!("192.0.2.{host}/32"));
    prop_oneof![6 => host, 2 => v4, 2 => odd.prop_map(str::to_owned)].prop_map(canonical)
}

/// The API server takes host bits for a mistake.
fn canonical(range: String) -> String {
    range.parse::<ipnet::IpNet>().map_or(range, |range| range.trunc().to_string())
}

fn selector() -> impl Strategy<Value = Value> {
    let named = || json!({ "matchLabels": { "a": "b" } });
    let expressions = expression("a").prop_map(|one| json!({ "matchExpressions": [one] }));
    prop_oneof![6 => Just(named()), 1 => Just(json!({})), 1 => Just(json!({ "matchLabels": {} })), 2 => expressions]
}

/// An expression of a selector about this label.
fn expression(key: &'static str) -> impl Strategy<Value = Value> {
    prop::sample::select(vec!["Exists", "DoesNotExist", "In", "NotIn"]).prop_map(move |operator| {
        let mut one = json!({ "key": key, "operator": operator });
        if operator.ends_with("In") {
            one["values"] = json!(["b"]);
        }
        one
    })
}

fn peer() -> impl Strategy<Value = Value> {
    let pods = (prop::option::weighted(0.9, selector()), prop::option::weighted(0.9, selector())).prop_map(
        |(pods, namespace)| match (pods, namespace) {
            (None, None) => json!({ "podSelector": {} }),
            (Some(pods), None) => json!({ "podSelector": pods }),
            (None, Some(namespace)) => json!({ "namespaceSelector": namespace }),
            (Some(pods), Some(namespace)) => json!({ "podSelector": pods, "namespaceSelector": namespace }),
        },
    );
    prop_oneof![3 => range().prop_map(|cidr| json!({ "ipBlock": { "cidr": cidr } })), 1 => pods]
}

fn port(usual: u16) -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![20 => Just(usual), 1 => Just(443u16), 1 => Just(4222), 1 => 1u16..=65535];
    let number = numbers.prop_map(|number| json!({ "port": number, "protocol": "TCP" }));
    let span = (1u16..=65535, 0u16..3000)
        .prop_map(|(first, more)| json!({ "port": first, "endPort": first.saturating_add(more) }));
    prop_oneof![12 => number, 1 => span, 1 => Just(json!({ "port": "nats" })), 1 => Just(json!({ "protocol": "TCP" }))]
}

fn list(item: impl Strategy<Value = Value>) -> impl Strategy<Value = Option<Vec<Value>>> {
    prop::option::weighted(0.95, prop_oneof![1 => Just(Vec::new()), 19 => prop::collection::vec(item, 1..4)])
}

fn rule(others: &'static str, usual: u16) -> impl Strategy<Value = Value> {
    (list(peer()), list(port(usual))).prop_map(move |(peers, ports)| {
        let mut rule = json!({});
        peers.into_iter().for_each(|peers| rule[others] = peers.into());
        ports.into_iter().for_each(|ports| rule["ports"] = ports.into());
        rule
    })
}

fn plain() -> impl Strategy<Value = Value> {
    let rules = |others, usual| prop::collection::vec(rule(others, usual), 0..3);
    (rules("to", 443), rules("from", 1234)).prop_map(|(egress, ingress)| {
        json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": egress, "ingress": ingress })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_admission_refuses_of_network_policies_validation_refuses_and_nothing_else() {
    let Some(ground) = Ground::new("rootless").await else { return };
    let kind = GroupVersionKind::gvk("networking.k8s.io", "v1", "NetworkPolicy");
    let file = "base/admission/network-policies.yaml";
    let admission = Admission::install(&ground, file, "fabrique-builder-network", &kind).await;
    admission.agrees(&json!({ "podSelector": {}, "egress": [{}] }), plain()).await;
}

/// A kind with any content: Cilium itself is not here.
async fn cilium_is_known(cluster: &Cluster) {
    let schema =
        json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "ciliumnetworkpolicies.cilium.io" },
        "spec": {
            "group": "cilium.io", "scope": "Namespaced",
            "names": {
                "kind": "CiliumNetworkPolicy", "plural": "ciliumnetworkpolicies", "singular": "ciliumnetworkpolicy",
            },
            "versions": [{ "name": "v2", "served": true, "storage": true, "schema": schema }],
        },
    });
    cluster.apply(&definition.to_string()).await.unwrap();
    let wait =
        ["wait", "--for=condition=Established", "--timeout=60s", "crd/ciliumnetworkpolicies.cilium.io"];
    cluster.kubectl(&wait).await.unwrap();
}

/// As Cilium takes them: an address is a range of one, and host bits are no mistake.
fn cilium_range() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(vec![
        "192.0.2.1",
        "2001:db8::1",
        "169.254.169.254",
        "169.254.169.254/16",
        "fe80::1",
        "127.0.0.1",
        "::1",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe/128",
        "10.1.2.3/8",
        "10.0.0.0/08",
        "0x7f.1",
        "010.0.0.1",
        "::/3",
        "everything",
        "",
    ]);
    prop_oneof![3 => range(), 1 => odd.prop_map(str::to_owned)]
}

fn endpoints() -> impl Strategy<Value = Value> {
    let label = prop::sample::select(vec![
        "k8s:io.kubernetes.pod.namespace",
        "io.kubernetes.pod.namespace",
        "k8s:k8s-app",
        "a",
        "any:a",
        "reserved:host",
        "io.cilium.k8s.policy.cluster",
        "k8s:io.cilium.k8s.policy.serviceaccount",
        "io.cilium/app",
    ]);
    let labels = prop_oneof![
        3 => Just(vec!["k8s:io.kubernetes.pod.namespace", "k8s:k8s-app"]),
        1 => prop::collection::vec(label, 0..3),
        1 => Just(vec!["k8s:io.kubernetes.pod.namespace"]),
    ];
    let key = prop::sample::select(vec!["a", "k8s:a", "reserved:host", "k8s:io.cilium.k8s.policy.cluster"]);
    let some =
        prop::collection::vec(key.prop_flat_map(expression), 0..3).prop_map(|list| Some(Value::from(list)));
    let expressions = prop_oneof![2 => Just(None), 1 => some];
    (prop::option::weighted(0.9, labels), expressions).prop_map(|(labels, expressions)| {
        let mut selector = json!({});
        let labels =
            labels.map(|labels| labels.into_iter().map(|label| (label.to_owned(), json!("b"))).collect());
        labels.into_iter().for_each(|labels: serde_json::Map<_, _>| selector["matchLabels"] = labels.into());
        expressions.into_iter().for_each(|expressions| selector["matchExpressions"] = expressions);
        selector
    })
}

fn host() -> impl Strategy<Value = Value> {
    let odd = prop::sample::select(vec![
        json!({ "matchPattern": "*" }),
        json!({ "matchPattern": "*.pypi.org" }),
        json!({ "matchPattern": "pypi.org" }),
        json!({ "matchName": "*" }),
        json!({ "matchName": "pypi.org", "matchPattern": "*" }),
    ]);
    prop_oneof![15 => Just(json!({ "matchName": "pypi.org" })), 1 => odd]
}

fn destination() -> impl Strategy<Value = (&'static str, Value)> {
    let some = |item: BoxedStrategy<Value>| prop_oneof![1 => Just(json!([])), 15 => prop::collection::vec(item, 1..3).prop_map(Value::from)];
    let to = |key: &'static str, item: BoxedStrategy<Value>| some(item).prop_map(move |list| (key, list));
    let set = prop_oneof![
        8 => cilium_range().prop_map(|cidr| json!({ "cidr": cidr })),
        1 => Just(json!({ "cidrGroupRef": "everybody" })),
        1 => Just(json!({ "cidr": "192.0.2.1/32", "cidrGroupRef": "everybody" })),
        1 => Just(json!({ "cidrGroupSelector": {} })),
    ];
    let unknown = prop::sample::select(vec![
        ("toEntities", json!([])),
        ("toEntities", json!(["kube-apiserver"])),
        ("toEntities", json!(["cluster", "World-IPv4"])),
        ("toEntities", json!(["all"])),
        ("toServices", json!([{ "k8sService": { "serviceName": "a", "namespace": "b" } }])),
        ("toNodes", json!([{ "matchLabels": {} }])),
        ("toGroups", json!([{ "aws": {} }])),
        ("toRequires", json!([{ "matchLabels": {} }])),
    ]);
    prop_oneof![
        8 => to("toFQDNs", host().boxed()),
        4 => to("toCIDR", cilium_range().prop_map(Value::from).boxed()),
        4 => to("toCIDRSet", set.boxed()),
        4 => to("toEndpoints", endpoints().boxed()),
        1 => unknown,
    ]
}

fn cilium_port() -> impl Strategy<Value = Value> {
    let odd = prop::sample::select(vec![
        json!({ "port": "4222" }),
        json!({ "port": "0" }),
        json!({ "port": "nats" }),
        json!({ "port": "0x107e" }),
        json!({ "port": "010176" }),
        json!({ "port": "+443" }),
        json!({ "port": "65535" }),
        json!({ "port": "65536" }),
        json!({ "port": "" }),
        json!({ "port": 443 }),
        json!({ "protocol": "TCP" }),
    ]);
    let span = (1u16..=65535, 0u16..3000).prop_map(
        |(first, more)| json!({ "port": first.to_string(), "endPort": first.saturating_add(more) }),
    );
    let usual = prop_oneof![9 => Just("443"), 1 => Just("53")];
    let usual = usual.prop_map(|port| json!({ "port": port, "protocol": "ANY" }));
    prop_oneof![25 => usual, 1 => odd, 1 => span]
}

fn to_ports() -> impl Strategy<Value = Option<Vec<Value>>> {
    let name = prop::sample::select(vec![
        json!({ "matchName": "pypi.org" }),
        json!({ "matchPattern": "*.cluster.local" }),
        json!({ "matchPattern": "pypi.org" }),
        json!({ "matchPattern": "*" }),
        json!({ "matchName": "*.cluster.local", "matchPattern": "*" }),
        json!({ "matchName": "" }),
        json!({}),
    ]);
    let usual = prop_oneof![6 => Just(json!({ "matchName": "pypi.org" })), 1 => name];
    let names = prop::option::weighted(0.4, prop::collection::vec(usual, 0..3));
    let one = (list(cilium_port()), names).prop_map(|(ports, names)| {
        let mut one = json!({});
        ports.into_iter().for_each(|ports| one["ports"] = ports.into());
        names.into_iter().for_each(|names| one["rules"] = json!({ "dns": names }));
        one
    });
    let some = prop_oneof![1 => Just(Vec::new()), 15 => prop::collection::vec(one, 1..3)];
    prop::option::weighted(0.95, some)
}

/// Mostly one destination: Cilium knows rules with several.
fn cilium_rule() -> impl Strategy<Value = Value> {
    let destinations = prop_oneof![1 => Just(0usize), 12 => Just(1), 3 => Just(2)];
    let destinations = destinations.prop_flat_map(|count| prop::collection::vec(destination(), count));
    (destinations, to_ports()).prop_map(|(destinations, ports)| {
        let mut rule = json!({});
        destinations.into_iter().for_each(|(key, value)| rule[key] = value);
        ports.into_iter().for_each(|ports| rule["toPorts"] = ports.into());
        rule
    })
}

fn cilium() -> impl Strategy<Value = Value> {
    let ingress = prop::sample::select(vec![
        json!([]),
        json!([{}]),
        json!([{ "fromEntities": ["cluster"] }]),
        json!([{}, { "fromEndpoints": [{}] }]),
    ]);
    let rules = prop::collection::vec(cilium_rule(), 0..3);
    (rules, prop::option::weighted(0.2, ingress)).prop_map(|(egress, ingress)| {
        let mut spec = json!({ "endpointSelector": {}, "egress": egress });
        ingress.into_iter().for_each(|ingress| spec["ingress"] = ingress);
        spec
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_admission_refuses_of_ciliums_policies_validation_refuses_and_nothing_else() {
    let Some(ground) = Ground::new("rootless").await else { return };
    cilium_is_known(ground.cluster).await;
    let kind = GroupVersionKind::gvk("cilium.io", "v2", "CiliumNetworkPolicy");
    let file = "components/cilium/admission.yaml";
    let admission = Admission::install(&ground, file, "fabrique-builder-cilium", &kind).await;
    let world = json!({ "endpointSelector": {}, "egress": [{ "toEntities": ["world"] }] });
    admission.agrees(&world, cilium()).await;
}

/// With Cilium a plain policy leaves DNS to those that list names.
#[tokio::test]
async fn a_network_policy_that_opens_dns_beside_ciliums_is_refused() {
    let Some(ground) = Ground::new("rootless").await else { return };
    let kind = GroupVersionKind::gvk("networking.k8s.io", "v1", "NetworkPolicy");
    let admission =
        Admission::install(&ground, "components/cilium/dns.yaml", "fabrique-builder-dns", &kind).await;
    let policy = |ports: Value| {
        let to = json!([{ "ipBlock": { "cidr": "192.0.2.1/32" } }]);
        admission.policy(&json!({ "podSelector": {}, "egress": [{ "to": to, "ports": [{ "port": 443 }] }, { "to": to, "ports": ports }] }))
    };
    let open = policy(json!([{ "port": 53, "protocol": "UDP" }]));
    eventually("the admission policy is in force", async || admission.refusal(&open).await.is_some()).await;
    for ports in [json!([{ "port": 443 }, { "port": 53 }]), json!([{ "port": 53, "protocol": "TCP" }])] {
        let told = admission.refusal(&policy(ports.clone())).await;
        assert!(told.is_some_and(|told| told.contains("for CiliumNetworkPolicies to open")), "{ports}");
    }
    for ports in [json!([{ "port": 443 }]), json!([{ "port": 5353 }])] {
        assert_eq!(admission.refusal(&policy(ports)).await, None);
    }
    let closed = admission.policy(&json!({ "podSelector": {}, "policyTypes": ["Egress"] }));
    assert_eq!(admission.refusal(&closed).await, None);
}
