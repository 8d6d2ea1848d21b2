//! The files below `k8s/` that follow from lists and from code. They are committed, so that what is installed can be
//! read and reviewed, and compared, so that they stay true.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fabrique_declarations::Contract;
use fabrique_kubernetes::Finding;
use fabrique_kubernetes::labels::COMPONENT;
use fabrique_kubernetes::network::{AllowList, Egress, HostName, Peers, cilium, policies, squid};
use fabrique_kubernetes::secrets::{Account, rbac};
use fabrique_operator::secrets::derivations;
use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::manifests;

/// The policies that open outside hosts, by the beginning of their names.
const TO_ALLOW_LIST: &str = "builders-to-allow-list";
/// The policy of the job that follows GitHub.
const TO_GITHUB: &str = "mirror-to-github";
/// Our own namespace, whose air gap the base has and overlays change.
const OWN_NAMESPACE: &str = "fabrique";

/// One generated file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its path below `k8s/`.
    pub path: &'static str,
    /// What it must contain.
    pub content: String,
}

/// A `network.yaml`: who is where in an installation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    #[serde(default)]
    peers: Option<Peers>,
    #[serde(default)]
    air_gapped: Vec<AirGapped>,
}

/// A namespace whose pods talk inside the cluster only.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AirGapped {
    namespace: String,
    #[serde(default)]
    addresses: Vec<IpNet>,
}

/// Every generated file.
///
/// # Errors
/// When a list cannot be read, or says what no list may.
pub fn files() -> Result<Vec<File>> {
    let base: Network = read("base/network.yaml")?;
    let bench: Network = read("overlays/bench/network.yaml")?;
    let ha: Network = read("overlays/ha/network.yaml")?;
    let list: AllowList = read("base/config/allow-list.yaml")?;
    let bench_list: AllowList = read("overlays/bench/config/allow-list.yaml")?;
    refuse("base/config/allow-list.yaml", &list.validate())?;
    refuse("overlays/bench/config/allow-list.yaml", &bench_list.validate())?;
    for (path, network) in [("base", &base), ("overlays/bench", &bench)] {
        refuse(path, &network.peers()?.validate())?;
    }
    let with_addresses = with_addresses(&list, &read("components/plain/addresses.yaml")?)?;
    refuse("components/plain/addresses.yaml", &with_addresses.validate())?;
    let mirror: Network = read("components/mirror/network.yaml")?;
    let github: AllowList = read("components/mirror/github.yaml")?;
    refuse("components/mirror/github.yaml", &github.validate())?;
    let nothing = AllowList::default();
    let network = "network.yaml";
    let (builders, hosts) = (
        |network: &Network| Ok::<_, anyhow::Error>(policies::builders(network.peers()?, &nothing)),
        |peers: &Peers, list: &AllowList| {
            let all = policies::builders(peers, list).into_iter();
            all.filter(|policy| policy.metadata.name.iter().any(|name| name.starts_with(TO_ALLOW_LIST)))
                .collect::<Vec<_>>()
        },
    );
    let manifest =
        |path, source: &str, text: String| File { path, content: format!("{}{text}", header(source)) };
    Ok(vec![
        manifest("base/network/builders.yaml", network, yaml(&builders(&base)?)?),
        manifest("base/network/air-gap.yaml", network, air_gap(&base, true)?),
        manifest("overlays/bench/network/builders.yaml", network, yaml(&builders(&bench)?)?),
        manifest(
            "overlays/bench/network/allow-list.yaml",
            network,
            yaml(&hosts(bench.peers()?, &bench_list))?,
        ),
        manifest("overlays/bench/network/air-gap.yaml", network, air_gap(&bench, true)?),
        manifest("overlays/bench/network/air-gap-others.yaml", network, air_gap(&bench, false)?),
        manifest("overlays/ha/network/air-gap.yaml", network, air_gap(&ha, true)?),
        manifest("overlays/ha/network/air-gap-others.yaml", network, air_gap(&ha, false)?),
        manifest(
            "components/plain/builders-to-allow-list.yaml",
            "allow-list.yaml and addresses.yaml",
            yaml(&hosts(base.peers()?, &with_addresses))?,
        ),
        manifest(
            "components/cilium/builders-to-allow-list.yaml",
            "allow-list.yaml",
            yaml(&cilium::builders(base.peers()?, &list))?,
        ),
        manifest("components/mirror/gitea-air-gap.yaml", network, air_gap(&mirror, false)?),
        manifest("components/mirror/plain/mirror-to-github.yaml", "github.yaml", to_github(&github)?),
        manifest(
            "components/mirror/cilium/mirror-to-github.yaml",
            "github.yaml and base/network.yaml",
            to_github_by_name(base.peers()?, &github)?,
        ),
        manifest("components/egress-proxy/allow-list.conf", "allow-list.yaml", squid::allow_list(&list)),
        manifest(
            "components/nats/nats.conf",
            "server.conf and tests/bed/config/nats.conf",
            bus_configuration()?,
        ),
        manifest(
            "components/secrets/rbac.example.yaml",
            "docs/contract.yaml.example",
            yaml(&rights_of_the_example()?)?,
        ),
    ])
}

impl Network {
    fn peers(&self) -> Result<&Peers> {
        self.peers.as_ref().context("a network.yaml without peers")
    }
}

fn header(source: &str) -> String {
    format!("# Generated from {source}. UPDATE_MANIFESTS=1 cargo test -p fabrique-cluster-tests generated\n")
}

fn read<T: DeserializeOwned>(path: &str) -> Result<T> {
    let text = fs::read_to_string(manifests::root().join(path)).with_context(|| format!("reading {path}"))?;
    serde_saphyr::from_str(&text).with_context(|| format!("reading {path}"))
}

fn refuse(path: &str, findings: &[Finding]) -> Result<()> {
    let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
    ensure!(findings.is_empty(), "{path}: {}", findings.join("; "));
    Ok(())
}

/// The list with the addresses that an operator gave to some of its hosts.
fn with_addresses(list: &AllowList, addresses: &BTreeMap<HostName, Vec<IpNet>>) -> Result<AllowList> {
    let mut list = list.clone();
    for (name, ranges) in addresses {
        let mut hosts: Vec<&mut Egress> = list.hosts.iter_mut().filter(|host| host.host == *name).collect();
        if hosts.is_empty() {
            bail!("addresses.yaml names {name}, which is not on the list");
        }
        hosts.iter_mut().for_each(|host| host.cidrs.clone_from(ranges));
    }
    Ok(list)
}

/// The way of the job `mirror` to GitHub, by addresses.
fn to_github(list: &AllowList) -> Result<String> {
    let pods = [(COMPONENT, "mirror")];
    yaml(&Vec::from_iter(policies::to_hosts(OWN_NAMESPACE, TO_GITHUB, &pods, list)))
}

/// The same by names.
fn to_github_by_name(peers: &Peers, list: &AllowList) -> Result<String> {
    let pods = serde_json::json!({ COMPONENT: "mirror" });
    yaml(&[cilium::to_hosts(&peers.dns, (OWN_NAMESPACE, TO_GITHUB), &pods, list)])
}

/// The air gap of our own namespace, or of the others.
fn air_gap(network: &Network, own: bool) -> Result<String> {
    let namespaces = network.air_gapped.iter().filter(|gap| (gap.namespace == OWN_NAMESPACE) == own);
    let policies: Vec<_> =
        namespaces.flat_map(|gap| policies::air_gap(&gap.namespace, &gap.addresses)).collect();
    yaml(&policies)
}

fn yaml<T: Serialize>(documents: &[T]) -> Result<String> {
    // By way of JSON, whose maps are sorted.
    let documents = documents.iter().map(|document| {
        let value: Value = serde_json::to_value(document)?;
        Ok(serde_saphyr::to_string(&value)?)
    });
    let documents: Vec<String> = documents.collect::<Result<_>>()?;
    ensure!(!documents.is_empty(), "a generated file without a document");
    Ok(documents.join("---\n"))
}

/// What deriving the secrets of the documented contract takes.
fn rights_of_the_example() -> Result<Vec<Value>> {
    let text = read_text(&manifests::repository().join("docs/contract.yaml.example"))?;
    let contract = Contract::parse("contract.yaml", text.as_bytes()).map(Some);
    let derivations = derivations(&contract, None)?;
    Ok(rbac(&derivations, Account { namespace: OWN_NAMESPACE, name: "secrets" }))
}

/// The bus's own settings, and the users with the rights that every test runs with. One file, because a variable of
/// one is not known in another that it includes.
fn bus_configuration() -> Result<String> {
    let server = read_text(&manifests::root().join("components/nats/server.conf"))?;
    let text = read_text(&manifests::repository().join("tests/bed/config/nats.conf"))?;
    let at = text.find("authorization {").context("the bed's nats.conf has no authorization")?;
    let mut parts = text[at..].split("\"@");
    let mut out = format!("{server}\n{}", parts.next().unwrap_or_default());
    for part in parts {
        let (password, rest) = part.split_once("@\"").context("an odd number of @")?;
        // Writing to a String does not fail.
        let _ = write!(out, "${password}{rest}");
    }
    Ok(out)
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
