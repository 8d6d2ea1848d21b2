//! What policies of builders may not say beyond what nobody's may: the same sentences that the admission policies in
//! `k8s/base/admission` and `k8s/components/cilium` say in CEL, for those who look before they apply.
//!
//! What is opened is written down one by one: hosts by name, ranges, or pods by labels of theirs and of their namespace,
//! and single ports by number. What stands for more than it says (entities, services, groups, a port's name) is refused,
//! because nobody can tell from the policy what it opens.

use serde_json::Value;

use super::NATS_PORT;
use super::findings::{Direction, items};
use crate::labels;
use crate::pod::DAEMON_PORT;

/// What a rule of Cilium may lead to. Other destinations (entities, services, nodes, groups of a cloud's) cannot be
/// judged.
const DESTINATIONS: [&str; 4] = ["toFQDNs", "toEndpoints", "toCIDR", "toCIDRSet"];
/// The label by which Cilium knows a pod's namespace, with and without its source.
const NAMESPACE_LABELS: [&str; 3] =
    ["io.kubernetes.pod.namespace", "k8s:io.kubernetes.pod.namespace", "any:io.kubernetes.pod.namespace"];
/// The labels by which Cilium knows the name of a pod's namespace, without their source.
const OF_NAMESPACE: [&str; 2] =
    ["io.kubernetes.pod.namespace", "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name"];
/// How labels begin that Cilium puts on every pod: its cluster, its account, what its namespace is like. They tell no
/// pods apart. ([`LabelPrefix` and `PodNamespaceLabel`](https://pkg.go.dev/github.com/cilium/cilium/pkg/k8s/apis/cilium.io).)
const OF_EVERY_POD: [&str; 2] = ["io.cilium.k8s.", "io.kubernetes.pod."];
/// How an expression names a label that must be there. The others are true of pods that have none at all.
const NAMING: [&str; 2] = ["In", "Exists"];
/// The port of DNS, as Cilium writes it and as others do.
const DNS: (&str, u64) = ("53", 53);
const EVERY_NAME: &str = "opens DNS (port 53) without the names that may be asked: list them in `rules.dns`";
const EVERY_PORT: &str = "leaves a port out, which means every port";
const NATS: &str = "opens the port of NATS (4222), which builders never reach";
const NO_NUMBER: &str = "has a port that is no number from 1 to 65535";
const RANGE: &str = "opens a range of ports: name each by itself";

/// Whether a policy is one of the builders': by its namespace, or by the pods that it selects. One of Cilium's for the
/// whole cluster is theirs unless its selector leaves them out.
pub(super) fn concern_builders(policy: &Value, namespace: &str) -> bool {
    let clusterwide = policy["kind"] == "CiliumClusterwideNetworkPolicy";
    let selects = |spec: &Value| {
        if clusterwide { may_select_builders(spec, namespace) } else { names_builders(spec) }
    };
    let specs = std::iter::once(&policy["spec"]).chain(items(&policy["specs"]));
    policy["metadata"]["namespace"] == namespace || specs.filter(|spec| !spec.is_null()).any(selects)
}

fn names_builders(spec: &Value) -> bool {
    let named = |selector: &&str| {
        let mut labels = spec[*selector]["matchLabels"].as_object().into_iter().flatten();
        let builders = |(key, value): (&String, &Value)| {
            without_source(key) == labels::COMPONENT && value == labels::BUILDER
        };
        labels.any(builders)
    };
    ["podSelector", "endpointSelector"].iter().any(named)
}

/// Whether builders may be among the pods that a policy selects in the whole cluster. They are not when it wants
/// another namespace or another component, or what is no pod: labels that it wants besides may be theirs tomorrow, and
/// what it does not want tells little.
fn may_select_builders(spec: &Value, namespace: &str) -> bool {
    let selector = &spec["endpointSelector"];
    if selector.is_null() {
        // Of nodes, then.
        return spec["nodeSelector"].is_null();
    }
    let theirs = |key: &str| match without_source(key) {
        key if OF_NAMESPACE.contains(&key) => Some(namespace),
        labels::COMPONENT => Some(labels::BUILDER),
        _ => None,
    };
    let other_label = |(key, value): (&String, &Value)| {
        key.starts_with("reserved:") || theirs(key).is_some_and(|theirs| value != theirs)
    };
    let others = |one: &Value| {
        let theirs = one["key"].as_str().filter(|_| one["operator"] == "In").and_then(theirs);
        theirs.is_some_and(|theirs| items(&one["values"]).all(|value| value != theirs))
    };
    let by_label = selector["matchLabels"].as_object().into_iter().flatten().any(other_label);
    !by_label && !items(&selector["matchExpressions"]).any(others)
}

/// Cilium's labels may begin with their source.
fn without_source(key: &str) -> &str {
    key.strip_prefix("k8s:").or(key.strip_prefix("any:")).unwrap_or(key)
}

/// Whether a peer that is no range is told by labels of its pods and of its namespace.
pub(super) fn names_pods(peer: &Value) -> bool {
    let some =
        |selector: &Value| selector["matchLabels"].as_object().is_some_and(|labels| !labels.is_empty());
    let (pods, namespace) = (&peer["podSelector"], &peer["namespaceSelector"]);
    (some(pods) || named_labels(pods).next().is_some()) && some(namespace)
}

/// The labels that a selector's expressions want to be there.
fn named_labels(selector: &Value) -> impl Iterator<Item = &str> {
    let naming = |one: &&Value| one["operator"].as_str().is_some_and(|operator| NAMING.contains(&operator));
    items(&selector["matchExpressions"]).filter(naming).filter_map(|one| one["key"].as_str())
}

/// What is wrong with the ports of a NetworkPolicy's rule.
pub(super) fn judge_plain_ports(rule: &Value, direction: Direction) -> Vec<&'static str> {
    if items(&rule["ports"]).next().is_none() {
        return vec![EVERY_PORT];
    }
    let judge = |port: &Value| {
        let number = match &port["port"] {
            Value::Null => return Some(EVERY_PORT),
            number => number.as_u64(),
        };
        match (number, direction) {
            (None, _) => Some(NO_NUMBER),
            (Some(_), Direction::Egress) if !port["endPort"].is_null() => Some(RANGE),
            (Some(number), Direction::Egress) => (number == u64::from(NATS_PORT)).then_some(NATS),
            (Some(number), Direction::Ingress) => {
                let daemon = number == u64::from(DAEMON_PORT) && port["endPort"].is_null();
                (!daemon).then_some("lets builders be reached on another port than 1234")
            }
        }
    };
    items(&rule["ports"]).filter_map(judge).collect()
}

/// What is wrong with who may come in by a policy of Cilium's, which is an addition for what goes out by name.
pub(super) fn judge_cilium_ingress(ingress: &Value) -> Option<&'static str> {
    let opens = |rule: &Value| rule.as_object().is_none_or(|keys| !keys.is_empty());
    items(ingress).any(opens).then_some("lets somebody in: that is for NetworkPolicies to say, by port 1234")
}

/// What is wrong with the destination and the ports of a rule of Cilium's.
pub(super) fn judge_cilium_egress(rule: &Value) -> Vec<&'static str> {
    let Some(keys) = rule.as_object().filter(|keys| !keys.is_empty()) else { return Vec::new() };
    let mut problems = Vec::new();
    let unknown =
        |key: &&String| key.starts_with("to") && *key != "toPorts" && !DESTINATIONS.contains(&key.as_str());
    if keys.keys().any(|key| unknown(&key)) {
        problems.push("leads somewhere that cannot be judged: name hosts, ranges or pods");
    }
    if items(&rule["toFQDNs"]).any(|name| !name["matchName"].is_string() || !name["matchPattern"].is_null()) {
        problems.push("names a host by a pattern: list the hosts");
    }
    if !items(&rule["toEndpoints"]).all(names_endpoints) {
        problems.push("has pods without labels of theirs and of their namespace: name both");
    }
    let mut lists = items(&rule["toPorts"]).peekable();
    if lists.peek().is_none() {
        problems.push(EVERY_PORT);
    }
    for one in lists {
        let list = &one["ports"];
        if items(list).next().is_none() {
            problems.push(EVERY_PORT);
        }
        if items(list).any(|port| port["port"] == DNS.0) && !lists_names(&one["rules"]["dns"]) {
            problems.push(EVERY_NAME);
        }
        problems.extend(items(list).filter_map(judge_cilium_port));
    }
    problems
}

/// Whether the names that may be asked are written down. No names at all means any.
fn lists_names(dns: &Value) -> bool {
    let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let names = |rule: &Value| text(&rule["matchName"]) || text(&rule["matchPattern"]);
    items(dns).next().is_some() && items(dns).all(names)
}

/// Whether pods are told by the name of their namespace and by a label of their own besides.
fn names_endpoints(selector: &Value) -> bool {
    let labels = || selector["matchLabels"].as_object().into_iter().flat_map(serde_json::Map::keys);
    let own = |key: &str| {
        let key = without_source(key);
        // Other sources than Kubernetes, of which `reserved:` is one, are not of the pod.
        !key.is_empty() && !key.contains(':') && !OF_EVERY_POD.iter().any(|start| key.starts_with(start))
    };
    labels().any(|key| NAMESPACE_LABELS.contains(&key.as_str()))
        && (labels().any(|key| own(key)) || named_labels(selector).any(own))
}

/// Policies add up: one that opens DNS as such undoes those of Cilium's that say which names may be asked. What each
/// plain policy of builders is told, by its place among `policies`; nothing when no policy lists names.
pub(super) fn dns_beside_names(policies: &[&Value], namespace: &str) -> Vec<(usize, String)> {
    let of = |policy: &Value, kind: &str| policy["kind"] == kind && concern_builders(policy, namespace);
    let listing = |rule: &Value| items(&rule["toPorts"]).any(|one| lists_names(&one["rules"]["dns"]));
    let lists = |policy: &&&Value| {
        let specs = std::iter::once(&policy["spec"]).chain(items(&policy["specs"]));
        of(policy, "CiliumNetworkPolicy") && specs.flat_map(|spec| items(&spec["egress"])).any(listing)
    };
    let Some(lists) = policies.iter().find(lists) else { return Vec::new() };
    let name = lists["metadata"]["name"].as_str().unwrap_or("without a name");
    let plain = policies.iter().enumerate().filter(|(_, policy)| of(policy, "NetworkPolicy"));
    let opens = |rule: &Value| items(&rule["ports"]).any(|port| port["port"] == DNS.1);
    let open = plain.filter(|(_, policy)| items(&policy["spec"]["egress"]).any(opens));
    open.map(|(at, _)| {
        (at, format!("opens DNS (port 53) whatever the name, and CiliumNetworkPolicy {name} lists names"))
    })
    .collect()
}

/// Cilium writes numbers as texts, zero for every port, and takes `0x107e` and `010176` for 4222: numbers are decimal
/// here, as people read them.
fn judge_cilium_port(port: &Value) -> Option<&'static str> {
    let decimal = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    match port["port"].as_str() {
        Some("0") => Some(EVERY_PORT),
        text => match text.filter(decimal).and_then(|text| text.parse::<u16>().ok()) {
            None => Some(NO_NUMBER),
            Some(_) if !port["endPort"].is_null() => Some(RANGE),
            Some(number) => (number == NATS_PORT).then_some(NATS),
        },
    }
}
