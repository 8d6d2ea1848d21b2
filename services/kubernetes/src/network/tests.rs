use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use fabrique_core::id::{AppName, TrustDomain};
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::labels;

fn pods(namespace: &str, label: (&str, &str)) -> Peer {
    Peer::Pods { namespace: namespace.into(), labels: BTreeMap::from([(label.0.into(), label.1.into())]) }
}

fn peers() -> Peers {
    let node = Peer::Addresses { cidrs: vec!["198.18.0.1/32".parse().unwrap()] };
    let service =
        |name: &str, port| Service { at: node.clone(), port, names: vec![HostName::parse(name).unwrap()] };
    Peers {
        namespace: "builders".into(),
        workers: pods("fabrique", ("app.kubernetes.io/component", "worker")),
        dns: pods("kube-system", ("k8s-app", "kube-dns")),
        gitea: service("gitea", 3000),
        registry: service("registry", 80),
        egress_proxy: None,
    }
}

fn egress(host: &str, port: u16, cidrs: &[&str]) -> Egress {
    Egress {
        host: HostName::parse(host).unwrap(),
        port,
        purpose: "packages".into(),
        cidrs: cidrs.iter().map(|range| range.parse().unwrap()).collect(),
    }
}

fn list() -> AllowList {
    AllowList {
        version: 1,
        hosts: vec![
            egress("pypi.org", 443, &["151.101.0.0/17", "151.101.128.0/17"]),
            egress("files.pythonhosted.org", 443, &[]),
        ],
        apps: BTreeMap::from([(
            AppName::parse("citation").unwrap(),
            AppEgress {
                trust: TrustDomain::parse("Atlas").unwrap(),
                hosts: vec![egress("deb.debian.org", 80, &["199.232.0.0/16"])],
            },
        )]),
    }
}

#[test]
fn the_plain_policies() {
    assert_eq!(peers().validate(), []);
    insta::assert_yaml_snapshot!("policies", policies::builders(&peers(), &list()));
}

#[test]
fn the_policies_of_an_air_gapped_namespace() {
    let addresses = ["198.18.0.0/24".parse().unwrap()];
    insta::assert_yaml_snapshot!("air_gap", policies::air_gap("apps", &addresses));
}

#[test]
fn the_cilium_policies() {
    insta::assert_yaml_snapshot!("cilium", cilium::builders(&peers(), &list()));
    assert_eq!(cilium::builders(&peers(), &AllowList::default()), Vec::<Value>::new());
}

#[test]
fn our_own_policies_open_nothing_that_is_refused() {
    let plain = policies::builders(&peers(), &list()).into_iter().chain(policies::air_gap("apps", &[]));
    let manifests = plain.map(|policy| serde_json::to_value(policy).unwrap());
    for manifest in manifests.chain(cilium::builders(&peers(), &list())) {
        assert_eq!(findings_in(&manifest, "builders"), [], "{manifest}");
    }
}

#[test]
fn a_peer_that_means_everybody_is_refused() {
    let mut peers = peers();
    peers.workers = Peer::Pods { namespace: "fabrique".into(), labels: BTreeMap::new() };
    peers.dns = Peer::Addresses { cidrs: vec![] };
    peers.gitea.port = NATS_PORT;
    peers.registry.at = Peer::Addresses { cidrs: vec!["0.0.0.0/0".parse().unwrap()] };
    let places: Vec<String> = peers.validate().into_iter().map(|finding| finding.place).collect();
    assert_eq!(places, ["gitea.port", "workers", "dns", "registry"]);
}

/// The ways to open the world, one policy each.
#[test]
fn every_way_to_the_world_is_refused() {
    let plain =
        |egress: &str| format!("kind: NetworkPolicy\nmetadata: {{name: p}}\nspec: {{egress: {egress}}}\n");
    let cilium = |egress: &str| {
        format!("kind: CiliumNetworkPolicy\nmetadata: {{name: p}}\nspec: {{egress: {egress}}}\n")
    };
    for refused in [
        plain("[{}]"),
        plain("[{to: []}]"),
        plain("[{to: [{}]}]"),
        plain("[{ports: [{port: 443}]}]"),
        plain("[{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]"),
        plain("[{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]}]"),
        plain("[{to: [{ipBlock: {cidr: '::/0'}}]}]"),
        plain("[{to: [{ipBlock: {cidr: 0.0.0.0/1}}]}, {to: [{ipBlock: {cidr: 128.0.0.0/1}}]}]"),
        plain("[{to: [{ipBlock: {cidr: everything}}]}]"),
        cilium("[{toPorts: [{ports: [{port: '443'}]}]}]"),
        cilium("[{toCIDR: [], toPorts: [{ports: [{port: '443'}]}]}]"),
        cilium("[{toEntities: [world]}]"),
        cilium("[{toEntities: [World-IPv4]}]"),
        cilium("[{toEntities: [all]}]"),
        cilium("[{toCIDR: [0.0.0.0/0]}]"),
        cilium("[{toCIDR: [64.0.0.0/2]}, {toCIDRSet: [{cidr: 0.0.0.0/2}]}]"),
        cilium("[{toCIDRSet: [{cidrGroupRef: everybody}]}]"),
        cilium("[{toFQDNs: [{matchPattern: '*'}]}]"),
        cilium("[{toFQDNs: [{matchPattern: '*.pypi.org'}]}]"),
        cilium("[{toEndpoints: [{}], toPorts: [{rules: {dns: [{matchPattern: '*'}]}}]}]"),
        "kind: CiliumClusterwideNetworkPolicy\n\
         specs: [{endpointSelector: {matchLabels: {'reserved:host': ''}}, egress: [{toEntities: [world]}]}]"
            .into(),
        format!("kind: List\nitems:\n- {}", plain("[{}]").trim_end().replace('\n', "\n  ")),
        format!("kind: ConfigMap\n---\n{}", plain("[{}]")),
        "a: [".into(),
    ] {
        assert_eq!(
            findings(&refused, "builders").len(),
            1,
            "{refused}\n{:?}",
            findings(&refused, "builders")
        );
    }
    for allowed in [
        plain("[]"),
        plain("[{to: [{namespaceSelector: {}}]}]"),
        plain("[{to: [{ipBlock: {cidr: 151.101.0.0/16}}], ports: [{port: 443}]}]"),
        cilium("[{}]"),
        cilium("[{toEntities: [kube-apiserver]}]"),
        cilium("[{toFQDNs: [{matchName: pypi.org}]}]"),
        cilium("[{toCIDR: [151.101.1.1]}]"),
        "kind: Deployment\nspec: {egress: [{}]}".into(),
        String::new(),
    ] {
        assert_eq!(findings(&allowed, "builders"), [], "{allowed}");
    }
}

fn egress_rule(to: &Value, ports: &Value) -> Value {
    json!({ "egress": [{ "to": to, "ports": ports }] })
}

/// What is taken from others, and refused where builders are.
#[test]
fn policies_of_builders_are_held_to_more() {
    let host = json!([{ "ipBlock": { "cidr": "192.0.2.1/32" } }]);
    let https = json!([{ "port": 443 }]);
    let to = |cidr: &str| egress_rule(&json!([{ "ipBlock": { "cidr": cidr } }]), &https);
    let named = json!({ "matchLabels": { "a": "b" } });
    let without = |operator: &str| json!({ "matchExpressions": [{ "key": "a", "operator": operator, "values": ["b"] }] });
    for (spec, told) in [
        (to("169.254.169.254/32"), "link-local"),
        (to("fe80::/64"), "link-local"),
        (to("127.0.0.1/32"), "loopback"),
        (to("::ffff:192.0.2.1/128"), "written as such"),
        (egress_rule(&host, &json!([{ "port": 4222 }])), "NATS"),
        (egress_rule(&host, &json!([{ "port": 443 }, { "port": 8000, "endPort": 8001 }])), "range of ports"),
        (egress_rule(&host, &json!([])), "every port"),
        (egress_rule(&host, &json!([{ "protocol": "TCP" }])), "every port"),
        (egress_rule(&host, &json!([{ "port": "nats" }])), "no number"),
        (egress_rule(&json!([{ "namespaceSelector": {} }]), &https), "name both"),
        (egress_rule(&json!([{ "podSelector": named }]), &https), "name both"),
        (egress_rule(&json!([{ "namespaceSelector": named }]), &https), "name both"),
        (
            egress_rule(
                &json!([{ "namespaceSelector": named, "podSelector": without("DoesNotExist") }]),
                &https,
            ),
            "name both",
        ),
        (
            egress_rule(&json!([{ "namespaceSelector": named, "podSelector": without("NotIn") }]), &https),
            "name both",
        ),
    ] {
        let policy = |namespace: &str| json!({ "kind": "NetworkPolicy", "metadata": { "name": "p", "namespace": namespace }, "spec": spec });
        let found = findings_in(&policy("builders"), "builders");
        assert!(found.len() == 1 && found[0].problem.contains(told), "{spec}: {found:?}");
        assert_eq!(findings_in(&policy("apps"), "builders"), [], "{spec}");
    }
    for (spec, told) in [
        (json!({ "ingress": [{ "ports": [{ "port": 1234 }] }] }), "everybody"),
        (json!({ "ingress": [{ "from": host, "ports": [{ "port": 22 }] }] }), "1234"),
        (json!({ "ingress": [{ "from": host, "ports": [{ "port": 1234, "endPort": 1300 }] }] }), "1234"),
        (json!({ "ingress": [{ "from": host }] }), "every port"),
    ] {
        let mut selected = spec.clone();
        selected["podSelector"] = json!({ "matchLabels": { (labels::COMPONENT): labels::BUILDER } });
        let policy = json!({ "kind": "NetworkPolicy", "metadata": { "name": "p" }, "spec": selected });
        let found = findings_in(&policy, "builders");
        assert!(found.len() == 1 && found[0].problem.contains(told), "{spec}: {found:?}");
    }
}

#[test]
fn ciliums_policies_of_builders_are_held_to_more() {
    let rule = |destination: &str, ports: &str| {
        format!(
            "kind: CiliumNetworkPolicy\nmetadata: {{name: p, namespace: builders}}\n\
             spec: {{egress: [{{{destination}, toPorts: {ports}}}]}}\n"
        )
    };
    let host = "toFQDNs: [{matchName: pypi.org}]";
    let https = "[{ports: [{port: '443'}]}]";
    let endpoints = |label: &str, expressions: &str| {
        let labels = format!("{{'k8s:io.kubernetes.pod.namespace': kube-system, {label}}}");
        format!("toEndpoints: [{{matchLabels: {labels}, matchExpressions: {expressions}}}]")
    };
    let kube_dns = endpoints("'k8s:k8s-app': kube-dns", "[]");
    for (refused, told) in [
        (rule("toCIDR: [169.254.169.254]", https), "link-local"),
        (rule("toFQDNs: [{matchPattern: pypi.org}]", https), "pattern"),
        (rule("toCIDR: [192.0.2.1, 'fe80::1']", https), "link-local"),
        (rule("toCIDRSet: [{cidr: 169.254.0.0/24}]", https), "link-local"),
        (rule("toNodes: [{}]", https), "cannot be judged"),
        (rule("toEntities: [kube-apiserver]", https), "cannot be judged"),
        (rule("toServices: [{k8sService: {serviceName: a, namespace: b}}]", https), "cannot be judged"),
        (rule("toEndpoints: [{}]", https), "name both"),
        (rule("toEndpoints: [{matchLabels: {a: b}}]", https), "name both"),
        (rule("toEndpoints: [{matchLabels: {'k8s:io.kubernetes.pod.namespace': b}}]", https), "name both"),
        (rule(&endpoints("'io.cilium.k8s.policy.cluster': default", "[]"), https), "name both"),
        (rule(&endpoints("'k8s:io.cilium.k8s.policy.serviceaccount': default", "[]"), https), "name both"),
        (rule(&endpoints("'any:io.kubernetes.pod.name': b", "[]"), https), "name both"),
        (rule(&endpoints("'reserved:host': ''", "[]"), https), "name both"),
        (rule(&endpoints("", "[{key: a, operator: DoesNotExist}]"), https), "name both"),
        (rule(&endpoints("", "[{key: a, operator: NotIn, values: [b]}]"), https), "name both"),
        (
            rule(&endpoints("", "[{key: 'io.cilium.k8s.policy.cluster', operator: Exists}]"), https),
            "name both",
        ),
        (rule(&kube_dns, "[{ports: [{port: '53', protocol: ANY}]}]"), "rules.dns"),
        (rule(&kube_dns, "[{ports: [{port: '443'}, {port: '53'}], rules: {dns: []}}]"), "rules.dns"),
        (rule(&kube_dns, "[{ports: [{port: '53'}], rules: {dns: [{}]}}]"), "rules.dns"),
        (rule(&kube_dns, "[{ports: [{port: '53'}], rules: {http: [{}]}}]"), "rules.dns"),
        (rule(host, "[{ports: [{port: '53'}]}]"), "rules.dns"),
        (rule(host, "[]"), "every port"),
        (rule(host, "[{ports: []}]"), "every port"),
        (rule(host, "[{ports: [{port: '0'}]}]"), "every port"),
        (rule(host, "[{ports: [{port: '4222'}]}]"), "NATS"),
        (rule(host, "[{ports: [{port: '8000', endPort: 8001}]}]"), "range of ports"),
        (rule(host, "[{ports: [{port: nats}]}]"), "no number"),
        (rule(host, "[{ports: [{port: '0x107e'}]}]"), "no number"),
        (rule(host, "[{ports: [{port: '010176'}]}]"), "no number"),
        (rule(host, "[{ports: [{port: '65536'}]}]"), "no number"),
        (rule(host, "[{}]"), "every port"),
        (rule(host, https).replace("egress", "ingress"), "lets somebody in"),
    ] {
        let found = findings(&refused, "builders");
        assert!(found.len() == 1 && found[0].problem.contains(told), "{refused}: {found:?}");
        assert_eq!(findings(&refused, "others"), [], "{refused}");
    }
    let pods = "toEndpoints: [{matchLabels: {'k8s:io.kubernetes.pod.namespace': b, 'k8s:a': b}}]";
    for allowed in [
        rule(host, https),
        rule(pods, https),
        rule(&endpoints("", "[{key: 'any:app', operator: Exists}, {key: b, operator: DoesNotExist}]"), https),
        rule(&endpoints("'io.cilium/app': operator", "[]"), https),
        rule(&kube_dns, "[{ports: [{port: '53'}], rules: {dns: [{matchName: pypi.org}]}}]"),
        "kind: CiliumNetworkPolicy\nmetadata: {name: p, namespace: builders}\nspec: {ingress: [{}], egress: [{}]}\n".into(),
    ] {
        assert_eq!(findings(&allowed, "builders"), [], "{allowed}");
    }
}

/// Of the whole cluster, where a policy need not name builders to be about them.
#[test]
fn ciliums_clusterwide_policies_are_of_builders_unless_they_leave_them_out() {
    let policy = |selector: &str| {
        format!(
            "kind: CiliumClusterwideNetworkPolicy\nmetadata: {{name: p}}\n\
             spec: {{{selector}, egress: [{{toEntities: [cluster], toPorts: [{{ports: [{{port: '443'}}]}}]}}]}}\n"
        )
    };
    let labels = |labels: &str| policy(&format!("endpointSelector: {{matchLabels: {{{labels}}}}}"));
    let expression = |one: &str| policy(&format!("endpointSelector: {{matchExpressions: [{{{one}}}]}}"));
    for theirs in [
        policy("endpointSelector: {}"),
        policy("description: of nobody in particular"),
        labels("'k8s:io.kubernetes.pod.namespace': builders"),
        labels("'io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name': builders"),
        labels("'any:app.kubernetes.io/component': fabrique-builder"),
        labels("app: nginx"),
        expression("key: 'k8s:io.kubernetes.pod.namespace', operator: Exists"),
        expression("key: 'k8s:io.kubernetes.pod.namespace', operator: In, values: [apps, builders]"),
        expression("key: 'io.kubernetes.pod.namespace', operator: NotIn, values: [apps]"),
        expression("key: app.kubernetes.io/component, operator: In, values: [fabrique-builder]"),
    ] {
        let found = findings(&theirs, "builders");
        assert!(found.len() == 1 && found[0].problem.contains("cannot be judged"), "{theirs}: {found:?}");
    }
    for others in [
        labels("'k8s:io.kubernetes.pod.namespace': kube-system"),
        labels("'io.kubernetes.pod.namespace': kube-system, app: nginx"),
        labels("'k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name': kube-system"),
        labels("app.kubernetes.io/component: worker"),
        labels("'reserved:ingress': ''"),
        expression("key: 'k8s:io.kubernetes.pod.namespace', operator: In, values: [apps, argocd]"),
        expression("key: 'k8s:app.kubernetes.io/component', operator: In, values: [worker]"),
        policy("nodeSelector: {}"),
    ] {
        assert_eq!(findings(&others, "builders"), [], "{others}");
    }
    let metadata = "kind: CiliumClusterwideNetworkPolicy\nspec: {endpointSelector: {}, egress: [{toCIDR: [169.254.169.254],
        toPorts: [{ports: [{port: '4222'}]}]}], ingress: [{fromEntities: [all]}]}";
    assert_eq!(findings(metadata, "builders").len(), 3);
}

/// Cilium's list of names holds for as long as nothing beside it opens DNS as such.
#[test]
fn a_plain_policy_that_opens_dns_beside_ciliums_list_of_names_is_told() {
    let plain: Vec<Value> = policies::builders(&peers(), &list())
        .into_iter()
        .map(|policy| serde_json::to_value(policy).unwrap())
        .collect();
    let named = cilium::builders(&peers(), &list());
    let text = |policies: &[Value]| {
        let list = json!({ "kind": "List", "items": policies });
        format!("{{}}\n---\n{list}\n")
    };
    let both = [plain.clone(), named.clone()].concat();
    let found = findings(&text(&both), "builders");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].place, "NetworkPolicy builders-to-services");
    assert!(found[0].problem.contains("CiliumNetworkPolicy builders-to-allow-list"), "{found:?}");
    assert_eq!(findings(&text(&plain), "builders"), []);
    assert_eq!(findings(&text(&named), "builders"), []);
    // What is somebody else's is theirs.
    assert_eq!(findings(&text(&both), "others").len(), 1, "by the pods that it selects");
    let closed = both.into_iter().filter(|policy| policy["metadata"]["name"] != "builders-to-services");
    assert_eq!(findings(&text(&closed.collect::<Vec<_>>()), "builders"), []);
}

proptest! {
    /// However the space is cut into pieces, and whichever kind of policy or rule they are spread over.
    #[test]
    fn pieces_of_the_world_are_refused_together(
        prefix in 1u8..8,
        rules in 1usize..5,
        cilium in any::<bool>(),
        offset in any::<usize>(),
    ) {
        let world = IpNet::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0).unwrap();
        let pieces: Vec<IpNet> = world.subnets(prefix).unwrap().collect();
        let mut egress = vec![Vec::new(); rules];
        for (at, piece) in pieces.iter().cycle().skip(offset % pieces.len()).take(pieces.len()).enumerate() {
            egress[at % rules].push(piece.to_string());
        }
        let rule = |ranges: &Vec<String>| if cilium {
            json!({ "toCIDR": ranges, "toEndpoints": [] })
        } else {
            let blocks = ranges.iter().map(|range| json!({ "ipBlock": { "cidr": range } }));
            json!({ "to": blocks.collect::<Vec<_>>() })
        };
        let egress: Vec<Value> = egress.iter().filter(|ranges| !ranges.is_empty()).map(rule).collect();
        let kind = if cilium { "CiliumNetworkPolicy" } else { "NetworkPolicy" };
        let policy = json!({ "kind": kind, "metadata": { "name": "p" }, "spec": { "egress": egress } });
        prop_assert_eq!(findings_in(&policy, "builders").len(), 1);
    }

    /// No text makes the judge stumble.
    #[test]
    fn any_text_is_judged(text in "[a-z:*\\[\\]{}&! \\n-]{0,80}") {
        let _ = findings(&text, "builders");
    }
}
