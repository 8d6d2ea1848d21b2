//! The list of the proxy that alone may leave, for rootless builds without Cilium: see `k8s/components/egress-proxy`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{AllowList, HostName};

/// Squid's lists, one a port. No address is looked up for its name, which its owner could choose.
///
/// The proxy cannot tell whose step asks, since all builders come to it in the same way: what one app added to the list,
/// all rootless apps have. Where apps must be told apart, builds are `userns`; where trust domains must, Cilium does.
#[must_use]
pub fn allow_list(list: &AllowList) -> String {
    let mut ports: BTreeMap<u16, Vec<&HostName>> = BTreeMap::new();
    for (_, egress) in list.all() {
        let hosts = ports.entry(egress.port).or_default();
        if !hosts.contains(&&egress.host) {
            hosts.push(&egress.host);
        }
    }
    let mut text = String::new();
    for (port, hosts) in ports {
        // Writing to a String does not fail.
        let _ = writeln!(text, "acl port_{port} port {port}");
        for host in hosts {
            let _ = writeln!(text, "acl hosts_{port} dstdomain -n {host}");
        }
        let _ = writeln!(text, "http_access allow hosts_{port} port_{port} !inside");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squid_lets_through_what_is_listed_for_all_apps_and_for_any_of_them_each_once() {
        let list: AllowList = serde_json::from_value(serde_json::json!({
            "version": 1,
            "hosts": [
                { "host": "pypi.org", "purpose": "packages" },
                { "host": "deb.debian.org", "port": 80, "purpose": "packages" },
            ],
            "apps": {
                "atlas": { "trust": "atlas", "hosts": [{ "host": "pypi.org", "purpose": "packages" }] },
                "citation": { "trust": "atlas", "hosts": [{ "host": "huggingface.co", "purpose": "models" }] },
            },
        }))
        .unwrap();
        insta::assert_snapshot!(allow_list(&list), @r"
        acl port_80 port 80
        acl hosts_80 dstdomain -n deb.debian.org
        http_access allow hosts_80 port_80 !inside
        acl port_443 port 443
        acl hosts_443 dstdomain -n pypi.org
        acl hosts_443 dstdomain -n huggingface.co
        http_access allow hosts_443 port_443 !inside
        ");
        assert_eq!(allow_list(&AllowList::default()), "");
    }
}
