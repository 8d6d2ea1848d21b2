//! What makes a Kubernetes cluster.

use std::fs;
use std::process::Command;

use anyhow::{Result, bail};

use super::super::Workshop;
use super::super::go::{self, Pins};
use super::{Product, images};

pub(super) const ETCD: &str = "3.6.16";
/// Without the `v`, which the Python package index does not write.
pub(super) const KUBERNETES: &str = "1.36.3";
pub(super) const CONTAINERD: &str = "v2.3.7";
pub(super) const RUNC: &str = "v1.5.3";
pub(super) const CNI: &str = "v1.10.0";
pub(super) const KUBE_ROUTER: &str = "v2.1.0";
pub(super) const COREDNS: &str = "1.14.7";
pub(super) const ARGOCD: &str = "3.2.11";
pub(super) const KUSTOMIZE: &str = "v5.7.1";

pub(super) const ETCD_PINS: Pins = Pins {
    module: include_str!("../../../pins/etcd/go.mod"),
    sums: include_str!("../../../pins/etcd/go.sum"),
    imports: include_str!("../../../pins/etcd/main.go"),
    link: "",
};
pub(super) const KUBERNETES_PINS: Pins = Pins {
    module: include_str!("../../../pins/kubernetes/go.mod"),
    sums: include_str!("../../../pins/kubernetes/go.sum"),
    imports: include_str!("../../../pins/kubernetes/main.go"),
    link: "-X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/component-base/version.gitMajor=1 \
           -X k8s.io/component-base/version.gitMinor=36",
};
pub(super) const COREDNS_PINS: Pins = Pins {
    module: include_str!("../../../pins/coredns/go.mod"),
    sums: include_str!("../../../pins/coredns/go.sum"),
    imports: include_str!("../../../pins/coredns/main.go"),
    link: "",
};
pub(super) const ARGOCD_PINS: Pins = Pins {
    module: include_str!("../../../pins/argocd/go.mod"),
    sums: include_str!("../../../pins/argocd/go.sum"),
    imports: include_str!("../../../pins/argocd/tools.go"),
    link: "",
};

const ARGOCD_MODULE: &str = "github.com/argoproj/argo-cd/v3";

pub(super) fn build(product: Product, shop: &Workshop<'_>) -> Result<()> {
    match product {
        Product::Etcd => ETCD_PINS.build(shop, false, "", &["."]).map(drop),
        Product::Kubernetes => KUBERNETES_PINS.build(shop, false, "", &["."]).map(drop),
        Product::Coredns => {
            COREDNS_PINS.build(shop, false, "", &["."])?;
            images::of_program(shop, "coredns")
        }
        Product::Containerd => {
            let commands = ["containerd", "containerd-shim-runc-v2", "ctr"];
            let packages = commands.map(|name| format!("github.com/containerd/containerd/v2/cmd/{name}"));
            go::install(shop, &packages.each_ref().map(String::as_str), CONTAINERD)
        }
        Product::Runc => go::install_cgo(shop, "github.com/opencontainers/runc", RUNC, "seccomp"),
        Product::Cni => {
            let plugins = ["main/ptp", "main/loopback", "ipam/host-local", "meta/portmap"];
            let packages =
                plugins.map(|name| format!("github.com/containernetworking/plugins/plugins/{name}"));
            go::install(shop, &packages.each_ref().map(String::as_str), CNI)
        }
        Product::KubeRouter => {
            go::install(shop, &["github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"], KUBE_ROUTER)
        }
        Product::Kustomize => go::install(shop, &["sigs.k8s.io/kustomize/kustomize/v5"], KUSTOMIZE),
        Product::Argocd => argocd(shop),
        Product::Nats
        | Product::Registry
        | Product::Rootlesskit
        | Product::Buildkit
        | Product::Gitea
        | Product::GiteaData
        | Product::Busybox
        | Product::NatsCli
        | Product::Postgres
        | Product::Kubectl
        | Product::Debian
        | Product::Builder
        | Product::Squid
        | Product::S3 => bail!("{product} is not built from Go modules of the cluster"),
    }
}

fn argocd(shop: &Workshop<'_>) -> Result<()> {
    let pins = ARGOCD_PINS.build(shop, false, "", &[&format!("{ARGOCD_MODULE}/cmd")])?;
    fs::rename(shop.out.join("cmd"), shop.out.join("argocd"))?;
    let module = go::module_folder(shop, &pins, ARGOCD_MODULE)?;
    let crds = shop.out.join("crds");
    shop.run(Command::new("cp").arg("-R").arg(module.join("manifests/crds")).arg(&crds))?;
    // The module cache is read-only, and the copy could then not be removed by its owner.
    shop.run(Command::new("chmod").args(["-R", "u+w"]).arg(&crds)).map(drop)
}
