//! The cluster with everything of the bench's overlay that is no workload: namespaces, accounts, rights, admission
//! and network policies.

use std::fs::File;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use fabrique_bed::{Cluster, wait_until};
use fabrique_cluster_tests::manifests::{self, BUILDER_IMAGE};
use fabrique_cluster_tests::turn;
use fabrique_core::id::TrustDomain;
use fabrique_core::time::Timestamp;
use fabrique_kubernetes::config::{Bytes, Isolation, Resources, Settings};
use fabrique_kubernetes::pod::{CONFIG_MAP, PodPlan, builder_pod, config_files, generation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DynamicObject, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// The namespace of builders in every overlay.
pub(crate) const BUILDS: &str = "fabrique-builds";
/// What the API server and the nodes may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// Kinds that wait for an image of fabrique.
const WORKLOADS: [&str; 2] = ["Deployment", "CronJob"];

/// A cluster that is prepared, or why there is none.
#[derive(Clone, Copy)]
pub(crate) struct Ground {
    pub(crate) cluster: &'static Cluster,
}

/// The network policies of the bench's overlay, for a test that takes some away. They are made again when this is
/// dropped, however the test went: the others rely on them.
pub(crate) struct Policies {
    ground: Ground,
    all: String,
}

impl Policies {
    pub(crate) async fn of(ground: Ground) -> Self {
        let bench = ground.bench().await.into_iter();
        let policies: Vec<Value> = bench.filter(|document| kind(document) == "NetworkPolicy").collect();
        let all = json!({ "apiVersion": "v1", "kind": "List", "items": policies }).to_string();
        Self { ground, all }
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        self.ground.put_back(&self.all);
    }
}

/// To be held by a test that has builder pods: a worker that is installed meanwhile would retire those that are not
/// its own.
pub(crate) async fn builders_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// To be held by a test while it relies on what Argo CD thinks of the health of Applications, or changes that.
pub(crate) async fn applications_health() -> MutexGuard<'static, ()> {
    static HEALTH: Mutex<()> = Mutex::const_new(());
    HEALTH.lock().await
}

/// The cluster that all tests share, prepared once.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so where its output is captured")]
pub(crate) async fn ground() -> Option<Ground> {
    static PREPARED: OnceCell<File> = OnceCell::const_new();
    if let Err(obstacle) = Cluster::possible() {
        assert!(std::env::var_os("FABRIQUE_STRICT").is_none(), "no cluster here: {obstacle}");
        println!("SKIP: {obstacle}");
        return None;
    }
    let ground = Ground { cluster: Cluster::shared().await };
    let prepare = async || {
        let turn = turn::take().await.unwrap();
        ground.prepare().await;
        turn
    };
    PREPARED.get_or_init(prepare).await;
    Some(ground)
}

impl Ground {
    async fn prepare(self) {
        // A cluster that stays may have an installation, whose worker would retire builders that are not its own.
        let away = ["delete", "deployments", "--all", "--namespace=fabrique", "--cascade=foreground"];
        self.cluster.kubectl(&away).await.unwrap();
        self.apply_bench(|document| !WORKLOADS.contains(&kind(document))).await;
        // Policies count from a moment after they are made.
        let mut refused = self.builder(Isolation::Rootless);
        refused["spec"]["hostNetwork"] = json!(true);
        let refused = || async { self.try_pod(&refused).await.err() };
        wait_until("the admission policies to be in force", SOON, refused).await.unwrap();
        let admitted = || async { self.try_pod(&self.builder(Isolation::Rootless)).await.ok() };
        wait_until("the list of images to be known", SOON, admitted).await.unwrap();
    }

    /// Makes those objects of the bench's overlay that are `wanted`, as they are after an installation.
    pub(crate) async fn apply_bench(self, wanted: impl Fn(&Value) -> bool) {
        let documents = self.bench().await;
        let (namespaces, rest): (Vec<_>, Vec<_>) = documents
            .into_iter()
            .filter(|document| wanted(document))
            .partition(|document| kind(document) == "Namespace");
        for list in [namespaces, rest].into_iter().filter(|list| !list.is_empty()) {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": list });
            self.cluster.apply(&list.to_string()).await.unwrap();
        }
    }

    /// Has Argo CD judge the health of Applications, as docs/app-of-apps.md says.
    pub(crate) async fn judge_applications(self) {
        let file = manifests::root().join("components/argocd/health/application-health.yaml");
        let file = file.display().to_string();
        let patch = ["patch", "configmap", "argocd-cm", "--namespace=argocd", "--patch-file", &file];
        self.cluster.kubectl(&patch).await.unwrap();
    }

    /// Makes what a test took away or changed, where nothing can be awaited and nobody told.
    pub(crate) fn put_back(self, yaml: &str) {
        let mut apply = self.cluster.kubectl_command().into_std();
        apply.args(["apply", "--server-side", "--force-conflicts", "--filename=-"]);
        let Ok(mut child) = apply.stdin(Stdio::piped()).stdout(Stdio::null()).spawn() else { return };
        if let Some(mut input) = child.stdin.take() {
            let _ = input.write_all(yaml.as_bytes());
        }
        let _ = child.wait();
    }

    /// The bench's overlay with the builder's image filled in.
    pub(crate) async fn bench(self) -> Vec<Value> {
        let text = manifests::overlay("bench").await.unwrap();
        manifests::documents(&text.replace(BUILDER_IMAGE, &self.cluster.images().builder)).unwrap()
    }

    /// A client of the API server. Each test has a runtime of its own, and so needs one of its own.
    pub(crate) async fn client(self) -> kube::Client {
        client(self.cluster.kubeconfig()).await
    }

    /// The bench's settings of builders.
    pub(crate) fn settings(self) -> Settings {
        let text = std::fs::read_to_string(manifests::root().join("overlays/bench/config/builders.yaml"));
        serde_saphyr::from_str(&text.unwrap().replace(BUILDER_IMAGE, &self.cluster.images().builder)).unwrap()
    }

    /// A pod as the worker makes it, with the bench's settings.
    pub(crate) fn builder(self, isolation: Isolation) -> Value {
        self.builder_with(&self.settings(), isolation, 0, "made-up")
    }

    /// A pod as the worker makes it, in `seat`; `owner` is the uid of what all builders belong to.
    pub(crate) fn builder_with(
        self,
        settings: &Settings,
        isolation: Isolation,
        seat: u16,
        owner: &str,
    ) -> Value {
        let plan = PodPlan {
            settings,
            isolation,
            seat,
            trust: &TrustDomain::parse("atlas").unwrap(),
            resources: Resources { memory: Bytes::mebi(512), ..settings.resources },
            avoid: &[],
            secret: &format!("builder-{seat}-tls"),
            owner: OwnerReference {
                api_version: "v1".into(),
                kind: "ConfigMap".into(),
                name: CONFIG_MAP.into(),
                uid: owner.into(),
                ..Default::default()
            },
            since: Timestamp(0),
            reason: "it is configured",
        };
        let generation = generation(settings, isolation, &config_files(settings).unwrap());
        serde_json::to_value(builder_pod(&plan, &generation)).unwrap()
    }

    /// Whether the API server would make this pod; if not, what it says.
    pub(crate) async fn try_pod(self, pod: &Value) -> Result<(), String> {
        try_object(self.client().await, pod).await
    }
}

/// A document's kind.
pub(crate) fn kind(document: &Value) -> &str {
    document["kind"].as_str().unwrap_or_default()
}

/// A client with a kubeconfig.
pub(crate) async fn client(kubeconfig: &std::path::Path) -> kube::Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

/// Whether the API server would make an object of a namespace; if not, what it says.
pub(crate) async fn try_object(client: kube::Client, object: &Value) -> Result<(), String> {
    let (group, version) = {
        let api_version = object["apiVersion"].as_str().unwrap();
        api_version.split_once('/').unwrap_or(("", api_version))
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind(object)));
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    let object: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    match api.create(&dry_run, &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(error) => panic!("the API server does not answer: {error}"),
    }
}
