//! The cluster's own services in the contract against those that fabrique is configured with.
//!
//! The contract says where they are as seen from inside. An address that is only good on one machine, as a port-forward
//! is, a name of the world for what the contract names within the cluster, and one that may be either, may all be right:
//! nothing is told of these.

use std::path::Path;

use fabrique_declarations::{At, Contract, Finding, contract};
use url::{Host, Url};

use crate::error::OperatorError;
use crate::validate::Reading;

/// Endings of names that only pods resolve.
const INSIDE: [&str; 2] = [".cluster.local", ".svc"];
/// The port of NATS, where none is written.
const NATS_PORT: u16 = 4222;
/// What NATS' chart calls the service through which its pods have names, after the other one.
const HEADLESS: &str = "-headless";

/// What of an address has to agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Agreement {
    /// All of it.
    Root,
    /// Its host: a server speaks both schemes, each at a port of its own.
    Host,
    /// Its port, and its host or that of one of its servers: TLS begins after the greeting, under either scheme.
    Bus,
}

/// The services as they are configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configured {
    /// The key of Gitea's root as pods reach it, and what it says.
    pub gitea: (&'static str, String),
    /// Argo CD's root, where it is named.
    pub argocd: Option<String>,
    /// The registries that images may be in: `host[:port][/path]`.
    pub registries: Vec<String>,
    /// The servers of the bus.
    pub nats: Vec<String>,
}

/// Everything in which `contract`, which findings call `file`, says something else.
#[must_use]
pub fn contradictions(contract: &Contract, file: &str, configured: &Configured) -> Vec<Finding> {
    let endpoints = &contract.endpoints;
    let (key, gitea) = (configured.gitea.0, configured.gitea.1.as_str());
    let argocd: Vec<&str> = configured.argocd.as_deref().into_iter().collect();
    let nats: Vec<&str> = configured.nats.iter().map(String::as_str).collect();
    let told = [
        other(file, ("gitea", &endpoints.gitea), (key, &[gitea][..]), Agreement::Root),
        other(file, ("argocd", &endpoints.argocd), ("init.argocd_url", &argocd[..]), Agreement::Host),
        other_registry(file, &endpoints.registry, &configured.registries),
        other(file, ("nats", &endpoints.nats), ("nats.servers", &nats[..]), Agreement::Bus),
    ];
    told.into_iter().flatten().collect()
}

/// The same of the contract in a working copy of `cluster/apps`; nothing where it cannot be used, which is told otherwise.
/// Reads a file: call it where blocking is allowed.
///
/// # Errors
/// When the file cannot be read.
pub fn in_directory(root: &Path, configured: &Configured) -> Result<Vec<Finding>, OperatorError> {
    let Some(entry) = Reading::file(&root.join(contract::FILE_NAME))? else { return Ok(Vec::new()) };
    let parsed = Contract::parse(contract::FILE_NAME, &entry.bytes);
    Ok(parsed.map(|contract| contradictions(&contract, contract::FILE_NAME, configured)).unwrap_or_default())
}

fn other(
    file: &str,
    (name, said): (&str, &At<Url>),
    (key, listed): (&str, &[&str]),
    agreement: Agreement,
) -> Option<Finding> {
    let parsed: Option<Vec<Url>> = listed.iter().map(|url| url.parse().ok()).collect();
    let configured = parsed.filter(|configured| !configured.is_empty())?;
    let comparable = |url: &Url| is_comparable(url, &said.value);
    if !configured.iter().all(comparable) || configured.iter().any(|url| is_same(url, &said.value, agreement))
    {
        return None;
    }
    Some(tell(file, said.place(), &format!("{name} is {}", said.value), (key, listed)))
}

fn other_registry(file: &str, said: &At<String>, allowed: &[String]) -> Option<Finding> {
    let hosts: Vec<&str> = allowed.iter().filter_map(|registry| registry.split('/').next()).collect();
    let is_local = |host: &&str| is_loopback(host.rsplit_once(':').map_or(*host, |(host, _)| host));
    if hosts.is_empty() || hosts.iter().any(is_local) || hosts.contains(&said.value.as_str()) {
        return None;
    }
    let what = format!("registry is {}", said.value);
    Some(tell(file, said.place(), &what, ("registry.allowed", &hosts[..])))
}

fn tell(file: &str, place: At<()>, what: &str, (key, configured): (&str, &[&str])) -> Finding {
    let what =
        format!("endpoints.{what}, and {key} of fabrique's configuration says {}", configured.join(", "));
    let remedy = "correct whichever is wrong: both are for those inside the cluster";
    Finding { line: place.line, column: place.column, ..Finding::of_file(file, what, remedy) }
}

/// Whether one of two addresses has to be wrong where they differ.
fn is_comparable(configured: &Url, said: &Url) -> bool {
    let (Some(configured), Some(said)) = (configured.host_str(), said.host_str()) else { return false };
    !is_loopback(configured)
        && ![configured, said].into_iter().any(is_of_either)
        && is_name(configured) == is_name(said)
        && is_inside(configured) == is_inside(said)
}

fn is_same(configured: &Url, said: &Url, agreement: Agreement) -> bool {
    let path = |url: &Url| url.path().trim_end_matches('/').to_owned();
    let host = |url: &Url| url.host_str().unwrap_or_default().to_owned();
    let (here, there) = (host(configured), host(said));
    match agreement {
        Agreement::Root => {
            port(configured) == port(said)
                && configured.scheme() == said.scheme()
                && path(configured) == path(said)
                && is_same_host(&here, &there)
        }
        Agreement::Host => is_same_host(&here, &there),
        Agreement::Bus => {
            port(configured) == port(said) && (is_same_host(&here, &there) || is_server_of(&here, &there))
        }
    }
}

fn port(url: &Url) -> Option<u16> {
    url.port_or_known_default().or_else(|| matches!(url.scheme(), "nats" | "tls").then_some(NATS_PORT))
}

/// The same service may be written `nats`, `nats.bus` and `nats.bus.svc.cluster.local`.
fn is_same_host(one: &str, other: &str) -> bool {
    let (one, other) = (short(one), short(other));
    let within = |short: &str, long: &str| long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'));
    one == other || within(&one, &other) || within(&other, &one)
}

/// Whether it is the name of one pod of a service, as `nats-0.nats.bus.svc` is of `nats.bus.svc`.
fn is_server_of(host: &str, service: &str) -> bool {
    let Some((_, rest)) = host.split_once('.') else { return false };
    let (name, namespace) = rest.split_once('.').unwrap_or((rest, ""));
    let plain = format!("{}.{namespace}", name.strip_suffix(HEADLESS).unwrap_or(name));
    [rest, plain.trim_end_matches('.')].into_iter().any(|rest| is_same_host(rest, service))
}

fn short(host: &str) -> String {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    INSIDE.iter().fold(host, |host, ending| host.strip_suffix(ending).unwrap_or(&host).to_owned())
}

/// Whether only pods can resolve a name.
fn is_inside(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    INSIDE.iter().any(|ending| host.ends_with(ending)) || !host.contains('.')
}

/// Whether a name may be one of the cluster, `gitea-http.gitea`, as well as one of the world, `gitea.com`.
fn is_of_either(host: &str) -> bool {
    is_name(host) && !is_inside(host) && host.trim_end_matches('.').split('.').count() == 2
}

fn is_name(host: &str) -> bool {
    matches!(Host::parse(host), Ok(Host::Domain(_)))
}

fn is_loopback(host: &str) -> bool {
    match Host::parse(host) {
        Ok(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Ok(Host::Ipv4(address)) => address.is_loopback(),
        Ok(Host::Ipv6(address)) => address.is_loopback(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRACT: &str = include_str!("../../../docs/contract.yaml.example");

    fn told(gitea: &str, argocd: Option<&str>, registries: &[&str], nats: &[&str]) -> Vec<String> {
        told_by(CONTRACT, gitea, argocd, registries, nats)
    }

    fn told_by(
        contract: &str,
        gitea: &str,
        argocd: Option<&str>,
        registries: &[&str],
        nats: &[&str],
    ) -> Vec<String> {
        let contract = Contract::parse(contract::FILE_NAME, contract.as_bytes()).unwrap();
        let own = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<String>>();
        let configured = Configured {
            gitea: ("gitea.url", gitea.to_owned()),
            argocd: argocd.map(str::to_owned),
            registries: own(registries),
            nats: own(nats),
        };
        let findings = contradictions(&contract, contract::FILE_NAME, &configured);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_the_contract_says_otherwise_than_the_configuration_is_told_with_its_line() {
        let all = told(
            "http://gitea-http.forge.svc:3000/",
            Some("http://argocd-server.tools.svc"),
            &["registry:5000/team"],
            &["nats://bus:4222"],
        );
        let remedy = "correct whichever is wrong: both are for those inside the cluster";
        let says = |place: &str, what: &str| format!("contract.yaml:{place}: endpoints.{what}; {remedy}");
        let configured = "of fabrique's configuration says";
        assert_eq!(
            all,
            [
                says(
                    "9:10",
                    &format!(
                        "gitea is http://gitea-http.gitea.svc.cluster.local:3000/, and gitea.url {configured} \
                         http://gitea-http.forge.svc:3000/"
                    )
                ),
                says(
                    "10:11",
                    &format!(
                        "argocd is https://argocd-server.argocd.svc.cluster.local/, and init.argocd_url {configured} \
                         http://argocd-server.tools.svc"
                    )
                ),
                says(
                    "11:13",
                    &format!("registry is registry:80, and registry.allowed {configured} registry:5000")
                ),
                says(
                    "12:9",
                    &format!(
                        "nats is nats://nats.fabrique.svc.cluster.local:4222, and nats.servers {configured} \
                         nats://bus:4222"
                    )
                ),
            ]
        );
    }

    #[test]
    fn one_service_has_several_names() {
        for gitea in [
            "http://gitea-http.gitea.svc.cluster.local:3000",
            "http://gitea-http.gitea.svc:3000/",
            "http://gitea-http:3000/",
        ] {
            assert_eq!(told(gitea, None, &["registry:80/team"], &["nats://nats.fabrique.svc"]), [""; 0]);
        }
        let all = told(
            "http://gitea-http.gitea.svc:3000/",
            Some("https://argocd-server.argocd.svc/"),
            &["other:80", "registry:80"],
            &["nats://other.fabrique.svc:4222", "tls://nats.fabrique.svc:4222"],
        );
        assert_eq!(all, [""; 0]);
    }

    fn told_of_bus(said: &str, configured: &str) -> Vec<String> {
        let contract = CONTRACT.replace("nats://nats.fabrique.svc.cluster.local:4222", said);
        assert!(contract.contains(said));
        told_by(&contract, "http://gitea-http:3000/", None, &["registry:80"], &[configured])
    }

    #[test]
    fn one_server_of_the_bus_is_the_bus_and_no_other_is() {
        let bus = "nats://nats.fabrique.svc.cluster.local:4222";
        for server in [
            "nats://nats-0.nats.fabrique.svc:4222",
            "nats://nats-0.nats.fabrique.svc.cluster.local:4222",
            "nats://nats-0.nats-headless.fabrique.svc",
        ] {
            assert_eq!(told_of_bus(bus, server), [""; 0], "{server}");
        }
        for other in [
            "nats://nats-0.nats.other.svc:4222",
            "nats://nats-0.bus.fabrique.svc:4222",
            "nats://nats-0.nats.fabrique.svc:4223",
            "nats://my-nats.fabrique.svc",
        ] {
            assert_eq!(told_of_bus(bus, other).len(), 1, "{other}");
        }
    }

    #[test]
    fn a_scheme_says_nothing_of_the_bus_at_any_port_nor_of_argo_cd() {
        let (said, tls) = ("nats://nats.fabrique.svc:4333", "tls://nats.fabrique.svc:4333");
        assert_eq!(told_of_bus(said, tls), [""; 0]);
        let argocd = |url| told("http://gitea-http:3000/", Some(url), &["registry:80"], &[]);
        for same in ["http://argocd-server.argocd.svc", "https://argocd-server.argocd.svc:8080/"] {
            assert_eq!(argocd(same), [""; 0], "{same}");
        }
        let gitea = told("https://gitea-http.gitea.svc:3000/", None, &["registry:80"], &[]);
        assert_eq!(gitea.len(), 1, "of Gitea it does: {gitea:?}");
    }

    #[test]
    fn a_name_of_two_labels_may_be_of_either_and_says_nothing() {
        for gitea in ["http://gitea-http.gitea:3000/", "http://gitea-http.forge:3000", "https://gitea.com"] {
            assert_eq!(told(gitea, None, &["registry:80"], &["nats://nats.bus"]), [""; 0], "{gitea}");
        }
        let gitea = told("http://gitea:3000", None, &["registry:80"], &[]);
        assert_eq!(gitea.len(), 1, "one label is of the cluster: {gitea:?}");
    }

    #[test]
    fn what_is_reached_from_elsewhere_says_nothing_about_the_inside() {
        let forwarded = told(
            "http://127.0.0.1:3000/",
            Some("http://localhost:8081/"),
            &["127.0.0.1:5000"],
            &["nats://[::1]:4222"],
        );
        assert_eq!(forwarded, [""; 0]);
        let world =
            told("https://git.example.com/", Some("https://argocd.example.com/"), &["registry:80"], &[]);
        assert_eq!(world, [""; 0]);
    }
}
