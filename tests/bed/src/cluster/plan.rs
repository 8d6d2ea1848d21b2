//! Names and addresses: the same in every cluster, so that policies and manifests may name them.
//!
//! All of them lie in 198.18.0.0/15, which is set aside for tests of network devices and is routed nowhere.

use std::net::Ipv4Addr;

/// Everything below.
pub(crate) const RANGE: &str = "198.18.0.0/15";
/// The network that nodes, servers and the caller share.
pub(crate) const LINK_BITS: u8 = 24;
/// The router between them all.
pub(crate) const HUB: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Where the registry listens, on port 80; its name is `registry`.
pub(crate) const REGISTRY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Where Gitea listens; its name is `gitea`.
pub(crate) const GITEA: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 3);
/// Where NATS listens; its name is `nats`.
pub(crate) const NATS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 4);
/// Where Argo CD's servers listen; its name is `argocd`.
pub(crate) const ARGOCD: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 5);
/// The caller's own address on the cluster's network.
pub(crate) const CALLER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 254);

pub(crate) const REGISTRY_PORT: u16 = 80;
pub(crate) const GITEA_PORT: u16 = 3000;
pub(crate) const NATS_PORT: u16 = 4222;
pub(crate) const NATS_MONITOR_PORT: u16 = 8222;
pub(crate) const API_PORT: u16 = 6443;
pub(crate) const ETCD_PORT: u16 = 2379;

/// The pods of all nodes.
pub(crate) const PODS: &str = "198.18.128.0/17";
pub(crate) const SERVICES: &str = "198.19.0.0/17";
/// The Service of the API server, which takes the first address.
pub(crate) const API_SERVICE: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
pub(crate) const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 10);

/// The hub's own address on a network behind it that is not the cluster's: what the internet is to it.
pub(crate) const OUTSIDE_HUB: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 1);
/// Two hosts there: one for what a test permits, one for what it does not.
pub(crate) const OUTSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 19, 255, 10), Ipv4Addr::new(198, 19, 255, 11)];

/// What pods resolve beside Services.
pub(crate) const NAMES: [(Ipv4Addr, &str); 6] = [
    (REGISTRY, "registry"),
    (GITEA, "gitea"),
    (NATS, "nats"),
    (ARGOCD, "argocd"),
    (OUTSIDE[0], "permitted.example"),
    (OUTSIDE[1], "forbidden.example"),
];

/// One node of the cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub name: &'static str,
    pub address: Ipv4Addr,
    /// The first three numbers of its pods' addresses.
    pods: [u8; 3],
    pub control_plane: bool,
}

impl Node {
    /// The addresses of its pods.
    pub(crate) fn pods(&self) -> String {
        let [a, b, c] = self.pods;
        format!("{a}.{b}.{c}.0/24")
    }
}

const fn node(name: &'static str, number: u8, control_plane: bool) -> Node {
    Node {
        name,
        address: Ipv4Addr::new(198, 18, 0, 10 + number),
        pods: [198, 18, 128 + number],
        control_plane,
    }
}

/// The node that carries etcd and the control plane; labelled and tainted as such.
pub(crate) const CONTROL: Node = node("control", 1, true);
/// All nodes, the control plane's first.
pub(crate) const NODES: [Node; 3] = [CONTROL, node("worker-1", 2, false), node("worker-2", 3, false)];

#[cfg(test)]
mod tests {
    use super::*;

    /// The first and the last address of a range.
    fn ends(range: &str) -> (u32, u32) {
        let (address, bits) = range.split_once('/').unwrap();
        let first = u32::from(address.parse::<Ipv4Addr>().unwrap());
        (first, first + (1 << (32 - bits.parse::<u32>().unwrap())) - 1)
    }

    fn lies_in(inner: &str, outer: &str) -> bool {
        let ((first, last), (from, to)) = (ends(inner), ends(outer));
        from <= first && last <= to
    }

    #[test]
    fn every_address_lies_in_its_range_and_no_two_ranges_meet() {
        let link = format!("198.18.0.0/{LINK_BITS}");
        let outside = format!("198.19.255.0/{LINK_BITS}");
        let mut ranges = vec![link.as_str(), PODS, SERVICES, &outside];
        ranges.sort_by_key(|range| ends(range));
        assert!(ranges.iter().all(|range| lies_in(range, RANGE)));
        assert!(ranges.windows(2).all(|pair| ends(pair[0]).1 < ends(pair[1]).0), "{ranges:?}");
        let servers = [HUB, REGISTRY, GITEA, NATS, ARGOCD, CALLER].into_iter();
        let nodes = NODES.iter().map(|node| node.address);
        assert!(servers.chain(nodes).all(|address| lies_in(&format!("{address}/32"), &link)));
        assert!([API_SERVICE, DNS_SERVICE].iter().all(|address| lies_in(&format!("{address}/32"), SERVICES)));
        assert!(
            OUTSIDE.iter().chain(&[OUTSIDE_HUB]).all(|address| lies_in(&format!("{address}/32"), &outside))
        );
        assert!(NODES.iter().all(|node| lies_in(&node.pods(), PODS)));
    }
}
