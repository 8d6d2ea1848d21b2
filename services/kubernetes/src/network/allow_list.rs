//! The hosts outside that builds may reach: one list, versioned, each entry with the reason it is there.

use std::collections::BTreeMap;
use std::fmt;

use fabrique_core::id::{AppName, InvalidId, TrustDomain};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{NATS_PORT, space};
use crate::finding::Finding;

/// The only form of the list so far.
const VERSION: u32 = 1;
/// The most entries of one list: policies grow with it.
const MOST_ENTRIES: usize = 256;

/// A host by its full DNS name, without wildcards: `files.pythonhosted.org`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

impl HostName {
    /// Parses a name.
    ///
    /// # Errors
    /// When it is not a lowercase DNS name.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let label = |label: &str| {
            let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            (1..=63).contains(&label.len())
                && label.bytes().all(inner)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        if text.len() <= 253 && text.split('.').all(label) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidId::new(text, "a host name (lowercase letters, digits, '-' and '.', no wildcard)"))
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for HostName {
    type Error = InvalidId;
    fn try_from(text: String) -> Result<Self, InvalidId> {
        Self::parse(&text)
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.0
    }
}

/// One host outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// Its name.
    pub host: HostName,
    /// Its port. Any but 443 has to be written down, host by host.
    #[serde(default = "Egress::https")]
    pub port: u16,
    /// Why it is on the list, for whoever reviews it.
    pub purpose: String,
    /// Its addresses, for clusters whose policies know no names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cidrs: Vec<IpNet>,
}

impl Egress {
    fn https() -> u16 {
        443
    }

    /// `host`, or `host:port` where the port is not 443: the form that a source policy is given.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.port == Self::https() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// What one app's builds may reach beyond the common list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppEgress {
    /// The app's trust domain. A policy selects pods, and a pod belongs to a domain: where no source policy is
    /// enforced, the whole domain has what one of its apps has; and behind the egress proxy all rootless apps do.
    pub trust: TrustDomain,
    /// The hosts.
    pub hosts: Vec<Egress>,
}

/// The hosts outside that builds may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowList {
    /// The form of this list: 1.
    pub version: u32,
    /// For all apps.
    #[serde(default)]
    pub hosts: Vec<Egress>,
    /// For single apps.
    #[serde(default)]
    pub apps: BTreeMap<AppName, AppEgress>,
}

impl Default for AllowList {
    /// Nothing outside.
    fn default() -> Self {
        Self { version: VERSION, hosts: Vec::new(), apps: BTreeMap::new() }
    }
}

impl AllowList {
    /// What one app's builds may reach.
    pub fn for_app(&self, app: &AppName) -> impl Iterator<Item = &Egress> {
        self.hosts.iter().chain(self.apps.get(app).into_iter().flat_map(|own| &own.hosts))
    }

    /// What a trust domain's pods may reach beyond the common list, by domain.
    #[must_use]
    pub fn by_trust(&self) -> BTreeMap<&TrustDomain, Vec<&Egress>> {
        let mut domains: BTreeMap<&TrustDomain, Vec<&Egress>> = BTreeMap::new();
        for own in self.apps.values() {
            domains.entry(&own.trust).or_default().extend(&own.hosts);
        }
        domains
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (String, &Egress)> {
        let common = self.hosts.iter().enumerate().map(|(at, egress)| (format!("hosts[{at}]"), egress));
        let own = self.apps.iter().flat_map(|(app, own)| {
            let place = move |(at, egress)| (format!("apps.{app}.hosts[{at}]"), egress);
            own.hosts.iter().enumerate().map(place)
        });
        common.chain(own)
    }

    /// Everything that is wrong.
    #[must_use]
    pub fn validate(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.version != VERSION {
            findings.push(Finding::new("version", format!("must be {VERSION}")));
        }
        if self.all().count() > MOST_ENTRIES {
            findings.push(Finding::new("hosts", format!("must be at most {MOST_ENTRIES} together")));
        }
        for (place, egress) in self.all() {
            if egress.purpose.trim().is_empty() {
                findings.push(Finding::new(format!("{place}.purpose"), "must say what the host is for"));
            }
            if egress.port == 0 || egress.port == NATS_PORT {
                findings.push(Finding::new(format!("{place}.port"), "builders never reach NATS, nor port 0"));
            }
            let forbidden = egress.cidrs.iter().find_map(space::forbidden);
            findings.extend(forbidden.map(|problem| Finding::new(format!("{place}.cidrs"), problem)));
        }
        let cidrs: Vec<IpNet> = self.all().flat_map(|(_, egress)| egress.cidrs.clone()).collect();
        findings.extend(space::too_wide(&cidrs).map(|problem| Finding::new("hosts", problem)));
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn egress(host: &str, cidrs: &[&str]) -> Egress {
        Egress {
            host: HostName::parse(host).unwrap(),
            port: 443,
            purpose: "packages".into(),
            cidrs: cidrs.iter().map(|range| range.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn a_name_with_a_wildcard_a_scheme_or_a_port_is_refused() {
        for wrong in ["*", "*.pypi.org", "https://pypi.org", "pypi.org:443", "", ".", "pypi..org", "PyPI.org"]
        {
            assert!(HostName::parse(wrong).is_err(), "{wrong}");
        }
        assert!(HostName::parse("files.pythonhosted.org").is_ok());
    }

    #[test]
    fn the_list_is_checked_as_a_whole() {
        let halves = |range: &str| egress("a.example", &[range]);
        let list = AllowList {
            version: 2,
            hosts: vec![
                halves("0.0.0.0/1"),
                Egress { purpose: " ".into(), ..egress("b.example", &["169.254.169.254/32"]) },
                Egress { port: NATS_PORT, ..egress("c.example", &[]) },
            ],
            apps: BTreeMap::from([(
                AppName::parse("citation").unwrap(),
                AppEgress { trust: TrustDomain::parse("atlas").unwrap(), hosts: vec![halves("128.0.0.0/1")] },
            )]),
        };
        let places: Vec<String> = list.validate().into_iter().map(|finding| finding.place).collect();
        let expected = [
            "version",
            "hosts[0].cidrs",
            "hosts[1].purpose",
            "hosts[1].cidrs",
            "hosts[2].port",
            "apps.citation.hosts[0].cidrs",
            "hosts",
        ];
        assert_eq!(places, expected);
        assert!(AllowList::default().validate().is_empty());
    }

    #[test]
    fn an_app_has_the_common_hosts_and_its_own() {
        let citation = AppName::parse("citation").unwrap();
        let own = AppEgress {
            trust: TrustDomain::parse("atlas").unwrap(),
            hosts: vec![Egress { port: 80, ..egress("deb.debian.org", &[]) }],
        };
        let list = AllowList {
            version: VERSION,
            hosts: vec![egress("pypi.org", &[])],
            apps: BTreeMap::from([(citation.clone(), own)]),
        };
        let authorities = |app| list.for_app(app).map(Egress::authority).collect::<Vec<_>>();
        assert_eq!(authorities(&citation), ["pypi.org", "deb.debian.org:80"]);
        assert_eq!(authorities(&AppName::parse("other").unwrap()), ["pypi.org"]);
    }
}
