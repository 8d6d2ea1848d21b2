//! What has to be on Gitea before fabrique is installed: organisations, `cluster/apps`, a user for each purpose, and
//! webhook #1.

use anyhow::{Context as _, Result, bail};
use fabrique_bed::{Cluster, GitRepo, Gitea};
use serde_json::json;

/// Reads sources.
const READER: &str = "fabrique-read";
/// Sets commit statuses.
const REPORTER: &str = "fabrique-status";
/// Administers webhooks.
const HOOKER: &str = "fabrique-hooks";
/// Pushes `cluster/apps`.
const DEPLOYER: &str = "fabrique-apps";

/// What a seed made because it was not there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seeded(pub Vec<String>);

/// A token for each purpose, each of a user of its own with no more rights than it needs.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    pub(crate) read: String,
    pub(crate) status: String,
    pub(crate) hooks: String,
    pub(crate) apps: String,
}

/// Makes what is missing. Whoever runs it again changes nothing.
pub(crate) async fn seed(cluster: &Cluster) -> Result<Seeded> {
    let gitea = cluster.gitea();
    let mut seeded = Seeded::default();
    for org in ["cluster", "atlas"] {
        if missing(gitea, &format!("/orgs/{org}")).await? {
            gitea.create_org(org).await?;
            seeded.0.push(format!("organisation {org}"));
        }
    }
    for user in [READER, REPORTER, HOOKER, DEPLOYER] {
        if missing(gitea, &format!("/users/{user}")).await? {
            gitea.create_user(user).await?;
            seeded.0.push(format!("user {user}"));
        }
    }
    if missing(gitea, "/repos/cluster/apps").await? {
        // Readable by all: the bed's Argo CD cannot answer git when it asks who it is.
        gitea.create_repo("cluster", "apps", false).await?;
        for (user, right) in [(DEPLOYER, "write"), (HOOKER, "admin")] {
            gitea.add_collaborator("cluster", "apps", user, right).await?;
        }
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", "apps")).await?;
        let told = "What Argo CD deploys: an Application for each environment of an app.\n";
        apps.write("argocd/README.md", told).await?;
        apps.commit("Make room for Applications").await?;
        apps.push().await?;
        seeded.0.push("cluster/apps".to_owned());
    }
    let argocd = cluster.argocd();
    let hooks = gitea.api("GET", "/repos/cluster/apps/hooks", None).await?;
    let there =
        hooks.as_array().into_iter().flatten().any(|hook| hook["config"]["url"] == argocd.webhook_url());
    if !there {
        let (url, secret) = (argocd.webhook_url(), argocd.webhook_secret());
        gitea.create_webhook("cluster", "apps", &url, secret).await?;
        seeded.0.push("webhook #1".to_owned());
    }
    Ok(seeded)
}

/// New tokens for an installation.
pub(crate) async fn tokens(gitea: &Gitea) -> Result<Tokens> {
    let reads = ["read:repository", "read:user"];
    let writes = ["write:repository", "read:user"];
    Ok(Tokens {
        read: gitea.create_token(READER, &reads).await?,
        status: gitea.create_token(REPORTER, &writes).await?,
        hooks: gitea.create_token(HOOKER, &writes).await?,
        apps: gitea.create_token(DEPLOYER, &writes).await?,
    })
}

/// The Application that deploys the Applications.
pub(crate) fn root(cluster: &Cluster) -> serde_json::Value {
    let mut root = application("root", &cluster.gitea().clone_url("cluster", "apps"), "argocd", "argocd");
    root["spec"]["project"] = json!("default");
    root
}

/// An Application of an app that follows a folder of the repository at `url`, and deploys to `namespace`.
#[must_use]
pub fn application(name: &str, url: &str, path: &str, namespace: &str) -> serde_json::Value {
    json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
        "metadata": {
            "name": name, "namespace": "argocd", "finalizers": ["resources-finalizer.argocd.argoproj.io"],
        },
        "spec": {
            "project": "fabrique-apps",
            "source": { "repoURL": url, "path": path, "targetRevision": "main" },
            "destination": { "server": "https://kubernetes.default.svc", "namespace": namespace },
            "syncPolicy": { "automated": { "prune": true, "selfHeal": true, "allowEmpty": true } },
        },
    })
}

/// A source repository in `atlas` that every purpose's user has its rights in.
///
/// # Errors
/// When Gitea refuses.
pub async fn source(gitea: &Gitea, name: &str) -> Result<GitRepo> {
    gitea.create_repo("atlas", name, true).await?;
    for (user, right) in [(READER, "read"), (REPORTER, "write"), (HOOKER, "admin")] {
        gitea.add_collaborator("atlas", name, user, right).await?;
    }
    GitRepo::clone(&gitea.clone_url_with_token("atlas", name)).await.context("cloning a new repository")
}

async fn missing(gitea: &Gitea, path: &str) -> Result<bool> {
    let (status, answer) = gitea.api_as(gitea.admin_token(), "GET", path, None).await?;
    match status.as_u16() {
        200 => Ok(false),
        404 => Ok(true),
        _ => bail!("Gitea answered {status} to GET {path}: {answer}"),
    }
}
