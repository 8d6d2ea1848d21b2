//! How much of the address space a set of ranges holds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The most IPv4 addresses that one list may hold together: as many as one /8. Networks of whole countries are
/// smaller than half of the space, so "not quite everything" has to be refused long before "everything".
const MOST_V4: u128 = 1 << (32 - 8);
/// The most IPv6 addresses: as many as one /16.
const MOST_V6: u128 = 1 << (128 - 16);

/// Reads a range, or an address, which Cilium takes for a range of one. Leading zeros are taken for octal by some, and
/// for nothing here.
pub(crate) fn parse(text: &str) -> Option<IpNet> {
    match text.split_once('/') {
        Some((_, length)) if length.len() > 1 && length.starts_with('0') => None,
        Some(_) => text.parse().ok(),
        None => text.parse::<IpAddr>().ok().map(IpNet::from),
    }
}

/// Says why `ranges` open too much together, if they do. Exceptions inside a range do not count: whoever lists
/// the world but for ten addresses lists the world.
pub(crate) fn too_wide(ranges: &[IpNet]) -> Option<String> {
    let ranges: Vec<IpNet> = ranges.iter().map(|range| unmapped(range.trunc())).collect();
    let (mut v4, mut v6) = (0u128, 0u128);
    for range in IpNet::aggregate(&ranges) {
        match range {
            IpNet::V4(range) => v4 = v4.saturating_add(1 << (32 - range.prefix_len())),
            IpNet::V6(range) => {
                // A /0 holds one more than fits.
                let host_bits = u32::from(128 - range.prefix_len());
                v6 = v6.saturating_add(1u128.checked_shl(host_bits).unwrap_or(u128::MAX));
            }
        }
    }
    (v4 > MOST_V4 || v6 > MOST_V6).then(|| together(&ranges, v4 > MOST_V4))
}

/// The same, counted as the admission policy in `k8s/base` counts, which cannot join ranges: each for itself, whether
/// they overlap or not, and those as nothing of which 65536 would not fill what is permitted.
pub(crate) fn too_wide_by_parts(ranges: &[IpNet]) -> Option<String> {
    /// The parts that are permitted, as a power of two.
    const PARTS: u8 = 16;
    let parts = |range: &IpNet, widest: u8| match range.prefix_len().checked_sub(widest) {
        None => u64::MAX,
        Some(longer) => PARTS.checked_sub(longer).map_or(0, |bits| 1 << bits),
    };
    let (mut v4, mut v6) = (0u64, 0u64);
    for range in ranges {
        match range {
            IpNet::V4(_) => v4 = v4.saturating_add(parts(range, 8)),
            IpNet::V6(_) => v6 = v6.saturating_add(parts(range, 16)),
        }
    }
    let most = 1 << PARTS;
    (v4 > most || v6 > most).then(|| together(ranges, v4 > most))
}

fn together(ranges: &[IpNet], v4: bool) -> String {
    let of_family = ranges.iter().filter(|range| matches!(range, IpNet::V4(_)) == v4);
    let widest = of_family.min_by_key(|range| range.prefix_len()).map(ToString::to_string);
    let (bits, widest) = (if v4 { 8 } else { 16 }, widest.unwrap_or_default());
    format!(
        "the addresses hold more than a /{bits} together (the widest is {widest}): list the hosts' own ranges"
    )
}

/// `::ffff:0:0/96` is IPv4 in other clothes.
fn unmapped(range: IpNet) -> IpNet {
    let IpNet::V6(v6) = range else { return range };
    let mapped = v6.prefix_len() >= 96 && v6.addr().to_ipv4_mapped().is_some();
    let v4 = v6.addr().to_ipv4_mapped().filter(|_| mapped);
    v4.and_then(|v4| Ipv4Net::new(v4, v6.prefix_len() - 96).ok()).map_or(range, IpNet::V4)
}

/// Addresses that no builder may reach whatever the list says: link-local (cloud metadata), loopback, and IPv4 written
/// as IPv6, behind which both could hide.
pub(crate) fn forbidden(range: &IpNet) -> Option<&'static str> {
    let link_local_v4 = Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16);
    let link_local_v6 = Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);
    let loopback_v4 = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
    let overlaps = |other: IpNet| range.contains(&other) || other.contains(range);
    if overlaps(link_local_v4.into()) || overlaps(link_local_v6.into()) {
        Some("link-local addresses (cloud metadata) are never opened")
    } else if overlaps(loopback_v4.into()) || range.contains(&IpAddr::V6(Ipv6Addr::LOCALHOST)) {
        Some("loopback addresses are never opened")
    } else if matches!(range, IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some()) {
        Some("IPv4 addresses are written as such")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Splits the whole space into ranges by a random tree, and shuffles them.
    fn cover(whole: IpNet, choices: &[bool]) -> Vec<IpNet> {
        let mut whole_and_parts = vec![whole];
        for (at, &split) in choices.iter().enumerate() {
            let at = at % whole_and_parts.len();
            let range = whole_and_parts[at];
            if split && range.prefix_len() < range.max_prefix_len() {
                let halves: Vec<IpNet> = range.subnets(range.prefix_len() + 1).unwrap().collect();
                whole_and_parts.splice(at..=at, halves);
            } else {
                whole_and_parts.rotate_left(1);
            }
        }
        whole_and_parts
    }

    proptest! {
        #[test]
        fn ranges_that_cover_the_space_together_are_refused(
            choices in prop::collection::vec(any::<bool>(), 0..200),
            v6 in any::<bool>(),
            extra in any::<u32>(),
        ) {
            let whole: IpNet = if v6 { "::/0" } else { "0.0.0.0/0" }.parse().unwrap();
            let mut ranges = cover(whole, &choices);
            ranges.push(IpNet::from(IpAddr::from(Ipv4Addr::from(extra))));
            prop_assert!(too_wide(&ranges).is_some(), "{ranges:?}");
        }

        #[test]
        fn a_few_networks_are_allowed(addresses in prop::collection::vec((any::<u32>(), 16u8..=32), 0..200)) {
            let ranges: Vec<IpNet> = addresses.into_iter()
                .map(|(address, prefix)| IpNet::new(IpAddr::from(Ipv4Addr::from(address)), prefix).unwrap())
                .collect();
            prop_assert_eq!(too_wide(&ranges), None);
        }
    }

    #[test]
    fn the_world_in_disguise_is_refused() {
        for disguise in [
            vec!["1.2.3.4/0"],
            vec!["::ffff:0:0/96"],
            vec!["0.0.0.0/1", "128.0.0.0/1"],
            vec!["0.0.0.0/2", "64.0.0.0/2", "128.0.0.0/2", "192.0.0.0/3"],
            vec!["2000::/3"],
        ] {
            let ranges: Vec<IpNet> = disguise.iter().map(|range| range.parse().unwrap()).collect();
            assert!(too_wide(&ranges).is_some(), "{disguise:?}");
        }
        assert_eq!(too_wide(&["10.0.0.0/8".parse().unwrap()]), None);
    }

    #[test]
    fn metadata_and_loopback_stay_closed() {
        for range in [
            "169.254.169.254/32",
            "169.0.0.0/8",
            "fe80::/64",
            "127.0.0.1/32",
            "::1/128",
            "::ffff:a9fe:a9fe/128",
        ] {
            assert!(forbidden(&range.parse().unwrap()).is_some(), "{range}");
        }
        assert_eq!(forbidden(&"151.101.0.0/16".parse().unwrap()), None);
    }
}
