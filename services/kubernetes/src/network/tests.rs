use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use fabrique_core::id::{AppName, TrustDomain};
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

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
        assert_eq!(findings_in(&manifest), [], "{manifest}");
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
        "kind: CiliumClusterwideNetworkPolicy\nspecs: [{egress: [{toEntities: [world]}]}]".into(),
        format!("kind: List\nitems:\n- {}", plain("[{}]").trim_end().replace('\n', "\n  ")),
        format!("kind: ConfigMap\n---\n{}", plain("[{}]")),
        "a: [".into(),
    ] {
        assert_eq!(findings(&refused).len(), 1, "{refused}\n{:?}", findings(&refused));
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
        assert_eq!(findings(&allowed), [], "{allowed}");
    }
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
        prop_assert_eq!(findings_in(&policy).len(), 1);
    }

    /// No text makes the judge stumble.
    #[test]
    fn any_text_is_judged(text in "[a-z:*\\[\\]{}&! \\n-]{0,80}") {
        let _ = findings(&text);
    }
}
