//! What no policy may say, ours or anybody's: a way to the whole world.
//!
//! Judged are egress rules of NetworkPolicy, CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy, also inside
//! a `List`. All ranges of one policy are taken together, or the world could be opened in two halves.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::space;
use crate::finding::Finding;

/// The widest document that is read: policies are small, and lists of them are not large either.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// Entities of Cilium that stand for everybody.
const WORLD: [&str; 4] = ["world", "world-ipv4", "world-ipv6", "all"];

/// Judges every policy in a YAML stream. What is no policy is not judged.
#[must_use]
pub fn findings(yaml: &str) -> Vec<Finding> {
    if yaml.len() > MOST_BYTES {
        return vec![Finding::new("file", format!("is larger than {MOST_BYTES} bytes"))];
    }
    match serde_saphyr::from_multiple::<Value>(yaml) {
        Ok(documents) => documents.iter().flat_map(findings_in).collect(),
        Err(error) => vec![Finding::new("file", format!("is no YAML: {error}"))],
    }
}

/// Judges one manifest, or every item of a `List`.
#[must_use]
pub fn findings_in(document: &Value) -> Vec<Finding> {
    let kind = document["kind"].as_str().unwrap_or_default();
    if kind.ends_with("List") {
        return items(&document["items"]).flat_map(findings_in).collect();
    }
    let place = format!("{kind} {}", document["metadata"]["name"].as_str().unwrap_or("without a name"));
    let mut judge = Judge { place, ranges: Vec::new(), findings: Vec::new() };
    match kind {
        "NetworkPolicy" => judge.plain(&document["spec"]["egress"]),
        "CiliumNetworkPolicy" | "CiliumClusterwideNetworkPolicy" => {
            for spec in std::iter::once(&document["spec"]).chain(items(&document["specs"])) {
                judge.cilium(&spec["egress"]);
            }
        }
        _ => {}
    }
    judge.verdict()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

struct Judge {
    place: String,
    ranges: Vec<IpNet>,
    findings: Vec<Finding>,
}

impl Judge {
    fn verdict(mut self) -> Vec<Finding> {
        if let Some(problem) = space::too_wide(&self.ranges) {
            self.refuse("egress", problem);
        }
        self.findings
    }

    fn refuse(&mut self, at: &str, problem: impl Into<String>) {
        self.findings.push(Finding::new(format!("{} {at}", self.place), problem));
    }

    fn plain(&mut self, egress: &Value) {
        for (at, rule) in items(egress).enumerate() {
            let at = format!("egress[{at}]");
            if items(&rule["to"]).next().is_none() {
                self.refuse(&at, "has no `to`, which means everybody");
            }
            for peer in items(&rule["to"]) {
                if let Some(cidr) = peer["ipBlock"]["cidr"].as_str() {
                    self.range(&at, cidr);
                } else if peer["podSelector"].is_null() && peer["namespaceSelector"].is_null() {
                    self.refuse(&at, "has a peer that selects nothing in particular");
                }
            }
        }
    }

    fn cilium(&mut self, egress: &Value) {
        for (at, rule) in items(egress).enumerate() {
            let at = format!("egress[{at}]");
            self.cilium_destination(&at, rule);
            for entity in items(&rule["toEntities"]).filter_map(Value::as_str) {
                if WORLD.contains(&entity.to_ascii_lowercase().as_str()) {
                    self.refuse(&at, format!("opens the entity {entity}"));
                }
            }
            for cidr in items(&rule["toCIDR"]) {
                self.range(&at, cidr.as_str().unwrap_or_default());
            }
            for set in items(&rule["toCIDRSet"]) {
                match set["cidr"].as_str() {
                    Some(cidr) => self.range(&at, cidr),
                    None => self.refuse(&at, "names a group of ranges, whose content cannot be judged here"),
                }
            }
            for name in items(&rule["toFQDNs"]) {
                if let Some(pattern) = wildcard(name) {
                    self.refuse(&at, format!("opens every host of {pattern}: list the hosts"));
                }
            }
            for rules in items(&rule["toPorts"]) {
                for name in items(&rules["rules"]["dns"]) {
                    // Names inside the cluster carry nothing out.
                    let outside = wildcard(name).filter(|pattern| !pattern.ends_with(".cluster.local"));
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
        // Cilium takes a bare address for a range of one.
        let range = cidr.parse::<IpNet>().ok().or_else(|| cidr.parse::<IpAddr>().ok().map(IpNet::from));
        match range {
            Some(range) if range.prefix_len() == 0 => self.refuse(at, format!("opens {cidr}")),
            Some(range) => self.ranges.push(range),
            None => self.refuse(at, format!("{cidr:?} is no range of addresses")),
        }
    }
}

fn wildcard(name: &Value) -> Option<&str> {
    let texts = ["matchName", "matchPattern"].into_iter().filter_map(|key| name[key].as_str());
    texts.into_iter().find(|text| text.contains('*'))
}
