//! Everything that runs, from the namespaces to Argo CD.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use tokio::try_join;

use super::ClusterOptions;
use super::argo::Argo;
use super::cgroups;
use super::control::Setting;
use super::images::Images;
use super::kubectl::Kubectl;
use super::namespace::Namespace;
use super::network;
use super::node::{Machine, Starting};
use super::pki::Pki;
use super::plan::{self, NODES};
use crate::gitea::Gitea;
use crate::install::Cache;
use crate::nats::Nats;
use crate::peer::Peer;
use crate::registry::Registry;
use crate::report::Reporting;
use crate::site::Site;
use crate::spawn::Entry;
use crate::template::fill;

const BASE: &str = include_str!("../../config/cluster/base.yaml");

pub(super) fn subfolder(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
    Ok(path)
}

/// The namespaces, joined.
#[derive(Debug)]
pub(super) struct Grounds {
    pub(super) hub: Namespace,
    pub(super) outside: Namespace,
    pub(super) nodes: Vec<Namespace>,
    /// Last: a group goes when its processes have. Another process's groups are left to it.
    pub(super) _groups: Option<cgroups::Groups>,
}

impl Grounds {
    pub(super) async fn lay(folder: &Path) -> Result<Self> {
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
        Ok(Self { hub, outside, nodes, _groups: Some(groups) })
    }
}

/// Everything that runs. Fields drop in order: first what talks to the others, the namespaces last.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) argocd: Option<Argo>,
    pub(super) machines: Vec<Machine>,
    pub(super) control: Vec<Peer>,
    pub(super) gitea: Gitea,
    pub(super) nats: Nats,
    pub(super) registry: Registry,
    pub(super) grounds: Grounds,
    pub(super) folder: PathBuf,
}

/// Where the servers beside the cluster listen.
pub(super) struct Sites {
    pub(super) registry: Site,
    pub(super) gitea: Site,
    /// For clients, and for who watches it.
    pub(super) nats: (Site, Site),
}

impl Sites {
    pub(super) fn inside(hub: Entry) -> Self {
        let at = |address, port| Site::inside(hub, address, port);
        Self {
            registry: at(plan::REGISTRY, plan::REGISTRY_PORT),
            gitea: at(plan::GITEA, plan::GITEA_PORT),
            nats: (at(plan::NATS, plan::NATS_PORT), at(plan::NATS, plan::NATS_MONITOR_PORT)),
        }
    }
}

/// Starts everything in the order in which it needs each other, what can at once.
pub(super) async fn populate(
    cache: &Cache,
    pki: &Pki,
    kubectl: &Kubectl,
    grounds: Grounds,
    folder: &Path,
    options: ClusterOptions,
) -> Result<(Parts, Images)> {
    let hub = grounds.hub.network_entry()?;
    let sites = Sites::inside(hub);
    let (registry_folder, gitea_folder, nats_folder) =
        (subfolder(folder, "registry")?, subfolder(folder, "gitea")?, subfolder(folder, "nats")?);
    let registry = async {
        let registry = Registry::start(cache, &registry_folder, sites.registry).await?;
        let images = Images::push(cache, &registry).await.context("pushing images")?;
        anyhow::Ok((registry, images))
    };
    let gitea = Gitea::start(cache, &gitea_folder, sites.gitea, &options.gitea);
    let nats = Nats::start(cache, &nats_folder, sites.nats, options.nats);

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
        let (kubelet, kube_proxy, kube_router) = starting.rest(kubectl).await?;
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
    pub(super) fn peers(&self) -> impl Iterator<Item = &Peer> {
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

    pub(super) fn peer(&self, name: &str) -> Option<&Peer> {
        self.peers().find(|peer| peer.name() == name)
    }

    /// Kills rather than asks: nothing of it is kept.
    pub(super) async fn stop(&self) -> Result<()> {
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
