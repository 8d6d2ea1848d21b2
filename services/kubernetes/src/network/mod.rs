//! Who may talk to whom: policies as pure functions of a typed allow-list, and the checks that keep any policy from
//! opening the world.
//!
//! * [`AllowList`] is the one list of outside hosts, each with its port and its purpose;
//! * [`policies`] and [`cilium`] turn it and the cluster's own [`Peers`] into manifests, [`squid`] into a proxy's list;
//! * [`findings`] refuses what would undo them, in our manifests and in anybody's.

mod allow_list;
mod builders;
pub mod cilium;
mod findings;
pub mod policies;
mod space;
pub mod squid;

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use self::allow_list::{AllowList, AppEgress, Egress, HostName};
pub use self::findings::{findings, findings_among, findings_in};
use crate::finding::Finding;

/// The builders' namespace in the manifests of `k8s/`, for whoever judges policies without settings.
pub const BUILDERS_NAMESPACE: &str = "fabrique-builds";
/// The port of NATS, which no builder ever reaches.
pub const NATS_PORT: u16 = 4222;

/// Something inside the cluster, or next to it, that a policy names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Peer {
    /// Pods.
    Pods {
        /// Their namespace.
        namespace: String,
        /// Their labels; at least one.
        labels: BTreeMap<String, String>,
    },
    /// Addresses outside the cluster's pods.
    Addresses {
        /// The ranges.
        cidrs: Vec<IpNet>,
    },
}

/// A service that builders need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Where it is, as the policy sees it: behind any Service or node port.
    pub at: Peer,
    /// Its port there.
    pub port: u16,
    /// The names by which builders look it up.
    #[serde(default)]
    pub names: Vec<HostName>,
}

/// Everything in the cluster that builders have to do with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// The builders' namespace.
    pub namespace: String,
    /// Who builds: the only ones who reach the daemons.
    pub workers: Peer,
    /// The cluster's DNS.
    pub dns: Peer,
    /// Where sources come from.
    pub gitea: Service,
    /// Where images come from and go to.
    pub registry: Service,
    /// The proxy that alone may leave, where there is one.
    #[serde(default)]
    pub egress_proxy: Option<Service>,
}

impl Peers {
    /// The services behind the builders' egress.
    pub(crate) fn services(&self) -> impl Iterator<Item = &Service> {
        [&self.gitea, &self.registry].into_iter().chain(&self.egress_proxy)
    }

    /// Everything that is wrong.
    #[must_use]
    pub fn validate(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let places = ["gitea", "registry", "egress_proxy"];
        for (place, service) in places.into_iter().zip(self.services()) {
            if service.port == NATS_PORT || service.port == 0 {
                findings.push(Finding::new(format!("{place}.port"), "builders never reach NATS, nor port 0"));
            }
        }
        let all = [("workers", &self.workers), ("dns", &self.dns)].into_iter();
        for (place, peer) in all.chain(places.into_iter().zip(self.services().map(|service| &service.at))) {
            match peer {
                Peer::Pods { labels, .. } if labels.is_empty() => {
                    findings.push(Finding::new(place, "must name labels, or it means every pod there"));
                }
                Peer::Addresses { cidrs } if cidrs.is_empty() => {
                    findings.push(Finding::new(place, "must list addresses, or it means everybody"));
                }
                Peer::Pods { .. } => {}
                Peer::Addresses { cidrs } => {
                    findings.extend(space::too_wide(cidrs).map(|problem| Finding::new(place, problem)));
                }
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests;
