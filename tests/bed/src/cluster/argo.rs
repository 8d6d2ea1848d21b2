//! Argo CD as processes beside the cluster: its image could not be pulled, its servers are what counts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::try_join;

use super::kubectl::Kubectl;
use super::pki::Pki;
use super::plan::ARGOCD;
use crate::install::{Cache, Product};
use crate::peer::{Peer, Ready};
use crate::spawn::{Entry, Launch};
use crate::template::{fill, secret};
use crate::wait::wait_until;

const MANIFESTS: &str = include_str!("../../config/cluster/argocd.yaml");
/// Seconds between two looks at a repository that nobody told about. Longer than any test, so that what is synced
/// was told.
const POLLING: u32 = 600;
const KNOWN: Duration = Duration::from_secs(30);
const REDIS_PORT: u16 = 6379;
const REPOSITORIES_PORT: u16 = 8081;
const SERVER_PORT: u16 = 8080;

/// A running Argo CD in the namespace `argocd`, without users: whoever reaches it may do anything.
#[derive(Debug)]
pub struct Argo {
    redis: Peer,
    repositories: Peer,
    controller: Peer,
    server: Peer,
    webhook_secret: String,
}

impl Argo {
    /// Starts it. The API server must be ready.
    pub(crate) async fn start(
        cache: &Cache,
        pki: &Pki,
        kubectl: &Kubectl,
        entry: Entry,
        folder: &Path,
    ) -> Result<Self> {
        let webhook_secret = secret();
        install(cache, kubectl, &webhook_secret).await?;
        let site = Setting { cache, pki, entry, folder };
        let redis = site.redis().await?;
        let (repositories, controller, server) =
            try_join!(site.repositories(), site.controller(), site.server())?;
        Ok(Self { redis, repositories, controller, server, webhook_secret })
    }

    /// One that runs already: `peer` finds a process by its name.
    pub(crate) fn attached(peer: impl Fn(&str) -> Peer, webhook_secret: String) -> Self {
        Self {
            redis: peer("redis"),
            repositories: peer("argocd-repo-server"),
            controller: peer("argocd-application-controller"),
            server: peer("argocd-server"),
            webhook_secret,
        }
    }

    /// Where Gitea posts pushes to, by address.
    #[must_use]
    pub fn webhook_url(&self) -> String {
        format!("{}/api/webhook", self.base_url())
    }

    /// What Gitea signs them with.
    #[must_use]
    pub fn webhook_secret(&self) -> &str {
        &self.webhook_secret
    }

    /// The API, without a slash at the end.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{ARGOCD}:{SERVER_PORT}")
    }

    /// The process that takes webhooks and answers the API.
    #[must_use]
    pub fn server(&self) -> &Peer {
        &self.server
    }

    /// The process that compares and syncs.
    #[must_use]
    pub fn controller(&self) -> &Peer {
        &self.controller
    }

    /// The process that reads repositories.
    #[must_use]
    pub fn repo_server(&self) -> &Peer {
        &self.repositories
    }

    pub(crate) fn peers(&self) -> [&Peer; 4] {
        [&self.server, &self.controller, &self.repositories, &self.redis]
    }
}

async fn install(cache: &Cache, kubectl: &Kubectl, webhook_secret: &str) -> Result<()> {
    let crds = cache.folder(Product::Argocd).join("crds");
    let files = ["application-crd.yaml", "applicationset-crd.yaml", "appproject-crd.yaml"];
    let mut definitions = vec!["apiVersion: v1\nkind: Namespace\nmetadata: {name: argocd}\n".to_owned()];
    for file in files {
        definitions.push(fs::read_to_string(crds.join(file)).with_context(|| format!("reading {file}"))?);
    }
    kubectl.apply(&definitions.join("\n---\n")).await.context("defining Argo CD's resources")?;
    wait_until("the API server to know Argo CD's resources", KNOWN, || async {
        kubectl.run(&["get", "--raw=/apis/argoproj.io/v1alpha1/appprojects"], "").await.ok()
    })
    .await?;
    let (polling, server_key) = (POLLING.to_string(), secret());
    let values =
        [("POLLING", polling.as_str()), ("WEBHOOK_SECRET", webhook_secret), ("SERVER_KEY", &server_key)];
    kubectl.apply(&fill(MANIFESTS, &values)?).await.context("configuring Argo CD")
}

struct Setting<'a> {
    cache: &'a Cache,
    pki: &'a Pki,
    entry: Entry,
    folder: &'a Path,
}

impl Setting<'_> {
    async fn redis(&self) -> Result<Peer> {
        let args = ["--bind", &ARGOCD.to_string(), "--port", &REDIS_PORT.to_string(), "--save", ""];
        let args = args.into_iter().chain(["--appendonly", "no", "--protected-mode", "no"]);
        let args = args.map(str::to_owned).collect();
        let launch = self.launch("redis-server".into(), args, Vec::new());
        // The others ask until it answers.
        Peer::start("redis", launch, Ready::Started, self.log("redis")).await
    }

    async fn repositories(&self) -> Result<Peer> {
        let args = vec![
            "--disable-tls".to_owned(),
            format!("--address={ARGOCD}"),
            format!("--port={REPOSITORIES_PORT}"),
            format!("--metrics-address={ARGOCD}"),
        ];
        self.start("argocd-repo-server", args, 8084).await
    }

    async fn controller(&self) -> Result<Peer> {
        let mut args = self.asking();
        args.push("--metrics-port=8082".to_owned());
        self.start("argocd-application-controller", args, 8082).await
    }

    async fn server(&self) -> Result<Peer> {
        let mut args = self.asking();
        args.extend(["--insecure", "--disable-auth"].map(str::to_owned));
        args.extend([format!("--address={ARGOCD}"), format!("--port={SERVER_PORT}")]);
        self.start("argocd-server", args, SERVER_PORT).await
    }

    /// How those find the others that read no repository themselves.
    fn asking(&self) -> Vec<String> {
        vec![
            format!("--repo-server={ARGOCD}:{REPOSITORIES_PORT}"),
            "--repo-server-plaintext".to_owned(),
            "--namespace=argocd".to_owned(),
            format!("--kubeconfig={}", text(&self.pki.kubeconfig("argocd"))),
        ]
    }

    /// Every role is the same program, which goes by the name in its environment. `port` answers whether it is
    /// healthy.
    async fn start(&self, role: &str, mut args: Vec<String>, port: u16) -> Result<Peer> {
        args.push(format!("--redis={ARGOCD}:{REDIS_PORT}"));
        let scratch = self.folder.join(role);
        for name in ["tls", "ssh"] {
            fs::create_dir_all(scratch.join(name))?;
        }
        let mut path = vec![self.cache.folder(Product::Kustomize)];
        path.extend(std::env::split_paths(&crate::install::search_path()));
        let env = [
            ("ARGOCD_BINARY_NAME", role.to_owned()),
            // The cluster that it calls its own is the one of its kubeconfig.
            ("ARGOCD_FAKE_IN_CLUSTER", "true".to_owned()),
            ("ARGOCD_GPG_ENABLED", "false".to_owned()),
            ("ARGOCD_TLS_DATA_PATH", text(&scratch.join("tls"))),
            ("ARGOCD_SSH_DATA_PATH", text(&scratch.join("ssh"))),
            ("ARGOCD_RECONCILIATION_TIMEOUT", format!("{POLLING}s")),
            ("ARGOCD_RECONCILIATION_JITTER", "0s".to_owned()),
            ("KUBECONFIG", text(&self.pki.kubeconfig("argocd"))),
            ("HOME", text(&scratch)),
            ("TMPDIR", text(&scratch)),
            ("PATH", std::env::join_paths(path)?.to_string_lossy().into_owned()),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value)).into();
        let launch = self.launch(self.cache.folder(Product::Argocd).join("argocd"), args, env);
        let ready = Ready::Http(format!("http://{ARGOCD}:{port}/healthz"));
        Peer::start(role, launch, ready, self.log(role)).await
    }

    fn launch(&self, program: PathBuf, args: Vec<String>, env: Vec<(String, String)>) -> Launch {
        Launch { program, args, env, folder: self.folder.to_owned(), user: None, entry: Some(self.entry) }
    }

    fn log(&self, role: &str) -> PathBuf {
        self.folder.join(format!("{role}.log"))
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
