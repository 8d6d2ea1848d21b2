//! What unit tests stand on.

use fabrique_core::id::{EnvironmentName, RepoName};
use fabrique_core::view::ImageView;
use fabrique_gitops::registration::SourceForm;
use fabrique_gitops::render::migrations::Runner;
use fabrique_gitops::render::{Destination, IN_CLUSTER, Settings};

/// An installation that renders `prod` into one namespace of its own cluster.
pub(crate) fn settings(source: SourceForm, namespace: &str, runner: Option<Runner>) -> Settings {
    Settings {
        gitea: "http://gitea:3000/".to_owned(),
        repo: RepoName::parse("cluster/apps").unwrap(),
        branch: "main".to_owned(),
        argocd_namespace: "argocd".to_owned(),
        root: "root".to_owned(),
        project: "fabrique-apps".to_owned(),
        source,
        destinations: vec![Destination {
            environment: EnvironmentName::parse("prod").unwrap(),
            server: IN_CLUSTER.to_owned(),
            namespaces: vec![namespace.to_owned()],
        }],
        runner,
    }
}

/// The image channel of an environment that follows builds and has none yet.
pub(crate) fn image_view() -> ImageView {
    ImageView {
        follows_builds: true,
        trouble: None,
        waits: None,
        hold: None,
        step: None,
        digest: None,
        same_inputs: true,
        taken_back: None,
    }
}

/// What runs migrations.
pub(crate) fn runner() -> Runner {
    let image = format!("registry:80/fabrique@sha256:{}", "0".repeat(64));
    Runner { image, tls: "require".to_owned(), limit: 900 }
}
