//! What an installation says about its Argo CD. No value of a deployment stands in the code.

use fabrique_core::id::{EnvironmentName, RepoName};

use super::migrations::Runner;
use crate::registration::SourceForm;

/// What the root Application stands on: no app is called so, and nothing is deployed into such a namespace.
pub const RESERVED: [&str; 5] = ["argo-cd", "argocd", "fabrique", "gitea", "nats"];
/// More namespaces in which nothing of an app belongs.
const SYSTEM: [&str; 4] = ["fabrique-builds", "kube-node-lease", "kube-public", "kube-system"];
/// Argo CD's own cluster, as it calls it.
pub const IN_CLUSTER: &str = "https://kubernetes.default.svc";
/// The longest name of an Application: it becomes the value of a label.
pub(super) const LONGEST_NAME: usize = 63;

/// Where things are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Gitea's root as Argo CD reaches it: every `repoURL` is a repository below it.
    pub gitea: String,
    /// `cluster/apps`.
    pub repo: RepoName,
    /// Its branch that is deployed.
    pub branch: String,
    /// The namespace of Argo CD.
    pub argocd_namespace: String,
    /// The name of the root Application.
    pub root: String,
    /// The project of the apps; the root's is called the same with `-root` behind it.
    pub project: String,
    /// What an Application reads where its environment does not say.
    pub source: SourceForm,
    /// Where environments are.
    pub destinations: Vec<Destination>,
    /// How migrations are run; without it, no app that declares any is deployed.
    pub runner: Option<Runner>,
}

/// Where an environment's apps run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The environment.
    pub environment: EnvironmentName,
    /// The API server, as Argo CD knows the cluster.
    pub server: String,
    /// The namespaces that apps may choose; the first where they do not.
    pub namespaces: Vec<String>,
}

impl Settings {
    /// Where an environment is, if it is anywhere.
    #[must_use]
    pub fn destination(&self, environment: &EnvironmentName) -> Option<&Destination> {
        self.destinations.iter().find(|destination| destination.environment == *environment)
    }

    /// Why nothing may be deployed into `namespace`, if there is a reason, where Argo CD is in `argocd_namespace`.
    #[must_use]
    pub fn refuses(argocd_namespace: &str, namespace: &str) -> Option<&'static str> {
        let reserved = RESERVED.iter().chain(&SYSTEM).any(|reserved| *reserved == namespace);
        if !is_label(namespace) {
            Some("is not the name of a namespace")
        } else if reserved || namespace == argocd_namespace {
            Some("carries the root Application, and nothing below it may change it")
        } else {
            None
        }
    }

    /// The address of a repository.
    pub(super) fn url(&self, repo: &RepoName) -> String {
        format!("{}/{repo}.git", self.gitea.trim_end_matches('/'))
    }

    /// Whether `url` is a repository of the configured Gitea.
    #[must_use]
    pub fn is_inside(&self, url: &str) -> bool {
        let below =
            url.strip_prefix(self.gitea.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
        below.is_some_and(|repo| RepoName::parse(repo.strip_suffix(".git").unwrap_or(repo)).is_ok())
    }
}

/// Whether `text` may be the name of a namespace, an Application or a project.
#[must_use]
pub fn is_label(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let edges = text.starts_with('-') || text.ends_with('-');
    !text.is_empty() && text.len() <= LONGEST_NAME && text.chars().all(allowed) && !edges
}
