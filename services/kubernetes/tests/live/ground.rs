//! A namespace for each test, with its policies and a worker's account that has the rights of `rbac::RULES` and no
//! other.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fabrique_bed::{Cluster, wait_until, worker_account};
use fabrique_core::app::BuildResources;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{AppName, TrustDomain};
use fabrique_core::time::Timestamp;
use fabrique_kubernetes::KubernetesPlacement;
use fabrique_kubernetes::config::{Isolation, Settings};
use fabrique_kubernetes::network::{AllowList, Peer, Peers, Service, policies};
use fabrique_kubernetes::pki::{BuilderCa, ClientCertificates};
use fabrique_kubernetes::rbac::{RULES, Scope};
use fabrique_ports::Ambient;
use fabrique_ports::builder::{BuildFailure, Need, Placed, Placement, PlacementLease};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) const REGISTRY: &str = "198.18.0.2";
const GITEA: &str = "198.18.0.3";
const TESTS: &str = "198.18.0.254";

/// The clock and randomness of the machine.
pub(crate) struct Machine;

impl Ambient for Machine {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Timestamp(u64::try_from(since.as_millis()).unwrap())
    }

    fn ulid(&self) -> String {
        hex(&self.random())
    }

    fn jitter(&self) -> f64 {
        rand::random()
    }

    fn random(&self) -> [u8; 16] {
        rand::random()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How builds are kept apart in tests that do not say it: `userns`, unless `FABRIQUE_ISOLATION` says `rootless`.
pub(crate) fn isolation() -> &'static str {
    let wanted = std::env::var("FABRIQUE_ISOLATION");
    let wanted = wanted.as_deref().unwrap_or(Isolation::Userns.as_str());
    let isolation = Isolation::parse(wanted);
    isolation.unwrap_or_else(|| panic!("FABRIQUE_ISOLATION is {wanted:?}: userns or rootless")).as_str()
}

/// Two nodes run builders. A test that takes one of them away, or the API server, leaves the others no place.
static MACHINES: RwLock<()> = RwLock::const_new(());

enum Machines {
    Shared { _with_others: RwLockReadGuard<'static, ()> },
    Alone { _without_others: RwLockWriteGuard<'static, ()> },
}

/// What a test stands on.
pub(crate) struct Ground {
    pub(crate) cluster: &'static Cluster,
    pub(crate) namespace: String,
    pub(crate) settings: Settings,
    pub(crate) ca: Arc<BuilderCa>,
    _machines: Machines,
}

impl Ground {
    /// Nothing when this machine carries no cluster, unless that is not to be forgiven.
    pub(crate) async fn new(isolation: &str) -> Option<Self> {
        Self::on(isolation, Machines::Shared { _with_others: MACHINES.read().await }).await
    }

    async fn on(isolation: &str, machines: Machines) -> Option<Self> {
        if let Err(why) = Cluster::possible() {
            assert!(std::env::var_os("FABRIQUE_STRICT").is_none(), "no cluster: {why}");
            println!("SKIP: {why}");
            return None;
        }
        let cluster = Cluster::shared().await;
        let namespace = format!("builders-{}", &hex(&rand::random::<[u8; 4]>()));
        let made = BuilderCa::generate(Machine.now(), Duration::from_hours(24)).unwrap();
        let ca = Arc::new(BuilderCa::from_pem(&made.certificate, &made.key, Machine.now()).unwrap());
        let settings = serde_json::from_value(json!({
            "namespace": namespace,
            "images": { "builder": cluster.images().builder },
            "isolation": isolation,
            "pool": { "total": 2, "per_domain": 2, "warm": 0, "start": "1m", "claim": "4s", "warm_wait": "1s" },
            "resources": { "cpu": "100m", "memory": "256Mi", "ephemeral_storage": null },
            "cache": { "size": "1Gi" },
            "gate": { "needed": "registry:80", "limit": "30s" },
            "patience": { "request": "1s", "ending": "1s", "longest_pause": "1s", "autopsy": "10s" },
        }))
        .unwrap();
        let ground = Self { cluster, namespace, settings, ca, _machines: machines };
        ground.apply(&ground.account()).await;
        Some(ground)
    }

    /// With the policies in force.
    pub(crate) async fn with_policies(isolation: &str) -> Option<Self> {
        Self::with_list(isolation, &AllowList::default()).await
    }

    /// With the machines to itself, and no policy yet.
    pub(crate) async fn alone(isolation: &str) -> Option<Self> {
        Self::on(isolation, Machines::Alone { _without_others: MACHINES.write().await }).await
    }

    /// With the policies in force and the machines to itself: for a test that breaks one.
    pub(crate) async fn alone_with_policies(isolation: &str) -> Option<Self> {
        let ground = Self::alone(isolation).await?;
        ground.enforce(&AllowList::default()).await;
        Some(ground)
    }

    /// With the policies of this list in force.
    pub(crate) async fn with_list(isolation: &str, list: &AllowList) -> Option<Self> {
        let ground = Self::new(isolation).await?;
        ground.enforce(list).await;
        Some(ground)
    }

    /// Makes the policies of this list.
    pub(crate) async fn enforce(&self, list: &AllowList) {
        let policies = policies::builders(&self.peers(), list);
        self.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": policies })).await;
    }

    fn peers(&self) -> Peers {
        let host = |address: &str| Peer::Addresses { cidrs: vec![address.parse::<IpAddr>().unwrap().into()] };
        let service = |address: &str, port| Service { at: host(address), port, names: vec![] };
        Peers {
            namespace: self.namespace.clone(),
            workers: host(TESTS),
            dns: Peer::Pods {
                namespace: "kube-system".into(),
                labels: [("k8s-app".to_owned(), "kube-dns".to_owned())].into(),
            },
            gitea: service(GITEA, 3000),
            registry: service(REGISTRY, 80),
            egress_proxy: None,
        }
    }

    fn account(&self) -> Value {
        let rules = |scope: Scope| -> Vec<Value> {
            let rules = RULES.iter().filter(|rule| rule.scope == scope);
            let rule = rules.map(|rule| {
                json!({ "apiGroups": [rule.group], "resources": [rule.resource], "verbs": rule.verbs })
            });
            rule.collect()
        };
        worker_account(&self.namespace, &rules(Scope::Namespace), &rules(Scope::Cluster))
    }

    async fn apply(&self, manifest: &Value) {
        self.cluster.apply(&manifest.to_string()).await.unwrap();
    }

    pub(crate) async fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(&[&["--namespace", &self.namespace], args].concat()).await.unwrap()
    }

    /// Some JSON of a pod.
    pub(crate) async fn pod(&self, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "pod", name, "--output", "json"]).await).unwrap()
    }

    /// The node that a pod runs on.
    pub(crate) async fn node(&self, name: &str) -> String {
        self.pod(name).await["spec"]["nodeName"].as_str().unwrap().to_owned()
    }

    /// Which pod has this name, if any.
    pub(crate) async fn uid(&self, name: &str) -> String {
        self.kubectl(&["get", "pod", name, "--ignore-not-found", "--output", "jsonpath={.metadata.uid}"])
            .await
    }

    /// The names of all pods.
    pub(crate) async fn pods(&self) -> Vec<String> {
        let list: Value =
            serde_json::from_str(&self.kubectl(&["get", "pods", "--output", "json"]).await).unwrap();
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(name).collect()
    }

    pub(crate) async fn admin(&self) -> Client {
        client(self.cluster.kubeconfig()).await
    }

    /// A client with a worker's rights.
    pub(crate) async fn worker(&self) -> Client {
        self.client_of("worker").await
    }

    /// A client with the rights of an account of the namespace.
    pub(crate) async fn client_of(&self, account: &str) -> Client {
        let kubeconfig = self.cluster.service_account_kubeconfig(&self.namespace, account).await.unwrap();
        client(&kubeconfig).await
    }

    /// A worker's placement, with a worker's rights.
    pub(crate) async fn placement(&self, worker: &str) -> KubernetesPlacement {
        self.placement_with(self.settings.clone(), worker).await
    }

    /// The same, of a worker that is configured otherwise.
    pub(crate) async fn placement_with(&self, settings: Settings, worker: &str) -> KubernetesPlacement {
        let client = self.worker().await;
        KubernetesPlacement::start(client, settings, self.ca.clone(), worker, Arc::new(Machine))
            .await
            .unwrap()
    }

    pub(crate) fn certificates(&self) -> ClientCertificates {
        ClientCertificates::new(self.ca.clone(), "worker-1".into())
    }

    /// What the worker's account has asked for: verb and resource.
    pub(crate) fn asked(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.audited("worker")
            .map(|event| (text(&event["verb"]), text(&event["objectRef"]["resource"])))
            .collect()
    }

    /// How many requests the worker's account has made, but for its watch.
    pub(crate) fn requests(&self) -> usize {
        self.asked_by("worker")
    }

    /// How many requests an account of the namespace has made, but for watches.
    pub(crate) fn asked_by(&self, account: &str) -> usize {
        self.audited(account).filter(|event| event["verb"] != "watch").count()
    }

    fn audited(&self, account: &str) -> impl Iterator<Item = Value> {
        let user = format!("system:serviceaccount:{}:{account}", self.namespace);
        let log = std::fs::read_to_string(self.cluster.audit_log()).unwrap();
        let events: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        events.into_iter().filter(move |event| {
            let ended = event["stage"] == "ResponseComplete" || event["verb"] == "watch";
            ended && event["user"]["username"] == user.as_str()
        })
    }
}

/// Pods do not outlive their namespace, whether the test went well or not.
impl Drop for Ground {
    fn drop(&mut self) {
        for kind in ["namespace", "clusterrole", "clusterrolebinding"] {
            let mut kubectl = self.cluster.kubectl_command().into_std();
            kubectl.args(["delete", "--wait=false", kind, &self.namespace]);
            let _ = kubectl.output();
        }
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

pub(crate) fn need(app: &str, patience: u64) -> Need {
    Need {
        app: AppName::parse(app).unwrap(),
        trust: TrustDomain::parse("atlas").unwrap(),
        resources: BuildResources::default(),
        timeout: Duration::from_secs(1),
        patience: Duration::from_secs(patience),
    }
}

pub(crate) async fn lease(placement: &KubernetesPlacement, app: &str) -> PlacementLease {
    lease_for(placement, need(app, 60)).await
}

pub(crate) async fn lease_for(placement: &KubernetesPlacement, need: Need) -> PlacementLease {
    match placement.acquire(&need).await.unwrap() {
        Placed::Lease(lease) => lease,
        Placed::Full(why) | Placed::Refused(why) => panic!("no lease: {why}"),
    }
}

/// How a build fails whose daemon is gone.
pub(crate) fn lost() -> BuildFailure {
    BuildFailure::new(FailureKind::Infrastructure, "was lost during the build")
}

/// Waits for a condition on the cluster.
pub(crate) async fn eventually(what: &str, holds: impl AsyncFnMut() -> bool) {
    // One look at a time, which may count them.
    let holds = Mutex::new(holds);
    let look = || async {
        let mut holds = holds.lock().await;
        holds().await.then_some(())
    };
    wait_until(what, Duration::from_secs(60), look).await.unwrap();
}
