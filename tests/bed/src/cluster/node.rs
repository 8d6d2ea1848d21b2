//! What runs on a node: the container runtime, the kubelet, Services and network policies.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::try_join;

use super::cgroups;
use super::kubectl::Kubectl;
use super::namespace::Namespace;
use super::pki::Pki;
use super::plan::{DNS_SERVICE, Node, PODS, REGISTRY, SERVICES};
use crate::install::{Cache, Product};
use crate::peer::{Peer, Ready};
use crate::spawn::{Entry, Launch};
use crate::template::fill;
use crate::wait::wait_until;

const CONTAINERD: &str = include_str!("../../config/cluster/containerd.toml");
const REGISTRY_HOSTS: &str = include_str!("../../config/cluster/registry-hosts.toml");
const NETWORKS: &str = include_str!("../../config/cluster/cni.conflist");
const KUBELET: &str = include_str!("../../config/cluster/kubelet.yaml");

/// How long a kubelet may take to register its node.
const REGISTERED: Duration = Duration::from_secs(90);

/// The processes of one node, dropped in this order.
#[derive(Debug)]
pub(crate) struct Machine {
    pub kubelet: Peer,
    pub kube_proxy: Peer,
    pub kube_router: Peer,
    pub containerd: Peer,
}

/// A node that is being started.
pub(crate) struct Starting<'a> {
    pub node: Node,
    pub cache: &'a Cache,
    pub pki: &'a Pki,
    pub folder: &'a Path,
    entry: Entry,
}

impl<'a> Starting<'a> {
    pub(crate) fn new(
        node: Node,
        cache: &'a Cache,
        pki: &'a Pki,
        folder: &'a Path,
        namespace: &Namespace,
    ) -> Result<Self> {
        Ok(Self { node, cache, pki, folder, entry: namespace.entry()? })
    }

    /// Starts the container runtime, which needs no API server. `pause` is the image that holds a pod's namespaces.
    pub(crate) async fn containerd(&self, pause: &str) -> Result<Peer> {
        let networks = self.folder.join("cni");
        fs::create_dir_all(&networks)?;
        plain_registry(self.folder, "registry:80", &REGISTRY.to_string())?;
        fs::write(networks.join("bed.conflist"), fill(NETWORKS, &[("PODS", &self.node.pods())])?)?;
        let (socket, cni, runc) =
            (text(&self.socket()), self.product(Product::Cni), self.product(Product::Runc));
        let values = [
            ("FOLDER", text(self.folder)),
            ("SOCKET", socket.clone()),
            ("PAUSE", pause.to_owned()),
            ("CNI", text(&cni)),
            ("RUNC", text(&runc.join("runc"))),
        ];
        let config = self.write("containerd.toml", CONTAINERD, &values)?;
        let programs = self.product(Product::Containerd);
        // The runtime looks for its shim there.
        let mut path = vec![programs.clone(), runc];
        path.extend(std::env::split_paths(&crate::install::search_path()));
        let path = std::env::join_paths(path)?.to_string_lossy().into_owned();
        let asking = ["--address", &socket, "version"].map(str::to_owned);
        let ready = Ready::Command(programs.join("ctr"), asking.into());
        let args = vec!["--config".to_owned(), config];
        self.start("containerd", programs.join("containerd"), args, vec![("PATH".to_owned(), path)], ready)
            .await
    }

    /// Starts what asks the API server, which knows the node already.
    pub(crate) async fn rest(&self, kubectl: &Kubectl) -> Result<(Peer, Peer, Peer)> {
        let (kubelet, kube_proxy) = try_join!(self.kubelet(), self.kube_proxy())?;
        // kube-router ends at once where its node has no address, which is the kubelet's to tell.
        let node = self.node.name;
        let address = "-o=jsonpath={.status.addresses[?(@.type=='InternalIP')].address}";
        wait_until(&format!("{node} to have an address"), REGISTERED, || async {
            let found = kubectl.run(&["get", "node", node, address], "").await.ok()?;
            (!found.trim().is_empty()).then_some(())
        })
        .await?;
        Ok((kubelet, kube_proxy, self.kube_router().await?))
    }

    async fn kubelet(&self) -> Result<Peer> {
        let name = self.node.name;
        // Nothing of the host's: its name servers are not reachable from here.
        fs::write(self.folder.join("resolv.conf"), "")?;
        let values = [
            ("ADDRESS", self.node.address.to_string()),
            ("CA", text(&self.pki.ca())),
            ("CERTIFICATE", text(&self.pki.certificate(name))),
            ("KEY", text(&self.pki.key(name))),
            ("SOCKET", text(&self.socket())),
            ("CGROUP", cgroups::of_node(name)),
            ("DNS", DNS_SERVICE.to_string()),
            ("FOLDER", text(self.folder)),
        ];
        let config = self.write("kubelet.yaml", KUBELET, &values)?;
        let args = vec![
            "kubelet".to_owned(),
            format!("--config={config}"),
            self.kubeconfig(name),
            format!("--hostname-override={name}"),
            format!("--node-ip={}", self.node.address),
            format!("--root-dir={}", text(&self.folder.join("kubelet"))),
        ];
        self.kubernetes("kubelet", args).await
    }

    async fn kube_proxy(&self) -> Result<Peer> {
        let args = vec![
            "proxy".to_owned(),
            self.kubeconfig("kube-proxy"),
            format!("--hostname-override={}", self.node.name),
            "--proxy-mode=iptables".to_owned(),
            format!("--cluster-cidr={PODS}"),
            "--iptables-min-sync-period=100ms".to_owned(),
            "--oom-score-adj=0".to_owned(),
            "--healthz-bind-address=127.0.0.1:10256".to_owned(),
            "--metrics-bind-address=127.0.0.1:10249".to_owned(),
            // These are of the whole machine, which is not this node.
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        ];
        self.kubernetes("kube-proxy", args).await
    }

    /// Network policies alone: routes are the bed's, Services are kube-proxy's.
    async fn kube_router(&self) -> Result<Peer> {
        let args = vec![
            self.kubeconfig("kube-router"),
            format!("--hostname-override={}", self.node.name),
            "--run-firewall=true".to_owned(),
            "--run-router=false".to_owned(),
            "--run-service-proxy=false".to_owned(),
            "--run-loadbalancer=false".to_owned(),
            format!("--service-cluster-ip-range={SERVICES}"),
        ];
        let program = self.product(Product::KubeRouter).join("kube-router");
        let env = vec![("NODE_NAME".to_owned(), self.node.name.to_owned())];
        self.start("kube-router", program, args, env, Ready::Started).await
    }

    async fn kubernetes(&self, name: &str, args: Vec<String>) -> Result<Peer> {
        let program = self.product(Product::Kubernetes).join("kubernetes");
        // That the node is ready shows in the API server.
        self.start(name, program, args, Vec::new(), Ready::Started).await
    }

    async fn start(
        &self,
        program_name: &str,
        program: PathBuf,
        args: Vec<String>,
        env: Vec<(String, String)>,
        ready: Ready,
    ) -> Result<Peer> {
        let launch = Launch {
            program,
            args,
            env,
            folder: self.folder.to_owned(),
            user: None,
            entry: Some(self.entry),
        };
        let name = format!("{program_name}-{}", self.node.name);
        let log = self.folder.join(format!("{program_name}.log"));
        Peer::start(&name, launch, ready, log).await
    }

    fn product(&self, product: Product) -> PathBuf {
        self.cache.folder(product)
    }

    /// In the node's folder, so that it is reached from outside too.
    fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    fn kubeconfig(&self, user: &str) -> String {
        format!("--kubeconfig={}", text(&self.pki.kubeconfig(user)))
    }

    fn write(&self, name: &str, template: &str, values: &[(&str, String)]) -> Result<String> {
        let path = self.folder.join(name);
        let values: Vec<(&str, &str)> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
        fs::write(&path, fill(template, &values)?).with_context(|| format!("writing {}", path.display()))?;
        Ok(text(&path))
    }
}

/// Has a node, whose folder is `machine`, speak plain http to what it calls `host`: its container runtime looks each time
/// that it pulls. Returns the folder that says so.
pub(super) fn plain_registry(machine: &Path, host: &str, address: &str) -> Result<PathBuf> {
    let hosts = machine.join("registries").join(host);
    fs::create_dir_all(&hosts)?;
    fs::write(hosts.join("hosts.toml"), fill(REGISTRY_HOSTS, &[("ADDRESS", address)])?)
        .with_context(|| format!("telling {} of a registry", machine.display()))?;
    Ok(hosts)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
