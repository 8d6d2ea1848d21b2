//! A Kubernetes cluster of three nodes on this machine.
//!
//! Every node is a set of namespaces (network, processes, mounts) with a container runtime, a kubelet, kube-proxy
//! and kube-router of its own; a router joins them with the registry, Gitea and NATS, and with the caller, who
//! reaches pods, Services and the API server by their addresses. Nothing reaches further than that.

mod account;
mod argo;
mod cgroups;
mod control;
mod detached;
mod doors;
mod guarded;
mod images;
mod kubectl;
mod namespace;
mod network;
mod node;
mod obstacle;
mod parts;
mod pki;
mod plain;
mod plan;

use std::fs::{self, File, TryLockError};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::join;
use tokio::sync::OnceCell;

use crate::folder::{self, Folder};
use crate::gitea::{Gitea, GiteaOptions};
use crate::install::{self, Cache, Product};
use crate::nats::{Nats, NatsOptions};
use crate::peer::Peer;
use crate::registry::Registry;
use crate::report::{Reporting, report_on_panic};
use crate::wait::wait_until;

pub use account::worker_account;
pub use argo::Argo;
pub use doors::Doors;
pub use guarded::Guarded;
pub use images::Images;
use kubectl::Kubectl;
pub use obstacle::Obstacle;
use parts::{Grounds, Parts, populate, subfolder};
use pki::Pki;
pub use plain::Plain;

/// How long the turn of another cluster is waited for: about what the tests that it serves take.
const TURN: Duration = Duration::from_secs(30 * 60);
const NODES_READY: Duration = Duration::from_secs(90);

/// What a cluster has beyond the usual.
#[derive(Debug, Clone, Default)]
pub struct ClusterOptions {
    /// Argo CD.
    pub argocd: bool,
    /// The bus's options.
    pub nats: NatsOptions,
    /// The forge's options.
    pub gitea: GiteaOptions,
}

/// A running cluster with a registry, Gitea and NATS beside it. Dropping it ends everything, unless another process
/// owns it.
#[derive(Debug)]
pub struct Cluster {
    parts: Arc<Parts>,
    kubectl: Kubectl,
    pki: Pki,
    images: Images,
    folder: Folder,
    /// There is one cluster on a machine at a time: its addresses are always the same. Whose turn it is holds a
    /// lock; without it the cluster is another process's.
    turn: Option<File>,
}

impl Cluster {
    /// The caller's own address on the cluster's network: pods reach what listens there.
    pub const CALLER: Ipv4Addr = plan::CALLER;

    /// Whether this machine can carry a cluster; what packages bring is not looked for.
    ///
    /// # Errors
    /// When it cannot, with the reason.
    pub fn possible() -> Result<(), Obstacle> {
        obstacle::look()
    }

    /// The cluster that tests share, with Argo CD: the one that [`Cluster::serve`] keeps, if there is one, else one
    /// of this process, started on first use. Each test works in namespaces of its own; one that breaks something
    /// mends it, and runs alone.
    ///
    /// # Panics
    /// When it cannot be started, with the reason.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        let cluster = SHARED.get_or_try_init(|| Box::pin(Self::attach_or_start())).await;
        cluster.unwrap_or_else(|error| panic!("the shared cluster did not start: {error:#}"))
    }

    async fn attach_or_start() -> Result<Self> {
        let options = ClusterOptions { argocd: true, ..ClusterOptions::default() };
        if let Some(cluster) = Self::attach()? {
            return Ok(cluster);
        }
        build(&options).await?;
        let found = wait_until("another cluster to end or to be shared", TURN, || async {
            let attached = Self::attach()
                .transpose()
                .map(|cluster| cluster.map(|cluster| Found::Cluster(Box::new(cluster))));
            attached.or_else(|| take_turn().transpose().map(|turn| turn.map(Found::Turn)))
        });
        match found.await?? {
            Found::Cluster(cluster) => Ok(*cluster),
            Found::Turn(turn) => Self::start_in(turn, options).await,
        }
    }

    /// Builds what the cache lacks (a quarter of an hour, the first time), waits for its turn, starts everything
    /// and returns once every node is ready and names resolve.
    ///
    /// # Errors
    /// When something cannot be built or started, with its name and the end of its log.
    pub async fn start(options: ClusterOptions) -> Result<Self> {
        build(&options).await?;
        let what = "another cluster to end (`./just cluster-down` ends one that stays)";
        let turn = wait_until(what, TURN, || async { take_turn().transpose() }).await??;
        Self::start_in(turn, options).await
    }

    async fn start_in(turn: File, options: ClusterOptions) -> Result<Self> {
        let cache = Cache::open()?;
        tokio::task::spawn_blocking(cgroups::remove).await.context("removing control groups")??;
        let folder = Folder::create()?;
        let pki_folder = subfolder(folder.path(), "pki")?;
        let pki = tokio::task::spawn_blocking(move || Pki::create(&pki_folder));
        let grounds = Grounds::lay(folder.path());
        let (pki, grounds) = join!(pki, grounds);
        let (pki, grounds) = (pki.context("making certificates")??, grounds?);
        let kubectl = Kubectl::administrator(&cache, &pki, folder.path())?;
        let (parts, images) =
            Box::pin(populate(&cache, &pki, &kubectl, grounds, folder.path(), options)).await?;
        let parts = Arc::new(parts);
        report_on_panic(parts.clone());
        let cluster = Self { parts, kubectl, pki, images, folder, turn: Some(turn) };
        let ready = cluster.wait_for_nodes().await;
        ready.map_err(|error| anyhow!("{error:#}\n{}", cluster.logs()))?;
        Ok(cluster)
    }

    /// The cluster that another process serves, if one does.
    ///
    /// # Errors
    /// When what it left to be found cannot be read.
    pub fn attach() -> Result<Option<Self>> {
        detached::attach()
    }

    /// Lets other processes [attach](Cluster::attach) until one of them asks for the [end](Cluster::end_served), or
    /// this one is told to by SIGINT or SIGTERM.
    ///
    /// # Errors
    /// When this process does not own the cluster, or cannot be reached by others.
    pub async fn serve(self) -> Result<()> {
        if self.turn.is_none() {
            bail!("the cluster is served by another process");
        }
        detached::serve(&self).await?;
        self.stop().await
    }

    /// Ends the cluster that another process serves, and waits until nothing is left of it. Whether there was one.
    ///
    /// # Errors
    /// When something of it cannot be ended.
    pub async fn end_served() -> Result<bool> {
        detached::end().await
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

    /// A `kubectl` command as the administrator, to which arguments can be added.
    #[must_use]
    pub fn kubectl_command(&self) -> tokio::process::Command {
        self.kubectl.command()
    }

    /// A process of the cluster, to be broken and mended: `etcd`, `kube-apiserver`, `kube-controller-manager`,
    /// `kube-scheduler`; of a node `kubelet-NODE`, `containerd-NODE`, `kube-proxy-NODE`, `kube-router-NODE`, and
    /// `NODE` itself, which cannot be started again; `gitea`, `nats`, `registry`, `redis`, `argocd-server`,
    /// `argocd-repo-server`, `argocd-application-controller`. Containers live on without their `containerd`.
    ///
    /// # Panics
    /// When there is none of that name.
    #[must_use]
    pub fn peer(&self, name: &str) -> &Peer {
        self.parts.peer(name).unwrap_or_else(|| panic!("the cluster has no process {name:?}"))
    }

    /// The names of the nodes, the control plane's first.
    #[must_use]
    pub fn nodes(&self) -> [&'static str; 3] {
        plan::NODES.map(|node| node.name)
    }

    /// What the API server was asked, but for the bed's own components and the administrator: one event of
    /// `audit.k8s.io/v1` a line, without bodies.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        self.parts.folder.join("control-plane/audit.log")
    }

    /// A command in the network that is the world to the cluster, where it may listen on any port of
    /// `198.19.255.10` (`permitted.example` to pods) and `198.19.255.11` (`forbidden.example`). Its first argument
    /// is the program.
    ///
    /// # Errors
    /// When the cluster has ended.
    pub fn outside_command(&self) -> Result<tokio::process::Command> {
        let words = self.parts.grounds.outside.network_entry()?.command();
        let mut command = tokio::process::Command::new(&words[0]);
        command.args(&words[1..]).kill_on_drop(true);
        Ok(command)
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

    /// Ends everything and removes what it used. Of another process's cluster it only lets go.
    ///
    /// # Errors
    /// When a process cannot be ended or a control group not be removed.
    pub async fn stop(self) -> Result<()> {
        if self.turn.is_some() { self.parts.stop().await } else { Ok(()) }
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

enum Found {
    Cluster(Box<Cluster>),
    Turn(File),
}

/// Builds what the cache lacks.
async fn build(options: &ClusterOptions) -> Result<()> {
    let (cache, argocd) = (Cache::open()?, options.argocd);
    let products = Product::ALL.into_iter().filter(move |product| {
        ![Product::NatsCli, Product::S3].contains(product)
            && (argocd || ![Product::Argocd, Product::Kustomize].contains(product))
    });
    let building = move || install::ensure(&cache, &products.collect::<Vec<_>>());
    tokio::task::spawn_blocking(building).await.context("preparing the cluster's binaries")?
}

/// The lock of who may have a cluster, when nobody holds it.
fn take_turn() -> Result<Option<File>> {
    let turn = File::create(folder::base()?.join("cluster.lock"))?;
    match turn.try_lock() {
        Ok(()) => Ok(Some(turn)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error).context("taking the turn to have a cluster"),
    }
}
