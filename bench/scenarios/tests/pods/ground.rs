//! A stage whose builds run in pods of a namespace of its own, with a worker's account that has the rights of
//! `rbac::RULES` and no other.

use std::time::Duration;

use fabrique_bed::{Cluster, worker_account};
use fabrique_core::time::Timestamp;
use fabrique_kubernetes::labels;
use fabrique_kubernetes::network::{AllowList, Peer, Peers, Service, policies};
use fabrique_kubernetes::pki::{BuilderCa, Identity};
use fabrique_kubernetes::rbac::{RULES, Scope};
use fabrique_scenarios::{Isolation, until, verdicts};
use fabrique_stage::{Pods, Settings, Stage};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long pods that are over, or nobody's, may take to be gone, and those that stay to be at rest.
const AT_REST: Duration = Duration::from_mins(2);
/// How long anything may take here that a pod does.
const LONG: Duration = Duration::from_mins(2);

/// Two nodes run builders. A test that takes one of them away leaves the others no place.
static MACHINES: RwLock<()> = RwLock::const_new(());

enum Machines {
    Shared { _with_others: RwLockReadGuard<'static, ()> },
    Alone { _without_others: RwLockWriteGuard<'static, ()> },
}

/// What a test stands on.
pub(crate) struct Ground {
    pub(crate) stage: Stage,
    pub(crate) cluster: &'static Cluster,
    pub(crate) namespace: String,
    /// `builders.yaml`.
    pub(crate) settings: Value,
    made: Identity,
    list: AllowList,
    _machines: Machines,
}

impl Ground {
    /// Nothing when this machine carries no cluster, unless that is not to be forgiven. No policy is in force yet.
    pub(crate) async fn bare() -> Option<Self> {
        possible().then_some(())?;
        Some(Self::on(Machines::Shared { _with_others: MACHINES.read().await }).await)
    }

    /// With the policies in force.
    pub(crate) async fn new() -> Option<Self> {
        Self::with_list(AllowList::default()).await
    }

    /// With the policies of this list in force, which is the worker's too.
    pub(crate) async fn with_list(list: AllowList) -> Option<Self> {
        let mut ground = Self::bare().await?;
        ground.list = list;
        ground.enforce().await;
        Some(ground)
    }

    /// With the policies in force and the machines to itself: for a test that breaks one.
    pub(crate) async fn alone() -> Option<Self> {
        possible().then_some(())?;
        let ground = Self::on(Machines::Alone { _without_others: MACHINES.write().await }).await;
        ground.enforce().await;
        Some(ground)
    }

    async fn on(machines: Machines) -> Self {
        let cluster = Cluster::shared().await;
        let binary = fabrique_cluster_tests::image::binary().await.unwrap();
        // A cold pod takes its seconds, and a pod that cannot start has its reason told before the app is given up.
        let settings = Settings { patience: "60s".into(), backoff_base: "2s".into(), ..Settings::default() };
        let stage = Stage::builder().settings(settings).beside_pods(Cluster::CALLER);
        let stage = Box::pin(stage.start(binary)).await.unwrap();
        let namespace = format!("pods-{:08x}", rand::random::<u32>());
        let registry = stage.bed.registry().host();
        let settings = json!({
            "namespace": namespace,
            "images": { "builder": cluster.images().builder },
            "isolation": isolation(),
            "pool": { "total": 2, "per_domain": 2, "warm": 0, "start": "1m", "claim": "7s", "warm_wait": "1s" },
            "resources": { "cpu": "100m", "memory": "256Mi", "ephemeral_storage": null },
            "cache": { "size": "1Gi" },
            "daemon": { "http_registries": [registry] },
            "gate": { "needed": registry, "limit": "30s" },
            "patience": { "request": "2s", "ending": "1s", "longest_pause": "1s", "autopsy": "10s" },
        });
        let now = Timestamp(u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap());
        let made = BuilderCa::generate(now, Duration::from_hours(24)).unwrap();
        let ground = Self {
            stage,
            cluster,
            namespace,
            settings,
            made,
            list: AllowList::default(),
            _machines: machines,
        };
        ground.apply(&ground.account()).await;
        ground
    }

    /// Has workers that are started from now on build with these settings.
    pub(crate) async fn configure(&mut self) {
        let kubeconfig = self.cluster.service_account_kubeconfig(&self.namespace, "worker").await.unwrap();
        let list = (!self.list.hosts.is_empty()).then(|| json!(self.list).to_string());
        let pods = Pods {
            kubeconfig,
            builders: self.settings.to_string(),
            authority: self.made.certificate.clone(),
            key: self.made.key.expose_secret().to_owned(),
            allow_list: list,
        };
        self.stage.build_in(pods).unwrap();
    }

    /// Puts the policies in force.
    pub(crate) async fn enforce(&self) {
        let policies = policies::builders(&self.peers(), &self.list);
        self.apply(&list(&json!(policies))).await;
    }

    fn peers(&self) -> Peers {
        let here = || Peer::Addresses { cidrs: vec![ipnet::Ipv4Net::from(Cluster::CALLER).into()] };
        let port = |host: &str| host.rsplit(':').next().unwrap().parse().unwrap();
        let service = |host: &str| Service { at: here(), port: port(host), names: vec![] };
        let bed = &self.stage.bed;
        Peers {
            namespace: self.namespace.clone(),
            workers: here(),
            dns: Peer::Pods {
                namespace: "kube-system".into(),
                labels: [("k8s-app".to_owned(), "kube-dns".to_owned())].into(),
            },
            gitea: service(&bed.gitea().base_url()),
            registry: service(&bed.registry().host()),
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

    /// Makes what a manifest describes.
    pub(crate) async fn apply(&self, manifest: &Value) {
        self.cluster.apply(&manifest.to_string()).await.unwrap();
    }

    /// `kubectl` in the builders' namespace.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(&[&["--namespace", &self.namespace], args].concat()).await.unwrap()
    }

    /// Forbids the namespace to have any of a kind, until [`Self::permit`].
    pub(crate) async fn forbid(&self, kind: &str) {
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": { "name": "none", "namespace": self.namespace }, "spec": { "hard": { kind: "0" } },
        });
        self.apply(&quota).await;
    }

    /// Takes that back.
    pub(crate) async fn permit(&self) {
        self.kubectl(&["delete", "resourcequota", "none"]).await;
    }

    /// Has the API server ask somebody about each new Secret of the namespace who never answers: whoever makes one
    /// waits.
    pub(crate) async fn hold_secrets(&self) -> Held {
        let listener = TcpListener::bind((Cluster::CALLER, 0)).await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        let hook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": self.namespace },
            "webhooks": [{
                "name": "held.fabrique.test", "clientConfig": { "url": url }, "timeoutSeconds": 30,
                "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": self.namespace } },
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"],
                }],
            }],
        });
        self.apply(&hook).await;
        let held = Held { listener, cluster: self.cluster, name: self.namespace.clone() };
        let trial =
            ["create", "secret", "generic", "trial", "--dry-run=server", "--namespace", &self.namespace];
        let in_force = until("Secrets to be held", LONG, async || {
            let create = self.cluster.kubectl(&trial);
            tokio::pin!(create);
            tokio::select! {
                made = &mut create => anyhow::bail!("one was made: {made:?}"),
                asked = held.listener.accept() => drop(asked?),
            }
            // Refused, now that nobody is there to be asked.
            anyhow::ensure!(create.await.is_err(), "one was made");
            Ok(())
        });
        in_force.await.unwrap();
        held
    }

    /// The builders' pods.
    pub(crate) async fn pods(&self) -> Vec<Value> {
        self.listed("pods").await
    }

    /// What is the builders' of a kind.
    pub(crate) async fn listed(&self, kind: &str) -> Vec<Value> {
        let text = self.kubectl(&["get", kind, "--selector", &labels::builders(), "--output=json"]).await;
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().cloned().unwrap()
    }

    /// Waits for the one builder that there is to be as wanted, and returns it.
    pub(crate) async fn one_pod(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let found = until(what, LONG, async || match self.pods().await.as_slice() {
            [pod] if wanted(pod) => Ok(pod.clone()),
            pods => Err(anyhow::anyhow!("there are {pods:#?}")),
        });
        found.await.unwrap()
    }

    /// No builder is claimed, doubted, half made or half gone, and none has left its certificate.
    pub(crate) async fn no_orphans(&self) {
        let rest = until("the builders to be at rest", AT_REST, async || {
            Ok(verdicts::no_orphans(&self.pods().await, &self.listed("secrets").await)?)
        });
        rest.await.unwrap();
    }
}

/// Secrets of a namespace that are held up, until this is dropped.
pub(crate) struct Held {
    listener: TcpListener,
    cluster: &'static Cluster,
    name: String,
}

impl Held {
    /// Waits until somebody makes one, and holds that up until the answer is dropped.
    pub(crate) async fn reached(&self) -> TcpStream {
        let (asked, _) = tokio::time::timeout(LONG, self.listener.accept()).await.unwrap().unwrap();
        asked
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut kubectl = self.cluster.kubectl_command().into_std();
        let _ = kubectl.args(["delete", "validatingwebhookconfiguration", &self.name]).output();
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

fn list(items: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

#[expect(clippy::print_stdout, reason = "a test that is skipped says so where its output is captured")]
fn possible() -> bool {
    let Err(why) = Cluster::possible() else { return true };
    assert!(std::env::var_os("FABRIQUE_STRICT").is_none(), "no cluster: {why}");
    println!("SKIP: {why}");
    false
}

/// How builds are kept apart: `userns`, unless `FABRIQUE_ISOLATION` says `rootless`.
fn isolation() -> &'static str {
    let wanted = std::env::var("FABRIQUE_ISOLATION");
    let wanted = wanted.as_deref().unwrap_or(Isolation::Userns.as_str());
    let isolation = Isolation::parse(wanted);
    isolation.unwrap_or_else(|| panic!("FABRIQUE_ISOLATION is {wanted:?}: userns or rootless")).as_str()
}

/// A pod's uid.
pub(crate) fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap()
}

/// Whether a worker builds on a pod.
pub(crate) fn is_claimed(pod: &Value) -> bool {
    pod["metadata"]["annotations"][labels::CLAIM].is_string()
}
