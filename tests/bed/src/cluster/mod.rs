//! A Kubernetes cluster of three nodes on this machine.
//!
//! Every node is a set of namespaces (network, processes, mounts) with a container runtime, a kubelet, kube-proxy
//! and kube-router of its own; a router joins them with the registry, Gitea and NATS, and with the caller, who
//! reaches pods, Services and the API server by their addresses. Nothing reaches further than that.

mod argo;
mod cgroups;
mod control;
mod images;
mod kubectl;
mod namespace;
mod network;
mod node;
mod obstacle;
mod pki;
mod plan;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use tokio::sync::OnceCell;
use tokio::{join, try_join};

use crate::folder::{self, Folder};
use crate::gitea::{Gitea, GiteaOptions};
use crate::install::{self, Cache, Product};
use crate::nats::{Nats, NatsOptions};
use crate::peer::Peer;
use crate::registry::Registry;
use crate::report::{Reporting, report_on_panic};
use crate::site::Site;
use crate::template::fill;

pub use argo::Argo;
use control::Setting;
pub use images::Images;
use kubectl::Kubectl;
use namespace::Namespace;
use node::{Machine, Starting};
pub use obstacle::Obstacle;
use pki::Pki;
use plan::NODES;

const BASE: &str = include_str!("../../config/cluster/base.yaml");
const NODES_READY: Duration = Duration::from_secs(90);

/// What a cluster has beyond the usual.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// Argo CD.
    pub argocd: bool,
    /// The bus's options.
    pub nats: NatsOptions,
    /// The forge's options.
    pub gitea: GiteaOptions,
}

/// A running cluster with a registry, Gitea and NATS beside it. Dropping it ends everything.
#[derive(Debug)]
pub struct Cluster {
    parts: Arc<Parts>,
    kubectl: Kubectl,
    pki: Pki,
    images: Images,
    folder: Folder,
    /// There is one cluster on a machine at a time: its addresses are always the same.
    _turn: File,
}

impl Cluster {
    /// Whether this machine can carry a cluster; what packages bring is not looked for.
    ///
    /// # Errors
    /// When it cannot, with the reason.
    pub fn possible() -> Result<(), Obstacle> {
        obstacle::look()
    }

    /// The cluster that this process's tests share, with Argo CD, started on first use. Its processes must be left
    /// as they are, and each test works in namespaces of its own.
    ///
    /// # Panics
    /// When it cannot be started, with the reason.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        let options = ClusterOptions { argocd: true, ..ClusterOptions::default() };
        let cluster = SHARED.get_or_try_init(|| Box::pin(Self::start(options))).await;
        cluster.unwrap_or_else(|error| panic!("the shared cluster did not start: {error:#}"))
    }

    /// Builds what the cache lacks (a quarter of an hour, the first time), waits for its turn, starts everything
    /// and returns once every node is ready and names resolve.
    ///
    /// # Errors
    /// When something cannot be built or started, with its name and the end of its log.
    pub async fn start(options: ClusterOptions) -> Result<Self> {
        let cache = Cache::open()?;
        let (preparing, argocd) = (cache.clone(), options.argocd);
        let turn = tokio::task::spawn_blocking(move || prepare(&preparing, argocd));
        let turn = turn.await.context("preparing")??;
        let folder = Folder::create()?;
        let pki_folder = subfolder(folder.path(), "pki")?;
        let pki = tokio::task::spawn_blocking(move || Pki::create(&pki_folder));
        let grounds = Grounds::lay(folder.path());
        let (pki, grounds) = join!(pki, grounds);
        let (pki, grounds) = (pki.context("making certificates")??, grounds?);
        let kubectl = Kubectl {
            program: cache.folder(Product::Kubectl).join("kubectl"),
            kubeconfig: pki.kubeconfig("admin"),
            home: subfolder(folder.path(), "home")?,
        };
        let (parts, images) =
            Box::pin(populate(&cache, &pki, &kubectl, grounds, folder.path(), options)).await?;
        let parts = Arc::new(parts);
        report_on_panic(parts.clone());
        let cluster = Self { parts, kubectl, pki, images, folder, _turn: turn };
        cluster.wait_for_nodes().await?;
        Ok(cluster)
    }

    /// The administrator's kubeconfig, complete in itself.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubectl.kubeconfig
    }

    /// Runs `kubectl` as the administrator and returns what it printed.
    ///
    /// # Errors
    /// When it fails, with what it said, or takes over two minutes.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl.run(args, "").await
    }

    /// Makes what a YAML text describes, and changes what is there already.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn apply(&self, yaml: &str) -> Result<()> {
        self.kubectl.apply(yaml).await
    }

    /// A kubeconfig with a fresh token of a service account, valid for a day. Its context names the account's
    /// namespace.
    ///
    /// # Errors
    /// When there is no such account.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.service_account_token(namespace, name).await?;
        let path = self.folder.path().join(format!("{namespace}.{name}.kubeconfig"));
        fs::write(&path, self.pki.token_kubeconfig(name, namespace, &token))?;
        Ok(path)
    }

    /// A fresh token of a service account, valid for a day.
    ///
    /// # Errors
    /// When there is no such account.
    pub async fn service_account_token(&self, namespace: &str, name: &str) -> Result<String> {
        let args = ["create", "token", name, "--namespace", namespace, "--duration=24h"];
        Ok(self.kubectl(&args).await?.trim().to_owned())
    }

    /// What the registry holds from the start.
    #[must_use]
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// The forge, `http://gitea:3000` to pods and its address to everybody.
    #[must_use]
    pub fn gitea(&self) -> &Gitea {
        &self.parts.gitea
    }

    /// The registry, `registry:80` to pods and nodes.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.parts.registry
    }

    /// The bus, `nats:4222` to pods.
    #[must_use]
    pub fn nats(&self) -> &Nats {
        &self.parts.nats
    }

    /// Argo CD.
    ///
    /// # Panics
    /// When the cluster was started without.
    #[must_use]
    pub fn argocd(&self) -> &Argo {
        self.parts.argocd.as_ref().unwrap_or_else(|| panic!("this cluster was started without Argo CD"))
    }

    /// The cluster's own folder, for files that should go when it goes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The last lines of every process's log.
    #[must_use]
    pub fn logs(&self) -> String {
        self.parts.report()
    }

    /// Ends everything and removes what it used.
    ///
    /// # Errors
    /// When a process cannot be ended or a control group not be removed.
    pub async fn stop(self) -> Result<()> {
        self.parts.stop().await
    }

    async fn wait_for_nodes(&self) -> Result<()> {
        let wait = format!("--timeout={}s", NODES_READY.as_secs());
        self.kubectl(&["wait", "node", "--all", "--for=condition=Ready", &wait]).await?;
        let rollout = ["rollout", "status", "deployment/coredns", "--namespace=kube-system", &wait];
        self.kubectl(&rollout).await.map(drop)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.folder.keep();
        }
    }
}

/// Builds what is missing, waits for the turn, and removes what a dead cluster left.
fn prepare(cache: &Cache, argocd: bool) -> Result<File> {
    let products = Product::ALL.into_iter().filter(|product| {
        *product != Product::NatsCli && (argocd || ![Product::Argocd, Product::Kustomize].contains(product))
    });
    install::ensure(cache, &products.collect::<Vec<_>>())?;
    let turn = File::create(folder::base()?.join("cluster.lock"))?;
    turn.lock().context("waiting for another cluster to end")?;
    cgroups::remove()?;
    Ok(turn)
}

fn subfolder(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
    Ok(path)
}

/// The namespaces, joined.
#[derive(Debug)]
struct Grounds {
    hub: Namespace,
    outside: Namespace,
    nodes: Vec<Namespace>,
    /// Last: a group goes when its processes have.
    _groups: cgroups::Groups,
}

impl Grounds {
    async fn lay(folder: &Path) -> Result<Self> {
        let groups = cgroups::Groups::create(&NODES.map(|node| node.name))?;
        let (hub, outside) = (subfolder(folder, "hub")?, subfolder(folder, "outside")?);
        let nodes = NODES
            .iter()
            .map(async |node| Namespace::machine(node.name, &subfolder(folder, node.name)?).await);
        let (hub, outside, nodes) = try_join!(
            Namespace::network("hub", &hub),
            Namespace::network("outside", &outside),
            try_join_all(nodes)
        )?;
        network::connect(&hub, &outside, &nodes).await?;
        Ok(Self { hub, outside, nodes, _groups: groups })
    }
}

/// Everything that runs. Fields drop in order: first what talks to the others, the namespaces last.
#[derive(Debug)]
struct Parts {
    argocd: Option<Argo>,
    machines: Vec<Machine>,
    control: Vec<Peer>,
    gitea: Gitea,
    nats: Nats,
    registry: Registry,
    grounds: Grounds,
    folder: PathBuf,
}

async fn populate(
    cache: &Cache,
    pki: &Pki,
    kubectl: &Kubectl,
    grounds: Grounds,
    folder: &Path,
    options: ClusterOptions,
) -> Result<(Parts, Images)> {
    let hub = grounds.hub.network_entry()?;
    let at = |address, port| Site::inside(hub, address, port);
    let (registry_folder, gitea_folder, nats_folder) =
        (subfolder(folder, "registry")?, subfolder(folder, "gitea")?, subfolder(folder, "nats")?);
    let registry = async {
        let site = at(plan::REGISTRY, plan::REGISTRY_PORT);
        let registry = Registry::start(cache, &registry_folder, site).await?;
        let images = Images::push(cache, &registry).await.context("pushing images")?;
        anyhow::Ok((registry, images))
    };
    let gitea = Gitea::start(cache, &gitea_folder, at(plan::GITEA, plan::GITEA_PORT), &options.gitea);
    let sites = (at(plan::NATS, plan::NATS_PORT), at(plan::NATS, plan::NATS_MONITOR_PORT));
    let nats = Nats::start(cache, &nats_folder, sites, options.nats);

    let control_folder = subfolder(folder, "control-plane")?;
    let entry = grounds.nodes[0].network_entry()?;
    let setting = Setting { cache, pki, entry, folder: &control_folder };
    let api = async {
        let etcd = setting.etcd().await?;
        let server = setting.api_server(kubectl).await?;
        kubectl.apply(&nodes_yaml()).await.context("making the nodes")?;
        let (manager, scheduler) = try_join!(setting.controller_manager(), setting.scheduler())?;
        anyhow::Ok(vec![etcd, server, manager, scheduler])
    };
    let ((registry, images), gitea, nats, control) =
        try_join!(Box::pin(registry), Box::pin(gitea), Box::pin(nats), Box::pin(api))?;

    let argocd = async {
        if !options.argocd {
            return Ok(None);
        }
        let folder = subfolder(folder, "argocd")?;
        Argo::start(cache, pki, kubectl, hub, &folder).await.map(Some)
    };
    let machines = try_join_all(NODES.iter().zip(&grounds.nodes).map(async |(node, namespace)| {
        let folder = folder.join(node.name);
        let starting = Starting::new(*node, cache, pki, &folder, namespace)?;
        let containerd = starting.containerd(&images.pause).await?;
        let (kubelet, kube_proxy, kube_router) = starting.rest().await?;
        anyhow::Ok(Machine { containerd, kubelet, kube_proxy, kube_router })
    }));
    let base = base_yaml(&images)?;
    let base = async { kubectl.apply(&base).await.context("making what the cluster starts with") };
    let (machines, (), argocd) = try_join!(Box::pin(machines), base, Box::pin(argocd))?;
    let parts =
        Parts { argocd, machines, control, gitea, nats, registry, grounds, folder: folder.to_owned() };
    Ok((parts, images))
}

fn base_yaml(images: &Images) -> Result<String> {
    let hosts: Vec<String> =
        plan::NAMES.iter().map(|(address, name)| format!("        {address} {name}")).collect();
    let values = [
        ("HOSTS", hosts.join("\n")),
        ("DNS", plan::DNS_SERVICE.to_string()),
        ("COREDNS", images.coredns.clone()),
    ];
    fill(BASE, &values.each_ref().map(|(name, value)| (*name, value.as_str())))
}

/// The nodes as they are to be, before a kubelet registers one: a pod can then never slip onto the control plane's
/// in the moment before its taint.
fn nodes_yaml() -> String {
    let nodes = NODES.map(|node| {
        let (name, pods) = (node.name, node.pods());
        let (label, taints) = if node.control_plane {
            (
                "node-role.kubernetes.io/control-plane: ''",
                "[{key: node-role.kubernetes.io/control-plane, effect: NoSchedule}]",
            )
        } else {
            ("node-role.kubernetes.io/worker: ''", "[]")
        };
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{{label}}}}}\n\
             spec: {{podCIDR: {pods}, podCIDRs: [{pods}], taints: {taints}}}\n"
        )
    });
    nodes.join("---\n")
}

impl Parts {
    fn peers(&self) -> impl Iterator<Item = &Peer> {
        let machines = self.machines.iter().flat_map(|machine| {
            [&machine.kubelet, &machine.kube_router, &machine.kube_proxy, &machine.containerd]
        });
        let servers = [self.gitea.peer(), self.nats.peer(), self.registry.peer()];
        let namespaces = [&self.grounds.outside, &self.grounds.hub].into_iter().chain(&self.grounds.nodes);
        let argocd = self.argocd.iter().flat_map(Argo::peers);
        argocd
            .chain(machines)
            .chain(self.control.iter().rev())
            .chain(servers)
            .chain(namespaces.map(Namespace::holder))
    }

    /// Kills rather than asks: nothing of it is kept.
    async fn stop(&self) -> Result<()> {
        for peer in self.peers() {
            peer.kill9().await?;
        }
        tokio::task::spawn_blocking(cgroups::remove).await.context("removing control groups")?
    }
}

impl Reporting for Parts {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn report(&self) -> String {
        self.peers().map(Peer::report).collect()
    }
}
