//! Settings and names that tests start from.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use fabrique_core::id::{AppName, TrustDomain};
use fabrique_core::time::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::config::{Bytes, Isolation, PoolSettings, Settings};
use crate::pool::{Claim, Daemon, Holder, Phase, Rules, Uid};

pub(crate) fn settings() -> Settings {
    let digest = "0".repeat(63) + "1";
    serde_json::from_value(serde_json::json!({
        "namespace": "builders",
        "images": { "builder": format!("registry:80/buildkit@sha256:{digest}") },
        "gate": { "forbidden": "198.19.0.1:443", "needed": "registry:80" },
    }))
    .unwrap()
}

pub(crate) fn owner() -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: crate::pod::CONFIG_MAP.into(),
        uid: "5b4a".into(),
        ..Default::default()
    }
}

pub(crate) fn rules() -> Rules {
    Rules {
        pool: PoolSettings::default(),
        isolation: Isolation::Userns,
        generation: "now".into(),
        memory: Bytes::gibi(1),
        apps: std::collections::BTreeMap::new(),
        longest_pause: Duration::from_secs(30),
        me: Holder { worker: "worker-1".into(), incarnation: "now".into() },
    }
}

/// A daemon of the trust domain `atlas`, made and idle since second 1000, to be varied.
#[derive(Clone)]
pub(crate) struct AppDaemon(Daemon);

impl AppDaemon {
    pub(crate) fn address(host: u16) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(0xc612_8000 + u32::from(host)))
    }

    pub(crate) fn ready(seat: u16) -> Self {
        Self(Daemon {
            uid: Uid(format!("uid-{seat}")),
            version: "5".into(),
            seat,
            trust: TrustDomain::parse("atlas").unwrap(),
            isolation: Isolation::Userns,
            generation: "now".into(),
            memory: Bytes::gibi(1),
            phase: Phase::Ready(Self::address(seat)),
            node: Some("worker-1".into()),
            ending: false,
            claim: None,
            apps: vec![],
            builds: 0,
            created: Timestamp(1_000_000),
            idle_since: Timestamp(1_000_000),
            doubt: false,
        })
    }

    fn with(mut self, change: impl FnOnce(&mut Daemon)) -> Self {
        change(&mut self.0);
        self
    }

    pub(crate) fn apps(self, apps: &[&str]) -> Self {
        let apps = apps.iter().map(|app| AppName::parse(app).unwrap()).collect();
        self.with(|daemon| daemon.apps = apps)
    }

    pub(crate) fn claimed_by(self, worker: &str) -> Self {
        let holder = Holder { worker: worker.into(), incarnation: "now".into() };
        self.with(|daemon| daemon.claim = Some(Claim { holder, beat: 0 }))
    }

    pub(crate) fn builds(self, builds: u32) -> Self {
        self.with(|daemon| daemon.builds = builds)
    }

    pub(crate) fn idle_since(self, since: Timestamp) -> Self {
        self.with(|daemon| daemon.idle_since = since)
    }

    pub(crate) fn rootless(self) -> Self {
        self.with(|daemon| daemon.isolation = Isolation::Rootless)
    }

    pub(crate) fn trust(self, trust: &str) -> Self {
        self.with(|daemon| daemon.trust = TrustDomain::parse(trust).unwrap())
    }

    pub(crate) fn version(self, version: u64) -> Self {
        self.with(|daemon| daemon.version = version.to_string())
    }

    pub(crate) fn generation(self, generation: &str) -> Self {
        self.with(|daemon| daemon.generation = generation.into())
    }

    pub(crate) fn phase(self, phase: Phase) -> Self {
        self.with(|daemon| daemon.phase = phase)
    }

    pub(crate) fn on(self, host: u16) -> Self {
        self.with(|daemon| daemon.phase = Phase::Ready(Self::address(host)))
    }

    pub(crate) fn daemon(self) -> Daemon {
        self.0
    }
}
