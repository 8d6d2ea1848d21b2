//! Setting an installation up: as whom, and where Argo CD is.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounded::{HOUR, SECOND, Wait};
use super::check::{Problems, is_http};
use super::secret::Secret;
use super::sections::Config;

/// The secrets that `init` makes: whatever else reads them finds them there.
pub(super) const MADE: [&str; 6] = [
    "gitea.read_token",
    "gitea.status_token",
    "gitea.hooks_token",
    "gitea.apps_token",
    "receiver.secret",
    "init.argocd_secret",
];

/// What `init` makes beyond the streams, once somebody says as whom.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct InitSection {
    /// Gitea's administrator. With it, or with `kubernetes`, `init` also makes what Gitea and Argo CD need.
    pub(crate) admin_user: Option<String>,
    /// The administrator's password: Gitea makes tokens for nobody without.
    pub(crate) admin_password: Secret,
    /// Holds `admin_password`.
    pub(crate) admin_password_file: Option<PathBuf>,
    /// Ask the API server: for the administrator, for `argocd-secret`, and for the proof that a push reaches Argo CD.
    pub(crate) kubernetes: bool,
    /// The context of KUBECONFIG, instead of its current one.
    pub(crate) context: Option<String>,
    /// The Secret with the administrator's `username` and `password`, used without `admin_user`.
    pub(crate) admin_secret: String,
    /// The root of Argo CD as it is reached from here. With it, webhook #1 is made.
    pub(crate) argocd_url: Option<String>,
    /// Where webhook #1 delivers to, as Gitea reaches it; `api/webhook` below `argocd_url` when absent.
    pub(crate) argocd_webhook_url: Option<String>,
    /// Certificates in PEM to trust instead of the system's, for `argocd_url`.
    pub(crate) argocd_ca_file: Option<PathBuf>,
    /// The secret of webhook #1, by which Argo CD knows Gitea.
    pub(crate) argocd_secret: Secret,
    /// Holds `argocd_secret`.
    pub(crate) argocd_secret_file: Option<PathBuf>,
    /// How long each gate may take: a peer to answer, or what was made to show.
    pub(crate) limit: Wait<SECOND, HOUR>,
}

impl Default for InitSection {
    fn default() -> Self {
        Self {
            admin_user: None,
            admin_password: Secret::default(),
            admin_password_file: None,
            kubernetes: false,
            context: None,
            admin_secret: "gitea/gitea-admin".to_owned(),
            argocd_url: None,
            argocd_webhook_url: None,
            argocd_ca_file: None,
            argocd_secret: Secret::default(),
            argocd_secret_file: None,
            limit: Duration::from_mins(1).into(),
        }
    }
}

impl InitSection {
    /// Whether more than the streams is to be made.
    pub(crate) fn has_administrator(&self) -> bool {
        self.admin_user.is_some() || self.kubernetes
    }

    /// Namespace and name of the administrator's Secret. The configuration was checked.
    pub(crate) fn admin_place(&self) -> (&str, &str) {
        self.admin_secret.split_once('/').unwrap_or_default()
    }
}

pub(super) fn check(config: &Config, problems: &mut Problems) {
    let section = &config.init;
    let paired = section.admin_user.is_some() == section.admin_password.is_set();
    let remedy = "set admin_user and admin_password_file, or neither";
    problems.need(paired, "init.admin_user", "user and password belong together", remedy);
    let place = section.admin_secret.split_once('/');
    let placed = place
        .is_some_and(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains('/'));
    problems.need(placed, "init.admin_secret", "not namespace/name", "write gitea/gitea-admin");
    for (key, url) in
        [("init.argocd_url", &section.argocd_url), ("init.argocd_webhook_url", &section.argocd_webhook_url)]
    {
        let good = url.as_deref().is_none_or(is_http);
        problems.need(good, key, "not an http(s) URL without credentials", "write http://argocd-server/");
    }
    let secret = section.argocd_secret_file.is_some() || section.argocd_secret.is_set();
    problems.need(
        section.argocd_url.is_none() || secret,
        "init.argocd_secret_file",
        "webhook #1 has no secret",
        "name a file: the secret is made when it is not there",
    );
}
