//! Checks that no single value can see.

use std::net::IpAddr;
use std::time::Duration;

use super::{Bytes, HostPort, Settings};
use crate::finding::Finding;
use crate::pod::CONTROL_PLANE_LABELS;

/// Below this, `buildkitd` does not start reliably.
const LEAST_MEMORY: Bytes = Bytes::mebi(128);
/// Below this, no cache is worth having, and most base images do not fit.
const LEAST_CACHE: Bytes = Bytes::mebi(64);

/// After an attempt to renew a claim failed.
const RENEWAL_PAUSE: Duration = crate::pool::FIRST_PAUSE;

impl Settings {
    /// Everything that is wrong, each with its key; nothing when the settings can be used.
    #[must_use]
    pub fn validate(&self) -> Vec<Finding> {
        let mut findings = Findings::default();
        findings.unless(is_label(&self.namespace), "namespace", "must be a DNS label");
        self.check_pool(&mut findings);
        self.check_resources(&mut findings);
        self.check_scheduling(&mut findings);
        self.check_daemon(&mut findings);
        self.check_names(&mut findings);
        findings.0
    }

    fn check_pool(&self, findings: &mut Findings) {
        let pool = &self.pool;
        findings.unless(pool.total >= 1, "pool.total", "must be at least 1");
        let domain = 1..=pool.total.max(1);
        findings.unless(domain.contains(&pool.per_domain), "pool.per_domain", "must be 1 to pool.total");
        findings.unless(pool.warm <= pool.per_domain, "pool.warm", "must not exceed pool.per_domain");
        for (trust, &warm) in &pool.always_warm {
            let key = format!("pool.always_warm.{trust}");
            findings.unless(warm <= pool.per_domain, key, "must not exceed pool.per_domain");
        }
        let always: u32 = pool.always_warm.values().copied().map(u32::from).sum();
        findings.unless(
            always <= pool.total.into(),
            "pool.always_warm",
            "must not exceed pool.total together",
        );
        findings.unless(pool.builds >= 1, "pool.builds", "must be at least 1");
        for (key, value) in [
            ("pool.idle", pool.idle),
            ("pool.life", pool.life),
            ("pool.longest_build", pool.longest_build),
            ("pool.start", pool.start),
            ("gate.limit", self.gate.limit),
            ("patience.request", self.patience.request),
            ("patience.longest_pause", self.patience.longest_pause),
            ("patience.nodes", self.patience.nodes),
        ] {
            findings.unless(value >= Duration::from_secs(1), key, "must be at least 1s");
        }
        // Three renewals, each of which may take as long as one request.
        let claim = self.patience.request * 3;
        findings.unless(pool.claim >= claim, "pool.claim", "must be at least three times patience.request");
        // Half of it is what a worker has to write again after the API server was away.
        let again = self.patience.request * 2 + RENEWAL_PAUSE * 2;
        findings.unless(pool.claim >= again, "pool.claim", "must be 2s more than twice patience.request");
        findings.unless(self.gate.limit <= pool.start, "gate.limit", "must not exceed pool.start");
        // A daemon that nobody had yet is idle since its pod was made.
        findings.unless(
            pool.idle >= pool.start,
            "pool.idle",
            "must not be less than pool.start, or a daemon that was slow to start goes before its first build",
        );
        let address = self.gate.forbidden.as_ref().is_none_or(|at| at.host.parse::<IpAddr>().is_ok());
        findings.unless(
            address,
            "gate.forbidden",
            "must be an address with a port, since a name that does not resolve looks closed; leave it out for \
             the API server",
        );
    }

    fn check_resources(&self, findings: &mut Findings) {
        let resources = &self.resources;
        let enough = resources.memory >= LEAST_MEMORY;
        findings.unless(enough, "resources.memory", format!("must be at least {LEAST_MEMORY}"));
        findings.unless(resources.cpu.0 > 0, "resources.cpu", "must be more than 0");
        let within = resources.cpu_limit.is_none_or(|limit| limit >= resources.cpu);
        findings.unless(within, "resources.cpu_limit", "must not be below resources.cpu");
        let most = &self.max;
        findings.unless(
            most.cpu.is_none_or(|cpu| cpu >= resources.cpu),
            "max.cpu",
            "must not be below resources.cpu",
        );
        let memory = most.memory.is_none_or(|memory| memory >= resources.memory);
        findings.unless(memory, "max.memory", "must not be below resources.memory");
        let storage = most.ephemeral_storage.is_none_or(|most| Some(most) >= resources.ephemeral_storage);
        findings.unless(storage, "max.ephemeral_storage", "must not be below resources.ephemeral_storage");
        for (app, memory) in &self.apps {
            let start = memory.start.unwrap_or(resources.memory);
            findings.unless(
                start >= LEAST_MEMORY && start <= memory.limit,
                format!("apps.{app}"),
                format!("must start between {LEAST_MEMORY} and its limit of {}", memory.limit),
            );
        }
        findings.unless(
            self.cache.size >= LEAST_CACHE,
            "cache.size",
            format!("must be at least {LEAST_CACHE}"),
        );
        let collected = self.daemon.max_used.is_none_or(|max| max < self.cache.size);
        findings.unless(
            collected,
            "daemon.max_used",
            "must be below cache.size, or nothing is ever collected",
        );
    }

    fn check_scheduling(&self, findings: &mut Findings) {
        let control_plane = |key: &str| CONTROL_PLANE_LABELS.contains(&key);
        for key in self.scheduling.node_selector.keys().filter(|key| control_plane(key)) {
            findings
                .add(format!("scheduling.node_selector.{key}"), "builders never run on the control plane");
        }
        for (at, toleration) in self.scheduling.tolerations.iter().enumerate() {
            let place = format!("scheduling.tolerations[{at}]");
            match toleration.key.as_deref() {
                None | Some("") => {
                    findings.add(place, "must name its key: without one it tolerates every taint")
                }
                Some(key) if control_plane(key) => {
                    findings.add(place, "builders never run on the control plane")
                }
                Some(_) => {}
            }
        }
    }

    fn check_daemon(&self, findings: &mut Findings) {
        let daemon = &self.daemon;
        for (at, registry) in daemon.http_registries.iter().enumerate() {
            let place = format!("daemon.http_registries[{at}]");
            findings.unless(is_registry(registry), place, "must be host[:port]");
        }
        for (registry, mirrors) in &daemon.mirrors {
            let place = format!("daemon.mirrors.{registry}");
            findings.unless(is_registry(registry), &place, "must be keyed by host[:port]");
            let good = !mirrors.is_empty() && mirrors.iter().all(|mirror| is_mirror(mirror));
            findings.unless(good, &place, "must list host[:port] or host[:port]/path");
        }
        findings.unless(daemon.max_parallelism != Some(0), "daemon.max_parallelism", "must be at least 1");
        if let Some(pem) = &daemon.authorities {
            let good = pem.contains("-----BEGIN CERTIFICATE-----") && !pem.contains("PRIVATE KEY");
            findings.unless(good, "daemon.authorities", "must be certificates in PEM, without any key");
        }
    }

    fn check_names(&self, findings: &mut Findings) {
        if let Some(proxy) = &self.proxy {
            let authority =
                proxy.url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/').to_owned());
            let good = authority.is_some_and(|authority| HostPort::try_from(authority).is_ok());
            findings.unless(good, "proxy.url", "must be http://host:port");
            // Anything else would be another entry, or none.
            let plain = |host: &String| is_registry(host.strip_prefix('.').unwrap_or(host));
            findings.unless(
                proxy.except.iter().all(plain),
                "proxy.except",
                "must list hosts, each by itself",
            );
        }
        for (at, alias) in self.host_aliases.iter().enumerate() {
            let place = format!("host_aliases[{at}]");
            findings.unless(alias.ip.parse::<IpAddr>().is_ok(), &place, "ip must be an address");
            let names = alias.hostnames.as_deref().unwrap_or_default();
            findings.unless(!names.is_empty(), &place, "must have hostnames");
        }
        for (at, secret) in self.pull.secrets.iter().enumerate() {
            findings.unless(!secret.is_empty(), format!("pull.secrets[{at}]"), "must be a Secret's name");
        }
    }
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, place: impl Into<String>, problem: impl Into<String>) {
        self.0.push(Finding::new(place, problem));
    }

    fn unless(&mut self, good: bool, place: impl Into<String>, problem: impl Into<String>) {
        if !good {
            self.add(place, problem);
        }
    }
}

/// A DNS label of RFC 1123, as namespaces are named.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_registry(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte))
}

fn is_mirror(text: &str) -> bool {
    let (host, path) = text.split_once('/').unwrap_or((text, "path"));
    is_registry(host) && !path.is_empty() && path.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{HostAlias, Toleration};

    use super::*;
    use crate::config::EgressProxy;
    use crate::testing::settings;

    fn places(settings: &Settings) -> Vec<String> {
        settings.validate().into_iter().map(|finding| finding.place).collect()
    }

    #[test]
    fn a_build_that_may_take_longer_than_every_pod_lasts_is_refused_in_words() {
        let pool = settings().pool;
        assert_eq!(pool.refusal(pool.longest_build), None);
        let told = pool.refusal(Duration::from_mins(121)).unwrap();
        assert_eq!(told, "the build may take 2h 1m, and pool.longest_build permits 2h at the most");
        // Whenever it begins, as long as the pod gets builds at all.
        assert!(pool.deadline() >= pool.start + pool.life + pool.longest_build);
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(places(&settings()), Vec::<String>::new());
    }

    #[test]
    fn all_findings_are_told_at_once() {
        let mut settings = settings();
        settings.namespace = "Builders".into();
        settings.pool.total = 0;
        settings.pool.claim = Duration::from_secs(25);
        settings.resources.memory = Bytes::mebi(1);
        settings.max.cpu = Some(crate::config::Millicores(499));
        settings.max.ephemeral_storage = Some(Bytes::gibi(1));
        settings.daemon.max_used = Some(Bytes::gibi(900));
        settings.daemon.authorities = Some("-----BEGIN PRIVATE KEY-----".into());
        let except = vec!["gitea,registry".into()];
        settings.proxy = Some(EgressProxy { url: "egress-proxy:3128".into(), except });
        settings.host_aliases = vec![HostAlias { ip: "registry".into(), hostnames: None }];
        settings.gate.forbidden = Some(HostPort::try_from("kubernetes.default.svc:443".to_owned()).unwrap());
        assert_eq!(
            places(&settings),
            [
                "namespace",
                "pool.total",
                "pool.per_domain",
                "pool.claim",
                "gate.forbidden",
                "resources.memory",
                "max.cpu",
                "max.ephemeral_storage",
                "daemon.max_used",
                "daemon.authorities",
                "proxy.url",
                "proxy.except",
                "host_aliases[0]",
                "host_aliases[0]",
            ]
        );
    }

    #[test]
    fn no_toleration_opens_the_control_plane() {
        let mut settings = settings();
        let toleration = |key: Option<&str>| Toleration {
            key: key.map(str::to_owned),
            operator: Some("Exists".into()),
            ..Default::default()
        };
        settings.scheduling.tolerations = vec![
            toleration(Some("builders")),
            toleration(Some("node-role.kubernetes.io/control-plane")),
            toleration(None),
        ];
        settings.scheduling.node_selector.insert("node-role.kubernetes.io/master".into(), String::new());
        assert_eq!(
            places(&settings),
            [
                "scheduling.node_selector.node-role.kubernetes.io/master",
                "scheduling.tolerations[1]",
                "scheduling.tolerations[2]",
            ]
        );
    }

    #[test]
    fn no_daemon_is_idle_for_too_long_when_it_starts() {
        let mut settings = settings();
        settings.pool.idle = settings.pool.start - Duration::from_secs(1);
        assert_eq!(places(&settings), ["pool.idle"]);
        settings.pool.idle = settings.pool.start;
        assert!(places(&settings).is_empty());
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let mut value = serde_json::to_value(settings()).unwrap();
        assert_eq!(serde_json::from_value::<Settings>(value.clone()).unwrap(), settings());
        value["pool"]["totl"] = 3.into();
        let error = serde_json::from_value::<Settings>(value).unwrap_err().to_string();
        assert!(error.contains("totl"), "{error}");
    }
}
