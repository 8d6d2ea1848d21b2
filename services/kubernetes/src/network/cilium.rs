//! CiliumNetworkPolicies, which know names. They are additions: the plain policies stay the base.
//!
//! Policies add up, so while a plain policy opens DNS as such, any name may be asked under Cilium too. The component
//! leaves the plain rule for DNS out, its admission policies take no other in its place, and
//! [`findings_among`](super::findings_among) tells of one in files.

use serde_json::{Value, json};

use super::policies::object_name;
use super::{AllowList, Egress, HostName, Peer, Peers};
use crate::labels;

/// The label by which Cilium knows a pod's namespace.
const NAMESPACE: &str = "k8s:io.kubernetes.pod.namespace";
/// Names inside the cluster, which resolvers try first by their search path.
const CLUSTER_NAMES: &str = "*.cluster.local";

/// The policies that open the hosts of the list by name: one for all builders, one for each trust domain with
/// hosts of its own. Empty when nothing is listed.
#[must_use]
pub fn builders(peers: &Peers, list: &AllowList) -> Vec<Value> {
    let mut policies = Vec::new();
    let component = (labels::COMPONENT.to_owned(), labels::BUILDER.to_owned());
    if !list.hosts.is_empty() {
        let selector = json!({ component.0.clone(): component.1.clone() });
        let hosts: Vec<&Egress> = list.hosts.iter().collect();
        policies.push(policy(peers, "builders-to-allow-list", &selector, &hosts));
    }
    for (trust, hosts) in list.by_trust() {
        let label = labels::trust_label(trust);
        let selector = json!({ component.0.clone(): component.1.clone(), labels::TRUST: label });
        let name = format!("builders-to-allow-list-{}", object_name(&label));
        policies.push(policy(peers, &name, &selector, &hosts));
    }
    policies
}

/// The policy by which pods with these labels reach hosts of the list by name. Whatever else they reach is for the plain
/// policies to say.
#[must_use]
pub fn to_hosts(dns: &Peer, (namespace, name): (&str, &str), pods: &Value, list: &AllowList) -> Value {
    let hosts: Vec<&Egress> = list.hosts.iter().collect();
    let names = hosts.iter().map(|host| &host.host);
    opening((namespace, name), pods, asking(dns, names), &hosts)
}

fn policy(peers: &Peers, name: &str, selector: &Value, hosts: &[&Egress]) -> Value {
    opening((&peers.namespace, name), selector, dns(peers, hosts), hosts)
}

fn opening((namespace, name): (&str, &str), selector: &Value, dns: Value, hosts: &[&Egress]) -> Value {
    let mut egress = vec![dns];
    egress.extend(hosts.iter().map(|host| {
        json!({
            "toFQDNs": [{ "matchName": host.host }],
            "toPorts": [{ "ports": [{ "port": host.port.to_string(), "protocol": "TCP" }] }],
        })
    }));
    json!({
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": { labels::MANAGED_BY: labels::FABRIQUE },
        },
        "spec": { "endpointSelector": { "matchLabels": selector }, "egress": egress },
    })
}

/// Cilium learns the addresses of names from the answers that pass its DNS proxy, so `toFQDNs` is dead without
/// this rule. It names what may be asked: a resolver that asks anything carries anything out.
fn dns(peers: &Peers, hosts: &[&Egress]) -> Value {
    let services = peers.services().flat_map(|service| &service.names);
    asking(&peers.dns, services.chain(hosts.iter().map(|host| &host.host)))
}

/// Asking the cluster's DNS for these names and for those of the cluster.
fn asking<'a>(dns: &Peer, names: impl Iterator<Item = &'a HostName>) -> Value {
    let mut names: Vec<&HostName> = names.collect();
    names.sort();
    names.dedup();
    let mut rules: Vec<Value> = names.into_iter().map(|name| json!({ "matchName": name })).collect();
    rules.push(json!({ "matchPattern": CLUSTER_NAMES }));
    let mut rule = to(dns);
    rule["toPorts"] = json!([{ "ports": [{ "port": "53", "protocol": "ANY" }], "rules": { "dns": rules } }]);
    rule
}

fn to(peer: &Peer) -> Value {
    match peer {
        Peer::Pods { namespace, labels } => {
            let mut selector = json!({ NAMESPACE: namespace });
            for (key, value) in labels {
                selector[format!("k8s:{key}")] = json!(value);
            }
            json!({ "toEndpoints": [{ "matchLabels": selector }] })
        }
        Peer::Addresses { cidrs } => json!({ "toCIDR": cidrs }),
    }
}
