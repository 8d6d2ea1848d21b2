//! A running receiver, deliveries for it, and stand-ins for what it is wired to.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use fabrique_core::id::{AppName, BranchName, RepoName};
use fabrique_core::time::Timestamp;
use fabrique_core::work::Generation;
use fabrique_gitea::Deliveries;
use fabrique_ports::bus::{Event, Events, WakeCause, Wakes};
use fabrique_ports::delivery::Push;
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use fabrique_receiver::{
    Dependencies, Drained, Followers, Receiver, ReceiverConfig, SubscriptionIndex, Subscriptions, TaskEnded,
};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const SECRET: &str = "s3cret";
pub(crate) const OLD_SECRET: &str = "0ld";

pub(crate) fn app(name: &str) -> AppName {
    AppName::parse(name).unwrap()
}

/// Registrations in memory: what stands on `cluster/apps`, and what was read of it last. How they are read from there
/// is the binary's; the journeys play it.
#[derive(Default)]
pub(crate) struct FakeRegistrations {
    index: Mutex<SubscriptionIndex>,
    on_server: Mutex<Vec<(AppName, RepoName, BranchName)>>,
    touched: Mutex<BTreeSet<AppName>>,
    /// What the first reading had seen of pushes that are delivered after it, by their new heads.
    seen: Mutex<HashMap<String, AppName>>,
    pub(crate) loaded: AtomicBool,
    pub(crate) reloads: AtomicUsize,
    pub(crate) broken: AtomicBool,
    /// Whether it cannot be found out what a push changed that the first reading had seen.
    pub(crate) missed_broken: AtomicBool,
    /// How long a reload takes, in milliseconds.
    pub(crate) slow: AtomicU64,
}

impl FakeRegistrations {
    pub(crate) fn with(apps: &[(&str, &str, &str)]) -> Arc<Self> {
        let registrations = Self::default();
        for (name, repo, branch) in apps {
            registrations.register(name, repo, branch);
        }
        *registrations.index.lock().unwrap() = registrations.indexed();
        registrations.touched.lock().unwrap().clear();
        registrations.loaded.store(true, Ordering::SeqCst);
        Arc::new(registrations)
    }

    /// Adds a registration on the server's side.
    pub(crate) fn register(&self, name: &str, repo: &str, branch: &str) {
        let entry = (app(name), RepoName::parse(repo).unwrap(), BranchName::parse(branch).unwrap());
        self.on_server.lock().unwrap().push(entry);
        self.touch(name);
    }

    /// Changes something of an app on the server's side.
    pub(crate) fn touch(&self, name: &str) {
        self.touched.lock().unwrap().insert(app(name));
    }

    /// Has the first reading have seen a push, whose new head is `after`, that changed something of an app.
    pub(crate) fn had_seen(&self, after: &str, name: &str) {
        self.seen.lock().unwrap().insert(after.to_owned(), app(name));
    }

    pub(crate) fn count(&self) -> usize {
        self.reloads.load(Ordering::SeqCst)
    }

    fn indexed(&self) -> SubscriptionIndex {
        SubscriptionIndex::new(self.on_server.lock().unwrap().clone())
    }
}

#[async_trait]
impl Subscriptions for FakeRegistrations {
    fn followers(&self, repo: &RepoName, branch: &BranchName) -> Followers {
        self.index.lock().unwrap().followers(repo, branch)
    }

    fn is_apps_repo(&self, repo: &RepoName, branch: &BranchName) -> bool {
        repo.same_as(&RepoName::parse("cluster/apps").unwrap()) && branch.as_str() == "main"
    }

    fn loaded(&self) -> bool {
        self.loaded.load(Ordering::SeqCst)
    }

    async fn reload(&self) -> PortResult<BTreeSet<AppName>> {
        self.reloads.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(self.slow.load(Ordering::SeqCst))).await;
        if self.broken.load(Ordering::SeqCst) {
            return Err(PortError::new(Peer::Git, Fault::Transient, "the forge is away"));
        }
        *self.index.lock().unwrap() = self.indexed();
        self.loaded.store(true, Ordering::SeqCst);
        Ok(std::mem::take(&mut *self.touched.lock().unwrap()))
    }

    async fn missed(&self, push: &Push) -> PortResult<BTreeSet<AppName>> {
        if self.missed_broken.load(Ordering::SeqCst) {
            return Err(PortError::new(Peer::Git, Fault::Transient, "the histories cannot be compared"));
        }
        Ok(self.seen.lock().unwrap().get(&push.after).cloned().into_iter().collect())
    }
}

/// A bus with faults that a real server cannot be made to have: one app of several whose wake is never acknowledged,
/// an acknowledgement that takes as long as a test wants, events that are stuck while wakes are not. It counts what is
/// at work at once, which a server does not see.
#[derive(Default)]
pub(crate) struct FaultyBus {
    pub(crate) woken: Mutex<HashMap<AppName, usize>>,
    pub(crate) events: Mutex<Vec<Event>>,
    /// Apps whose wake is never acknowledged.
    pub(crate) deaf: Mutex<BTreeSet<AppName>>,
    /// How long an acknowledgement takes, in milliseconds.
    pub(crate) slow: AtomicU64,
    /// Whether events are never acknowledged.
    pub(crate) events_stuck: AtomicBool,
    /// Whether publishing an event panics, as a defect of the adapter would.
    pub(crate) events_panic: AtomicBool,
    at_once: AtomicUsize,
    pub(crate) most_at_once: AtomicUsize,
}

impl FaultyBus {
    pub(crate) fn wakes_of(&self, name: &str) -> usize {
        self.woken.lock().unwrap().get(&app(name)).copied().unwrap_or_default()
    }
}

#[async_trait]
impl Wakes for FaultyBus {
    async fn wake(&self, app: &AppName, _: &WakeCause) -> PortResult<Generation> {
        let now = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(self.slow.load(Ordering::SeqCst))).await;
        let deaf = self.deaf.lock().unwrap().contains(app);
        if deaf {
            std::future::pending::<()>().await;
        }
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        *self.woken.lock().unwrap().entry(app.clone()).or_default() += 1;
        Ok(Generation(1))
    }
}

#[async_trait]
impl Events for FaultyBus {
    async fn publish(&self, event: &Event) -> PortResult<()> {
        if self.events_stuck.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        assert!(!self.events_panic.load(Ordering::SeqCst), "an event that nobody expected");
        self.events.lock().unwrap().push(event.clone());
        Ok(())
    }

    async fn tail(
        &self,
        _app: Option<&AppName>,
        _since: Option<Timestamp>,
    ) -> PortResult<BoxStream<'static, PortResult<Event>>> {
        Ok(futures::stream::empty().boxed())
    }
}

/// A clock that stands, and numbers that count across all receivers of this process: the bus takes equal
/// event ids for one event.
struct Counting;

fn count() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl fabrique_ports::Ambient for Counting {
    fn now(&self) -> Timestamp {
        Timestamp(1_700_000_000_000)
    }

    fn ulid(&self) -> String {
        format!("{:026}", count())
    }

    fn jitter(&self) -> f64 {
        0.5
    }

    fn random(&self) -> [u8; 16] {
        (u128::from(count()) + (1 << 100)).to_be_bytes()
    }
}

/// The bounds of a test: short, so that reaching them is quick.
pub(crate) fn quick() -> ReceiverConfig {
    ReceiverConfig {
        header_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(500),
        wake_timeout: Duration::from_millis(500),
        answer_timeout: Duration::from_secs(4),
        reload_spacing: Duration::from_millis(20),
        // Long: readings are counted.
        reload_age: Duration::from_secs(60),
        drain_timeout: Duration::from_secs(5),
        ..ReceiverConfig::default()
    }
}

/// What a receiver is wired to: Gitea's reader with two secrets, this bus, these registrations.
pub(crate) fn dependencies<B>(bus: Arc<B>, apps: Arc<FakeRegistrations>) -> Dependencies
where
    B: Wakes + Events + 'static,
{
    Dependencies {
        reader: Arc::new(Deliveries::new(vec![SECRET.into(), OLD_SECRET.into()]).unwrap()),
        wakes: Arc::clone(&bus) as Arc<dyn Wakes>,
        events: bus,
        subscriptions: apps,
        ambient: Arc::new(Counting),
        connected: Box::new(|| true),
        metrics: Box::new(|| "up 1\n".to_owned()),
    }
}

/// A receiver that serves.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    pub(crate) shutdown: CancellationToken,
    pub(crate) served: JoinHandle<Result<Drained, TaskEnded>>,
    pub(crate) connected: Arc<AtomicBool>,
}

impl Running {
    pub(crate) async fn start<B>(config: ReceiverConfig, bus: Arc<B>, apps: Arc<FakeRegistrations>) -> Self
    where
        B: Wakes + Events + 'static,
    {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let connected = Arc::new(AtomicBool::new(true));
        let probe = Arc::clone(&connected);
        let mut deps = dependencies(bus, apps);
        deps.connected = Box::new(move || probe.load(Ordering::SeqCst));
        let receiver = Receiver::new(config, deps).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(receiver.serve(listener, shutdown.clone()));
        let client = Client::builder().no_proxy().build().unwrap();
        Self { address, client, shutdown, served, connected }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A signed delivery, ready to be changed or sent.
    pub(crate) fn delivery(&self, body: &Value) -> RequestBuilder {
        let body = body.to_string();
        self.signed("push", SECRET, body.into_bytes())
    }

    pub(crate) fn signed(&self, event: &str, secret: &str, body: Vec<u8>) -> RequestBuilder {
        self.client
            .post(self.url("/webhook"))
            .header("content-type", "application/json")
            .header("x-gitea-event", event)
            .header("x-gitea-delivery", "f6266f16-1bf3-46a5-9ea4-602e06ead473")
            .header("x-gitea-signature", signature(secret, &body))
            .body(body)
    }

    pub(crate) async fn push(&self, repo: &str, branch: &str) -> (u16, Value) {
        self.send(self.delivery(&push(repo, branch))).await
    }

    pub(crate) async fn send(&self, request: RequestBuilder) -> (u16, Value) {
        read(request.send().await.unwrap()).await
    }
}

pub(crate) async fn read(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

pub(crate) fn signature(secret: &str, body: &[u8]) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap().chain_update(body);
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn push(repo: &str, branch: &str) -> Value {
    json!({
        "ref": format!("refs/heads/{branch}"),
        "before": "1b1ddb306957aceb3672cbcba75a65f543ea614f",
        "after": "3516595ff66b18ec14a1f7218554c41c3e9fb4c5",
        "repository": { "full_name": repo, "clone_url": "http://evil.example.org/x.git" },
    })
}
