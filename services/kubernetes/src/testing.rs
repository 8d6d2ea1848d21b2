//! Settings and names that tests start from.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabrique_core::app::BuildResources;
use fabrique_core::id::{AppName, TrustDomain};
use fabrique_core::time::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tracing::field::{Field, Visit};
use tracing::span;

use crate::config::{Bytes, Isolation, PoolSettings, Resources, Settings};
use crate::pod::Generation;
use crate::pool::{Claim, Daemon, Holder, Phase, Pool, Rules, Ticket, Uid};

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

pub(crate) fn generation_named(name: &str) -> Generation {
    let files = crate::pod::config_files(&settings()).unwrap();
    let mut generation = crate::pod::generation(&settings(), Isolation::Userns, &files);
    generation.name = name.into();
    generation
}

fn resources() -> Resources {
    Resources { memory: Bytes::gibi(1), ..Resources::default() }
}

/// Of whoever waits for a daemon: `worker.patience` as it is by default.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

impl Pool {
    /// Joins the queue, for an app that wishes for nothing beyond the others.
    pub(crate) fn join(&mut self, app: AppName, trust: TrustDomain, now: Timestamp) -> Ticket {
        self.ask(app, trust, &BuildResources::default(), PATIENCE, now)
    }
}

pub(crate) fn rules() -> Rules {
    Rules {
        pool: PoolSettings::default(),
        isolation: Isolation::Userns,
        generation: "now".into(),
        since: Timestamp(1_000_000),
        resources: resources(),
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
            reason: None,
            generation: "now".into(),
            since: Timestamp(1_000_000),
            start_limit: None,
            resources: resources(),
            phase: Phase::Ready(Self::address(seat)),
            held_up: None,
            node: Some("worker-1".into()),
            ending: false,
            claim: None,
            claim_limit: None,
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

    pub(crate) fn resources(self, resources: Resources) -> Self {
        self.with(|daemon| daemon.resources = resources)
    }

    pub(crate) fn apps(self, apps: &[&str]) -> Self {
        let apps = apps.iter().map(|app| AppName::parse(app).unwrap()).collect();
        self.with(|daemon| daemon.apps = apps)
    }

    pub(crate) fn claimed_by(self, worker: &str) -> Self {
        let holder = Holder { worker: worker.into(), incarnation: "now".into() };
        self.with(|daemon| daemon.claim = Some(Claim { holder, beat: 0 }))
    }

    /// Of a worker that may be silent for so long.
    pub(crate) fn claim_limit(self, limit: Duration) -> Self {
        self.with(|daemon| daemon.claim_limit = Some(limit))
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

    /// Made by a worker that was started then.
    pub(crate) fn since(self, since: Timestamp) -> Self {
        self.with(|daemon| daemon.since = since)
    }

    /// Made by a worker that lets it take so long to become ready.
    pub(crate) fn start_limit(self, limit: Duration) -> Self {
        self.with(|daemon| daemon.start_limit = Some(limit))
    }

    pub(crate) fn phase(self, phase: Phase) -> Self {
        self.with(|daemon| daemon.phase = phase)
    }

    /// On a node that has waited for a volume since then.
    pub(crate) fn held_up(self, since: Timestamp) -> Self {
        self.with(|daemon| (daemon.phase, daemon.held_up) = (Phase::Starting(None), Some(since)))
    }

    pub(crate) fn on(self, host: u16) -> Self {
        self.with(|daemon| daemon.phase = Phase::Ready(Self::address(host)))
    }

    pub(crate) fn daemon(self) -> Daemon {
        self.0
    }
}

/// Everything that is logged, at every level.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<String>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

impl Visit for &Log {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push_str(&format!("{value:?}\n"));
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        attributes.record(&mut &*self);
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut &*self);
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut &*self);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A server that answers everything with `body`.
pub(crate) async fn answering(body: &'static str) -> Client {
    rustls::crypto::ring::default_provider().install_default().ok();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut request, mut part) = (Vec::new(), [0; 4096]);
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut part).await {
                    Ok(0) | Err(_) => break,
                    Ok(length) => request.extend_from_slice(&part[..length]),
                }
            }
            let length = body.len();
            let answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).await.ok();
        }
    });
    Client::try_from(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap()
}
