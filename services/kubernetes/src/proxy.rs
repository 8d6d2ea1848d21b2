//! Telling those of the egress proxy who have to ask it.

use std::collections::BTreeSet;

use fabrique_ports::builder::Proxy;

use crate::config::{Isolation, Settings};

/// The proxy of daemons of `isolation`. In `userns` RUN steps have no network but BuildKit's own proxy, which judges
/// host by host already.
pub(crate) fn of(settings: &Settings, isolation: Isolation) -> Option<Proxy> {
    let proxy = settings.proxy.as_ref().filter(|_| isolation == Isolation::Rootless)?;
    let daemon = &settings.daemon;
    let mirrors = daemon.mirrors.values().flatten();
    let registries = daemon.http_registries.iter().chain(mirrors).map(|registry| host(registry));
    let known = registries.chain(["localhost", "127.0.0.1", settings.gate.needed.host.as_str()]);
    let except: BTreeSet<&str> = known.chain(proxy.except.iter().map(String::as_str)).collect();
    Some(Proxy { url: proxy.url.clone(), except: except.into_iter().map(str::to_owned).collect() })
}

/// The daemon's own environment, for what it fetches itself.
pub(crate) fn environment(settings: &Settings, isolation: Isolation) -> Vec<(&'static str, String)> {
    let Some(proxy) = of(settings, isolation) else { return Vec::new() };
    let url = proxy.url;
    vec![("HTTP_PROXY", url.clone()), ("HTTPS_PROXY", url), ("NO_PROXY", proxy.except.join(","))]
}

/// Of `host[:port][/path]`; an address of IPv6 stays in its brackets.
fn host(registry: &str) -> &str {
    let authority = registry.split('/').next().unwrap_or(registry);
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EgressProxy;
    use crate::testing::settings;

    #[test]
    fn rootless_builds_leave_by_the_proxy_and_reach_registries_without_it() {
        let mut settings = settings();
        assert_eq!(of(&settings, Isolation::Rootless), None);
        let url = "http://egress-proxy.fabrique-egress.svc:3128".to_owned();
        settings.proxy = Some(EgressProxy { url: url.clone(), except: vec!["gitea".into()] });
        settings.daemon.mirrors.insert("docker.io".into(), vec!["mirror:5000/hub".into()]);
        assert_eq!(of(&settings, Isolation::Userns), None);
        let except = ["127.0.0.1", "gitea", "localhost", "mirror", "registry"].map(str::to_owned).to_vec();
        assert_eq!(of(&settings, Isolation::Rootless), Some(Proxy { url: url.clone(), except }));
        let told = environment(&settings, Isolation::Rootless);
        assert_eq!(told[0], ("HTTP_PROXY", url));
        assert_eq!(told[2], ("NO_PROXY", "127.0.0.1,gitea,localhost,mirror,registry".to_owned()));
    }
}
