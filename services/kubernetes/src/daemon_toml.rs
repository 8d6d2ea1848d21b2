//! `buildkitd.toml`, rendered for the ConfigMap and passed by `--config`: a daemon that runs without privileges
//! does not look in `/etc`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::config::{Bytes, Isolation, Settings};

/// The share of its volume that a cache may fill: the rest is for what a running build writes before garbage is
/// collected, which happens between builds only.
const CACHE_SHARE: (u64, u64) = (4, 5);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BuildkitdToml {
    /// RUN steps see BuildKit's own proxy and nothing else. Not for rootlesskit, whose steps share its network.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    proxy_network: bool,
    worker: Workers,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    registry: BTreeMap<String, Registry>,
}

#[derive(Serialize)]
struct Workers {
    oci: OciWorker,
}

#[derive(Serialize)]
struct OciWorker {
    enabled: bool,
    gc: bool,
    #[serde(rename = "reservedSpace")]
    reserved_space: String,
    #[serde(rename = "maxUsedSpace")]
    max_used_space: String,
    #[serde(rename = "max-parallelism", skip_serializing_if = "Option::is_none")]
    max_parallelism: Option<u16>,
}

#[derive(Serialize, Default)]
struct Registry {
    /// Never together with `insecure`: with both, HTTPS is tried first.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    http: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mirrors: Vec<String>,
}

/// The daemon's configuration file.
///
/// # Errors
/// Never for settings that were read: everything in them has a form in TOML.
pub fn buildkitd_toml(settings: &Settings, isolation: Isolation) -> Result<String, toml::ser::Error> {
    let daemon = &settings.daemon;
    let names: BTreeSet<&String> = daemon.http_registries.iter().chain(daemon.mirrors.keys()).collect();
    let registry = names.into_iter().map(|name| {
        let http = daemon.http_registries.contains(name);
        let mirrors = daemon.mirrors.get(name).cloned().unwrap_or_default();
        (name.clone(), Registry { http, mirrors })
    });
    let max_used = max_used(settings);
    toml::to_string(&BuildkitdToml {
        proxy_network: isolation == Isolation::Userns,
        worker: Workers {
            oci: OciWorker {
                enabled: true,
                gc: true,
                reserved_space: in_bytes(Bytes(max_used.0 / 2)),
                max_used_space: in_bytes(max_used),
                max_parallelism: daemon.max_parallelism,
            },
        },
        registry: registry.collect(),
    })
}

fn max_used(settings: &Settings) -> Bytes {
    let (part, whole) = CACHE_SHARE;
    settings.daemon.max_used.unwrap_or(Bytes(settings.cache.size.0 / whole * part))
}

/// BuildKit takes "GB" and "GiB" for the same; plain bytes mean one thing.
fn in_bytes(bytes: Bytes) -> String {
    bytes.0.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::settings;

    #[test]
    fn the_file_of_each_isolation() {
        let mut settings = settings();
        settings.daemon.mirrors.insert("docker.io".into(), vec!["registry:80/mirror".into()]);
        settings.daemon.mirrors.insert("registry:80".into(), vec!["registry-2:80".into()]);
        settings.daemon.max_parallelism = Some(4);
        insta::assert_snapshot!("buildkitd_userns", buildkitd_toml(&settings, Isolation::Userns).unwrap());
        let rootless = buildkitd_toml(&settings, Isolation::Rootless).unwrap();
        assert!(!rootless.contains("proxyNetwork"), "{rootless}");
        assert!(!rootless.contains("insecure"), "{rootless}");
    }

    #[test]
    fn a_name_cannot_break_out_of_its_key() {
        let mut settings = settings();
        settings.daemon.http_registries = vec!["a\"]\n[worker.oci]\nrootless = false\n#".into()];
        let text = buildkitd_toml(&settings, Isolation::Userns).unwrap();
        let read: toml::Table = toml::from_str(&text).unwrap();
        assert!(read["registry"].as_table().unwrap().contains_key(&settings.daemon.http_registries[0]));
        assert!(!read["worker"]["oci"].as_table().unwrap().contains_key("rootless"));
    }
}
