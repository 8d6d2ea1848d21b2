//! What `validate` takes.

use std::path::{Path, PathBuf};

use clap::Args;
use fabrique_core::id::{AppName, EnvironmentName, RelPath};
use fabrique_operator::declared::is_cluster_apps;

#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// Tell only what concerns this app.
    #[arg(conflicts_with_all = ["path", "policies"])]
    pub(crate) app: Option<AppName>,
    /// A directory to check instead of what is live; no server is asked.
    ///
    /// Either a checkout of cluster/apps, known by a registration or the contract in it, or an app's own repository. Of the
    /// latter, every code-location.manifest.yaml and the overlay in deploy/overlays/prod beside it are checked, and no
    /// configuration is read.
    #[arg(long, value_name = "DIR")]
    pub(crate) path: Option<PathBuf>,
    /// An overlay of an app's own repository, by its path in it, instead of those beside the declarations.
    #[arg(long, value_name = "DIR", requires = "path")]
    pub(crate) overlay: Vec<RelPath>,
    /// The contract.yaml of cluster/apps, whose placeholders the overlays have; without it, the usual ones.
    #[arg(long, value_name = "FILE", requires = "path")]
    pub(crate) contract: Option<PathBuf>,
    /// Where images may be pushed, instead of what the configuration says, which is not read then.
    #[arg(long, value_name = "HOST[/PATH]", requires = "path")]
    pub(crate) registry: Vec<String>,
    /// Manifests whose network policies must not open the world: a file, a folder, or - for standard input.
    ///
    /// Judged are NetworkPolicy, CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy, as they are written: render
    /// overlays first. Without --path nothing else is checked, and no configuration is read.
    #[arg(long, value_name = "FILE|DIR|-")]
    pub(crate) policies: Vec<PathBuf>,
    /// Also ask the cluster: databases, secrets' keys, storage classes, bound buckets, and what is left of everything.
    ///
    /// At most ten requests, with the rights that docs/declarations.md lists. The cluster is that of KUBECONFIG, or the one
    /// that this runs in.
    #[arg(long, conflicts_with_all = ["path", "policies"])]
    pub(crate) live: bool,
    /// The context of KUBECONFIG, instead of its current one.
    #[arg(long, value_name = "CONTEXT", requires = "live")]
    pub(crate) context: Option<String>,
    /// Which environment of the contract the cluster is. Needed where it has several.
    #[arg(long, value_name = "ENVIRONMENT", requires = "live")]
    pub(crate) environment: Option<EnvironmentName>,
}

impl Validate {
    /// Whether files are checked, and no server is asked.
    pub(crate) fn is_offline(&self) -> bool {
        self.path.is_some() || !self.policies.is_empty()
    }

    /// Whether the configuration is a part of the question.
    pub(crate) fn needs_configuration(&self) -> bool {
        match &self.path {
            Some(path) => self.registry.is_empty() && self.is_cluster_apps(path),
            None => self.policies.is_empty(),
        }
    }

    /// Whether `path` is a checkout of cluster/apps: where images may be pushed says nothing to an app's repository.
    pub(crate) fn is_cluster_apps(&self, path: &Path) -> bool {
        !self.registry.is_empty() || is_cluster_apps(path)
    }
}
