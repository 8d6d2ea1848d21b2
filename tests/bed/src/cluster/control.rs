//! etcd and the control plane: processes of the control plane's node, not pods.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::kubectl::Kubectl;
use super::pki::Pki;
use super::plan::{API_PORT, CONTROL, ETCD_PORT, PODS, SERVICES};
use crate::install::{Cache, Product};
use crate::peer::{Peer, Ready};
use crate::spawn::{Entry, Launch};

const AUDIT_POLICY: &str = include_str!("../../config/cluster/audit.yaml");

/// What every component of the control plane is started with.
pub(crate) struct Setting<'a> {
    pub cache: &'a Cache,
    pub pki: &'a Pki,
    pub entry: Entry,
    pub folder: &'a Path,
}

impl Setting<'_> {
    fn text(path: &Path) -> String {
        path.to_string_lossy().into_owned()
    }

    async fn start(&self, name: &str, program: PathBuf, args: Vec<String>, ready: Ready) -> Result<Peer> {
        let launch = Launch {
            program,
            args,
            env: Vec::new(),
            folder: self.folder.to_owned(),
            user: None,
            entry: Some(self.entry),
        };
        Peer::start(name, launch, ready, self.folder.join(format!("{name}.log"))).await
    }

    async fn component(&self, name: &str, mut args: Vec<String>, ready: Ready) -> Result<Peer> {
        // The program's first argument chooses the component, under its name without the kind.
        args.insert(0, name.trim_start_matches("kube-").to_owned());
        let program = self.cache.folder(Product::Kubernetes).join("kubernetes");
        self.start(name, program, args, ready).await
    }

    /// Plain files instead of disks that survive a power cut: a cluster that lives for minutes needs no fsync.
    pub(crate) async fn etcd(&self) -> Result<Peer> {
        let url = format!("https://{}:{ETCD_PORT}", CONTROL.address);
        let (ca, certificate, key) = (self.pki.ca(), self.pki.certificate("etcd"), self.pki.key("etcd"));
        let args = vec![
            format!("--data-dir={}", Self::text(&self.folder.join("etcd"))),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            format!("--trusted-ca-file={}", Self::text(&ca)),
            format!("--cert-file={}", Self::text(&certificate)),
            format!("--key-file={}", Self::text(&key)),
            "--client-cert-auth".to_owned(),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        let program = self.cache.folder(Product::Etcd).join("etcd");
        // The API server waits for it by itself, and starts meanwhile.
        self.start("etcd", program, args, Ready::Started).await
    }

    pub(crate) async fn api_server(&self, kubectl: &Kubectl) -> Result<Peer> {
        let policy = self.folder.join("audit-policy.yaml");
        fs::write(&policy, AUDIT_POLICY)?;
        let mut args = vec![
            format!("--etcd-servers=https://{}:{ETCD_PORT}", CONTROL.address),
            format!("--bind-address={}", CONTROL.address),
            format!("--advertise-address={}", CONTROL.address),
            format!("--secure-port={API_PORT}"),
            format!("--service-cluster-ip-range={SERVICES}"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            // Nodes have no names that anybody resolves.
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!("--audit-log-path={}", Self::text(&self.folder.join("audit.log"))),
        ];
        let files = [
            ("audit-policy-file", policy),
            ("client-ca-file", self.pki.ca()),
            ("etcd-cafile", self.pki.ca()),
            ("etcd-certfile", self.pki.certificate("etcd")),
            ("etcd-keyfile", self.pki.key("etcd")),
            ("kubelet-client-certificate", self.pki.certificate("kubelets-client")),
            ("kubelet-client-key", self.pki.key("kubelets-client")),
            ("service-account-key-file", self.pki.token_checker()),
            ("service-account-signing-key-file", self.pki.key("tokens")),
            ("tls-cert-file", self.pki.certificate("api-server")),
            ("tls-private-key-file", self.pki.key("api-server")),
        ];
        args.extend(files.map(|(flag, path)| format!("--{flag}={}", Self::text(&path))));
        self.component("kube-apiserver", args, kubectl.ready()).await
    }

    pub(crate) async fn controller_manager(&self) -> Result<Peer> {
        let args = vec![
            self.kubeconfig("controller-manager"),
            format!("--cluster-cidr={PODS}"),
            format!("--service-cluster-ip-range={SERVICES}"),
            // Nodes are made with their ranges.
            "--allocate-node-cidrs=false".to_owned(),
            format!("--service-account-private-key-file={}", Self::text(&self.pki.key("tokens"))),
            format!("--root-ca-file={}", Self::text(&self.pki.ca())),
            format!("--cluster-signing-cert-file={}", Self::text(&self.pki.ca())),
            format!("--cluster-signing-key-file={}", Self::text(&self.pki.key("ca"))),
            "--use-service-account-credentials".to_owned(),
            // Half the usual, and still four times as long as a kubelet takes between two signs of life.
            "--node-monitor-grace-period=24s".to_owned(),
            "--node-monitor-period=2s".to_owned(),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
        ];
        self.component("kube-controller-manager", args, Ready::Started).await
    }

    pub(crate) async fn scheduler(&self) -> Result<Peer> {
        let args = vec![
            self.kubeconfig("scheduler"),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
        ];
        self.component("kube-scheduler", args, Ready::Started).await
    }

    fn kubeconfig(&self, user: &str) -> String {
        format!("--kubeconfig={}", Self::text(&self.pki.kubeconfig(user)))
    }
}
