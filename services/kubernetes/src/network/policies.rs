//! NetworkPolicies, for any cluster that enforces them. They know addresses, not names.

use std::collections::BTreeMap;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{AllowList, Egress, Peer, Peers};
use crate::labels;
use crate::pod::DAEMON_PORT;

/// The label that every namespace carries with its own name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// The policies of the builders' namespace: nothing either way, then exactly what builds need.
#[must_use]
pub fn builders(peers: &Peers, list: &AllowList) -> Vec<NetworkPolicy> {
    let namespace = &peers.namespace;
    let mut policies = vec![
        default_deny(namespace),
        policy(
            namespace,
            "builders-from-workers",
            builder_pods(&[]),
            Directions {
                ingress: Some(vec![NetworkPolicyIngressRule {
                    from: Some(network_peers(&peers.workers)),
                    ports: Some(vec![tcp(DAEMON_PORT)]),
                }]),
                egress: None,
            },
        ),
        egress_policy(namespace, "builders-to-services", builder_pods(&[]), services(peers)),
    ];
    let common = outside(&list.hosts.iter().collect::<Vec<_>>());
    if !common.is_empty() {
        policies.push(egress_policy(namespace, "builders-to-allow-list", builder_pods(&[]), common));
    }
    for (trust, hosts) in list.by_trust() {
        let rules = outside(&hosts);
        if !rules.is_empty() {
            let label = labels::trust_label(trust);
            let name = format!("builders-to-allow-list-{}", object_name(&label));
            policies.push(egress_policy(namespace, &name, builder_pods(&[(labels::TRUST, &label)]), rules));
        }
    }
    policies
}

/// The policies of a namespace whose pods talk inside the cluster only: apps, Argo CD, our own services.
/// `addresses` are the cluster's own beyond its pods: nodes, the API server, a registry next to it.
#[must_use]
pub fn air_gap(namespace: &str, addresses: &[IpNet]) -> Vec<NetworkPolicy> {
    let every_pod = NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector::default()),
        ip_block: None,
        pod_selector: None,
    };
    let to = std::iter::once(every_pod).chain(addresses.iter().map(address)).collect();
    let rule = NetworkPolicyEgressRule { to: Some(to), ports: None };
    vec![egress_policy(namespace, "inside-only", LabelSelector::default(), vec![rule])]
}

/// The policy by which pods with these labels reach hosts of the list by the addresses that it gives. Nothing where it gives
/// none.
#[must_use]
pub fn to_hosts(
    namespace: &str,
    name: &str,
    pods: &[(&str, &str)],
    list: &AllowList,
) -> Option<NetworkPolicy> {
    let rules = outside(&list.hosts.iter().collect::<Vec<_>>());
    let labels = pods.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
    (!rules.is_empty()).then(|| egress_policy(namespace, name, matching(labels), rules))
}

/// Everything in the namespace, whether we know its labels or not.
fn default_deny(namespace: &str) -> NetworkPolicy {
    let nothing = Directions { ingress: Some(Vec::new()), egress: Some(Vec::new()) };
    policy(namespace, "default-deny", LabelSelector::default(), nothing)
}

fn services(peers: &Peers) -> Vec<NetworkPolicyEgressRule> {
    let dns = NetworkPolicyEgressRule {
        to: Some(network_peers(&peers.dns)),
        ports: Some(vec![port("UDP", 53), port("TCP", 53)]),
    };
    let service = |service: &super::Service| NetworkPolicyEgressRule {
        to: Some(network_peers(&service.at)),
        ports: Some(vec![tcp(service.port)]),
    };
    std::iter::once(dns).chain(peers.services().map(service)).collect()
}

/// One rule a port. Hosts without addresses stay closed.
fn outside(hosts: &[&Egress]) -> Vec<NetworkPolicyEgressRule> {
    let mut ports: BTreeMap<u16, Vec<IpNet>> = BTreeMap::new();
    for host in hosts {
        ports.entry(host.port).or_default().extend(&host.cidrs);
    }
    let rule = |(number, ranges): (u16, Vec<IpNet>)| {
        let ranges = IpNet::aggregate(&ranges);
        (!ranges.is_empty()).then(|| NetworkPolicyEgressRule {
            to: Some(ranges.iter().map(address).collect()),
            ports: Some(vec![tcp(number)]),
        })
    };
    ports.into_iter().filter_map(rule).collect()
}

fn network_peers(peer: &Peer) -> Vec<NetworkPolicyPeer> {
    match peer {
        Peer::Pods { namespace, labels } => vec![NetworkPolicyPeer {
            ip_block: None,
            namespace_selector: Some(matching([(NAMESPACE_NAME.to_owned(), namespace.clone())])),
            pod_selector: Some(matching(labels.clone())),
        }],
        Peer::Addresses { cidrs } => cidrs.iter().map(address).collect(),
    }
}

fn address(range: &IpNet) -> NetworkPolicyPeer {
    let block = IPBlock { cidr: range.trunc().to_string(), except: None };
    NetworkPolicyPeer { ip_block: Some(block), namespace_selector: None, pod_selector: None }
}

fn builder_pods(more: &[(&str, &str)]) -> LabelSelector {
    let labels = [(labels::COMPONENT, labels::BUILDER)].iter().chain(more);
    matching(labels.map(|&(key, value)| (key.to_owned(), value.to_owned())))
}

fn matching(labels: impl IntoIterator<Item = (String, String)>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels.into_iter().collect()), match_expressions: None }
}

fn tcp(number: u16) -> NetworkPolicyPort {
    port("TCP", number)
}

fn port(protocol: &str, number: u16) -> NetworkPolicyPort {
    NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        port: Some(IntOrString::Int(number.into())),
        end_port: None,
    }
}

struct Directions {
    ingress: Option<Vec<NetworkPolicyIngressRule>>,
    egress: Option<Vec<NetworkPolicyEgressRule>>,
}

fn egress_policy(
    namespace: &str,
    name: &str,
    pods: LabelSelector,
    rules: Vec<NetworkPolicyEgressRule>,
) -> NetworkPolicy {
    policy(namespace, name, pods, Directions { ingress: None, egress: Some(rules) })
}

fn policy(namespace: &str, name: &str, pods: LabelSelector, directions: Directions) -> NetworkPolicy {
    let types = [("Ingress", directions.ingress.is_some()), ("Egress", directions.egress.is_some())];
    let types = types.into_iter().filter(|&(_, judged)| judged).map(|(name, _)| name.to_owned());
    NetworkPolicy {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(BTreeMap::from([(labels::MANAGED_BY.to_owned(), labels::FABRIQUE.to_owned())])),
            ..Default::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(pods),
            policy_types: Some(types.collect()),
            // An empty list and an absent one mean the same to the server; absent reads better.
            ingress: directions.ingress.filter(|rules| !rules.is_empty()),
            egress: directions.egress.filter(|rules| !rules.is_empty()),
        }),
    }
}

/// A label's value as part of an object's name: lowercase, without `_`.
pub(super) fn object_name(label: &str) -> String {
    let plain = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if plain {
        return label.to_owned();
    }
    // Two domains that differ in case only must not share a policy.
    let hash = fabrique_core::id::Digest::of(label.as_bytes());
    format!("x-{}", hash.short())
}
