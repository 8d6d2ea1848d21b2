//! What no policy may say, ours or anybody's: a way to the whole world.
//!
//! Judged are egress rules of NetworkPolicy, CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy, also inside
//! a `List`. All ranges of one policy are taken together, or the world could be opened in two halves.
//!
//! Policies of builders are held to more, which is what the admission policies in `k8s/` say in CEL of the builders'
//! namespace: every peer and port is named, and some are never opened. A CiliumClusterwideNetworkPolicy is one of theirs
//! unless it leaves them out. See [`super::builders`].

use ipnet::IpNet;
use serde_json::Value;

use super::builders::{concern_builders, judge_plain_ports, names_pods};
use super::{builders, space};
use crate::finding::Finding;

/// The widest document that is read: policies are small, and lists of them are not large either.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// Entities of Cilium that stand for everybody.
const WORLD: [&str; 4] = ["world", "world-ipv4", "world-ipv6", "all"];

/// Judges every policy in a YAML stream. What is no policy is not judged. `namespace` is the builders'.
#[must_use]
pub fn findings(yaml: &str, namespace: &str) -> Vec<Finding> {
    if yaml.len() > MOST_BYTES {
        return vec![Finding::new("file", format!("is larger than {MOST_BYTES} bytes"))];
    }
    match serde_saphyr::from_multiple::<Value>(yaml) {
        Ok(documents) => {
            let alone = documents.iter().flat_map(|document| findings_in(document, namespace));
            alone.chain(findings_among(&documents, namespace)).collect()
        }
        Err(error) => vec![Finding::new("file", format!("is no YAML: {error}"))],
    }
}

/// Judges one manifest, or every item of a `List`. `namespace` is the builders', whose policies are held to more.
#[must_use]
pub fn findings_in(document: &Value, namespace: &str) -> Vec<Finding> {
    let kind = document["kind"].as_str().unwrap_or_default();
    if kind.ends_with("List") {
        return members(document).into_iter().flat_map(|item| findings_in(item, namespace)).collect();
    }
    let of_builders = concern_builders(document, namespace);
    let mut judge = Judge { place: place(document), of_builders, ranges: Vec::new(), findings: Vec::new() };
    match kind {
        "NetworkPolicy" => judge.plain(&document["spec"]),
        "CiliumNetworkPolicy" | "CiliumClusterwideNetworkPolicy" => {
            for spec in std::iter::once(&document["spec"]).chain(items(&document["specs"])) {
                judge.cilium(spec);
            }
        }
        _ => {}
    }
    judge.verdict()
}

/// What manifests that are applied together do to each other, beyond what [`findings_in`] says of each: a plain policy
/// of builders that opens DNS beside one of Cilium's that lists the names to be asked.
#[must_use]
pub fn findings_among(documents: &[Value], namespace: &str) -> Vec<Finding> {
    let policies: Vec<&Value> = documents.iter().flat_map(members).collect();
    let conflicts = builders::dns_beside_names(&policies, namespace).into_iter();
    conflicts.map(|(at, problem)| Finding::new(place(policies[at]), problem)).collect()
}

/// The manifest itself, or the items of a `List`, however deep.
fn members(document: &Value) -> Vec<&Value> {
    let list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    if list { items(&document["items"]).flat_map(members).collect() } else { vec![document] }
}

fn place(policy: &Value) -> String {
    let text = |value: &Value, otherwise: &str| value.as_str().unwrap_or(otherwise).to_owned();
    format!("{} {}", text(&policy["kind"], ""), text(&policy["metadata"]["name"], "without a name"))
}

pub(super) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Which way a rule of a plain policy goes, and what it calls the other side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Egress,
    Ingress,
}

impl Direction {
    fn keys(self) -> (&'static str, &'static str) {
        match self {
            Direction::Egress => ("egress", "to"),
            Direction::Ingress => ("ingress", "from"),
        }
    }
}

struct Judge {
    place: String,
    of_builders: bool,
    ranges: Vec<IpNet>,
    findings: Vec<Finding>,
}

impl Judge {
    fn verdict(mut self) -> Vec<Finding> {
        let judged = if self.of_builders { space::too_wide_by_parts } else { space::too_wide };
        if let Some(problem) = judged(&self.ranges) {
            self.refuse("egress", problem);
        }
        self.findings
    }

    fn refuse(&mut self, at: &str, problem: impl Into<String>) {
        self.findings.push(Finding::new(format!("{} {at}", self.place), problem));
    }

    /// Who may come in is a namespace's own business, unless builders are in it.
    fn plain(&mut self, spec: &Value) {
        self.plain_rules(spec, Direction::Egress);
        if self.of_builders {
            self.plain_rules(spec, Direction::Ingress);
        }
    }

    fn plain_rules(&mut self, spec: &Value, direction: Direction) {
        let (rules, others) = direction.keys();
        for (at, rule) in items(&spec[rules]).enumerate() {
            let at = format!("{rules}[{at}]");
            if items(&rule[others]).next().is_none() {
                self.refuse(&at, format!("has no `{others}`, which means everybody"));
            }
            for peer in items(&rule[others]) {
                if let Some(cidr) = peer["ipBlock"]["cidr"].as_str() {
                    self.range(&at, cidr);
                } else if peer["podSelector"].is_null() && peer["namespaceSelector"].is_null() {
                    self.refuse(&at, "has a peer that selects nothing in particular");
                } else if self.of_builders && !names_pods(peer) {
                    self.refuse(&at, "has a peer without labels of its pods and its namespace: name both");
                }
            }
            if self.of_builders {
                judge_plain_ports(rule, direction).into_iter().for_each(|problem| self.refuse(&at, problem));
            }
        }
    }

    fn cilium(&mut self, spec: &Value) {
        if self.of_builders
            && let Some(problem) = builders::judge_cilium_ingress(&spec["ingress"])
        {
            self.refuse("ingress", problem);
        }
        for (at, rule) in items(&spec["egress"]).enumerate() {
            let at = format!("egress[{at}]");
            self.cilium_destination(&at, rule);
            if self.of_builders {
                let problems = builders::judge_cilium_egress(rule);
                problems.into_iter().for_each(|problem| self.refuse(&at, problem));
            }
            for entity in items(&rule["toEntities"]).filter_map(Value::as_str) {
                if WORLD.contains(&entity.to_ascii_lowercase().as_str()) {
                    self.refuse(&at, format!("opens the entity {entity}"));
                }
            }
            for cidr in items(&rule["toCIDR"]) {
                self.range(&at, cidr.as_str().unwrap_or_default());
            }
            for set in items(&rule["toCIDRSet"]) {
                let group = ["cidrGroupRef", "cidrGroupSelector"].iter().any(|key| !set[*key].is_null());
                match set["cidr"].as_str() {
                    Some(cidr) if !group => self.range(&at, cidr),
                    _ => self.refuse(&at, "names a group of ranges, whose content cannot be judged here"),
                }
            }
            for name in items(&rule["toFQDNs"]) {
                if let Some(pattern) = wildcards(name).next() {
                    self.refuse(&at, format!("opens every host of {pattern}: list the hosts"));
                }
            }
            for rules in items(&rule["toPorts"]) {
                for name in items(&rules["rules"]["dns"]) {
                    // Names inside the cluster carry nothing out.
                    let outside = wildcards(name).find(|pattern| !pattern.ends_with(".cluster.local"));
                    if let Some(pattern) = outside {
                        self.refuse(&at, format!("lets every name of {pattern} be asked: list the names"));
                    }
                }
            }
        }
    }

    /// Ports without a destination mean every destination. An empty rule means none, which is how Cilium spells
    /// default deny.
    fn cilium_destination(&mut self, at: &str, rule: &Value) {
        let Some(rule) = rule.as_object().filter(|rule| !rule.is_empty()) else { return };
        let destination = |(key, value): (&String, &Value)| {
            key.starts_with("to") && key != "toPorts" && value.as_array().is_none_or(|list| !list.is_empty())
        };
        if !rule.iter().any(destination) {
            self.refuse(at, "has no destination, which means everybody");
        }
    }

    fn range(&mut self, at: &str, cidr: &str) {
        let range = space::parse(cidr);
        let problem = match range {
            Some(range) if range.prefix_len() > 0 => {
                self.ranges.push(range);
                let forbidden = space::forbidden(&range).filter(|_| self.of_builders);
                forbidden.map(|problem| format!("opens {cidr}: {problem}"))
            }
            Some(_) => Some(format!("opens {cidr}")),
            None => Some(format!("{cidr:?} is no range of addresses")),
        };
        problem.into_iter().for_each(|problem| self.refuse(at, problem));
    }
}

fn wildcards(name: &Value) -> impl Iterator<Item = &str> {
    let texts = ["matchName", "matchPattern"].into_iter().filter_map(|key| name[key].as_str());
    texts.filter(|text| text.contains('*'))
}
