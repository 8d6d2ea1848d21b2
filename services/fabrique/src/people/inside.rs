//! Names that only pods resolve: from a workstation they lead nowhere, or into another cluster.

use std::env;

use url::Url;

use crate::config::Config;
use crate::people::trouble::Complaint;

/// Their endings.
const ENDINGS: [&str; 2] = [".svc", ".cluster.local"];
/// Every pod has it.
const IN_POD: &str = "KUBERNETES_SERVICE_HOST";

/// Whether this process runs in a pod.
pub(crate) fn is_pod() -> bool {
    env::var_os(IN_POD).is_some()
}

/// A key, and the host that it names.
pub(crate) type Named = (&'static str, String);

/// Refuses what is named by a name of the cluster, unless this runs in it.
pub(crate) fn reached_from_here(mut named: impl Iterator<Item = Named>) -> Result<(), Complaint> {
    if is_pod() {
        return Ok(());
    }
    match named.find(|(_, host)| is_inside(host)) {
        None => Ok(()),
        Some((key, host)) => {
            let what = format!("{key}: {host} is a name inside the cluster, and this is not");
            let remedy = "forward a port with `kubectl port-forward` and name that, like 127.0.0.1:3000";
            Err(Complaint::usage(format!("{what}; {remedy}")))
        }
    }
}

/// Gitea and the bus.
pub(crate) fn forge_and_bus(config: &Config) -> impl Iterator<Item = Named> {
    let gitea = host_of("gitea.url", &config.gitea.url);
    gitea.into_iter().chain(config.nats.servers.iter().filter_map(|url| host_of("nats.servers", url)))
}

/// The host of a URL, under its key.
pub(crate) fn host_of(key: &'static str, url: &str) -> Option<Named> {
    Some((key, Url::parse(url).ok()?.host_str()?.to_owned()))
}

/// Whether only pods resolve it.
pub(crate) fn is_inside(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    ENDINGS.iter().any(|ending| host.ends_with(ending))
}
