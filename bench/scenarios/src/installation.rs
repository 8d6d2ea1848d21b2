//! Fabrique, brought into the cluster as an operator would.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use fabrique_bed::{Cluster, GitRepo, webhook};
use fabrique_cluster_tests::{image, manifests, turn};
use fabrique_core::time::Timestamp;
use fabrique_kubernetes::config::Isolation;
use fabrique_kubernetes::labels;
use fabrique_kubernetes::pki::{BuilderCa, Identity};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::app::SampleApp;
use crate::forge::{self, Seeded, Tokens};
use crate::overlay::{self, Changes, Filling, kind};
use crate::people;
use crate::until::until;

/// Fabrique's own namespace.
pub const OWN: &str = "fabrique";
/// The builders' namespace.
pub const BUILDS: &str = "fabrique-builds";
/// Where the scenarios' apps run.
pub const APPS: &str = "apps";

/// What both ends of webhook #2 know.
const HOOK_SECRET: &str = "of-the-scenarios";
/// How long a role may take to be ready, its image pulled to a node for the first time.
const READY: Duration = Duration::from_mins(4);
/// How long a job may take on a busy machine.
const JOB: Duration = Duration::from_mins(2);

/// An installation in the bed's cluster.
pub struct Installation {
    /// The cluster.
    pub cluster: &'static Cluster,
    receiver: String,
    applied: Mutex<Filling>,
    _turn: File,
}

impl Installation {
    /// Seeds Gitea, builds the image, installs the overlay and waits until everything is ready. An installation that
    /// is there already becomes this one; the apps of earlier runs are taken away.
    ///
    /// # Errors
    /// When a server refuses, or a role does not get ready, with what it says.
    pub async fn install(cluster: &'static Cluster, isolation: Isolation) -> Result<Self> {
        Self::install_with(cluster, isolation, Changes::default()).await
    }

    /// The same, with some things otherwise than scenarios want them.
    ///
    /// # Errors
    /// As [`Installation::install`].
    pub async fn install_with(
        cluster: &'static Cluster,
        isolation: Isolation,
        changes: Changes,
    ) -> Result<Self> {
        let turn = turn::take().await?;
        forge::seed(cluster).await?;
        let binary = changes.binary.as_deref();
        let image = image::push(cluster, "fabrique", binary).await.context("fabrique's image")?;
        let filling = Filling { image, builder: cluster.images().builder.clone(), isolation, changes };
        let documents = overlay::fill(&manifests::overlay("bench").await?, &filling)?;
        apply(cluster, documents.iter().filter(|document| kind(document) == "Namespace")).await?;
        let (_, receiver) = overlay::config(&documents)?;
        let tokens = forge::tokens(cluster.gitea()).await?;
        install_secrets(cluster, &tokens).await?;
        cluster.apply(&forge::root(cluster).to_string()).await?;
        let installation = Self { cluster, receiver, applied: Mutex::new(filling.clone()), _turn: turn };
        installation.take_away_builders().await?;
        installation.take_away_apps().await?;
        installation.apply(&filling).await?;
        // Registrations wake their apps from now on.
        installation.job("hooks").await?;
        Ok(installation)
    }

    /// Makes what Gitea lacks; nothing, but for the first time.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn seed(&self) -> Result<Seeded> {
        forge::seed(self.cluster).await
    }

    /// Where webhook #2 delivers to.
    #[must_use]
    pub fn hook_url(&self) -> &str {
        &self.receiver
    }

    /// How builds are kept apart.
    pub async fn isolation(&self) -> Isolation {
        self.applied.lock().await.isolation
    }

    /// Takes away the webhooks of an app's repository, so that Gitea tells nobody of its pushes; `hooks` makes them anew.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn unhook(&self, app: &SampleApp) -> Result<()> {
        let repo = app.repo();
        for hook in self.hooks(&repo).await?.as_array().context("no list of webhooks")? {
            let path = format!("/repos/{repo}/hooks/{}", hook["id"]);
            self.cluster.gitea().api("DELETE", &path, None).await?;
        }
        Ok(())
    }

    /// Lets builds be kept apart in another way from now on.
    ///
    /// # Errors
    /// As [`Installation::install`].
    pub async fn isolate(&self, isolation: Isolation) -> Result<()> {
        let mut applied = self.applied.lock().await;
        if applied.isolation != isolation {
            let wanted = Filling { isolation, ..applied.clone() };
            self.apply(&wanted).await?;
            *applied = wanted;
        }
        Ok(())
    }

    async fn apply(&self, filling: &Filling) -> Result<()> {
        let documents = overlay::fill(&manifests::overlay("bench").await?, filling)?;
        let (roles, rest): (Vec<_>, Vec<_>) =
            documents.iter().partition(|document| kind(document) == "Deployment");
        apply(self.cluster, rest).await?;
        self.job("init").await?;
        apply(self.cluster, roles).await?;
        let (config, _) = overlay::config(&documents)?;
        self.cluster.apply(&people::deployment(&filling.image, &config)).await?;
        for role in ["receiver", "worker", people::NAME] {
            self.rolled_out(role).await?;
        }
        Ok(())
    }

    /// Starts a job from its template, as an operator would, and waits for its good end. Returns what it printed.
    ///
    /// # Errors
    /// When it ends otherwise, or not at all, with what it printed.
    pub async fn job(&self, template: &str) -> Result<String> {
        let name = format!("{template}-{:08x}", rand::random::<u32>());
        let from = format!("--from=cronjob/{template}");
        self.kubectl(&["create", "job", &name, &from]).await?;
        let what = format!("the end of job {name}");
        let ended = until(&what, JOB, async || {
            let job = self.get(OWN, "job", &name).await?;
            let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let end = conditions.iter().find(|condition| condition["status"] == "True");
            let end = end.and_then(|condition| condition["type"].as_str());
            match end {
                Some("Complete" | "SuccessCriteriaMet") => Ok(true),
                Some(_) => Ok(false),
                None => Err(anyhow::anyhow!("it is still {}", job["status"])),
            }
        });
        let ended = ended.await;
        let selector = format!("batch.kubernetes.io/job-name={name}");
        match ended {
            Ok(true) => self.kubectl(&["logs", "--selector", &selector, "--tail=-1"]).await,
            Ok(false) => anyhow::bail!("job {name} failed:\n{}", self.story(&selector).await),
            Err(error) => Err(error.context(self.story(&selector).await)),
        }
    }

    /// Waits until every replica of a role is the newest one and ready.
    ///
    /// # Errors
    /// When they are not in time, with what they say.
    pub async fn rolled_out(&self, role: &str) -> Result<()> {
        let what = format!("{role} to be rolled out");
        let rolled_out = until(&what, READY, async || {
            let role = format!("deployment/{role}");
            self.kubectl(&["rollout", "status", "--timeout=15s", &role]).await
        });
        match rolled_out.await {
            Ok(_) => Ok(()),
            Err(error) => {
                let selector = format!("app.kubernetes.io/component={role}");
                Err(error.context(self.story(&selector).await))
            }
        }
    }

    /// What pods that did not do as they should have to say.
    pub async fn story(&self, selector: &str) -> String {
        let described = self.kubectl(&["describe", "pods", "--selector", selector]).await;
        let logs = self.kubectl(&["logs", "--tail=40", "--prefix", "--selector", selector]).await;
        format!("{}\n{}", described.unwrap_or_default(), logs.unwrap_or_default())
    }

    /// Runs `kubectl` in fabrique's namespace.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.cluster.kubectl(&[&["--namespace", OWN], args].concat()).await
    }

    /// One object.
    ///
    /// # Errors
    /// When there is none.
    pub async fn get(&self, namespace: &str, kind: &str, name: &str) -> Result<Value> {
        let args = ["get", kind, name, "--namespace", namespace, "--output=json"];
        Ok(serde_json::from_str(&self.cluster.kubectl(&args).await?)?)
    }

    /// All objects with these labels.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn list(&self, namespace: &str, kind: &str, selector: &str) -> Result<Vec<Value>> {
        let args = ["get", kind, "--namespace", namespace, "--selector", selector, "--output=json"];
        let list: Value = serde_json::from_str(&self.cluster.kubectl(&args).await?)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Runs a command for people where they can reach everything, in a pod, and returns its JSON.
    ///
    /// # Errors
    /// When it does not end with 0, or prints something else.
    pub async fn ask(&self, args: &[&str]) -> Result<Value> {
        let text = self.tell(&[args, &["--output=json"]].concat()).await?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }

    /// The same, as it is shown to people.
    ///
    /// # Errors
    /// When it does not end with 0.
    pub async fn tell(&self, args: &[&str]) -> Result<String> {
        let command = ["exec", people::POD, "--container", people::NAME, "--", "fabrique"];
        self.kubectl(&[&command, args].concat()).await
    }

    /// Delivers what Gitea sends for a push to `main`, signed. Returns the status.
    ///
    /// # Errors
    /// When the receiver does not answer.
    pub async fn deliver_push(&self, repo: &str, before: &str, after: &str) -> Result<u16> {
        // Refused when the process has a provider already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().timeout(JOB).build()?;
        let answer = self.delivery(&client, (repo, "main"), before, after)?.send().await?;
        Ok(answer.status().as_u16())
    }

    /// The request that Gitea makes for a push to a branch of a repository, signed.
    ///
    /// # Errors
    /// Never with the secret that there is.
    pub fn delivery(
        &self,
        client: &reqwest::Client,
        (repo, branch): (&str, &str),
        before: &str,
        after: &str,
    ) -> Result<reqwest::RequestBuilder> {
        let push = webhook::push(repo, branch, before, after);
        webhook::delivery(client, self.hook_url(), HOOK_SECRET, push.to_string().into_bytes())
    }

    /// A client's identity that builders believe, as a worker makes one for itself, and the authority in PEM.
    ///
    /// # Errors
    /// When the authority's secret is not what it should be.
    pub async fn builder_client(&self) -> Result<(Identity, String)> {
        let secret = self.get(OWN, "secret", "fabrique-builder-ca").await?;
        let file = |key: &str| -> Result<String> {
            let text = secret["data"][key].as_str().with_context(|| format!("an authority without {key}"))?;
            Ok(String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text)?)?)
        };
        let (certificate, key) = (file("ca.crt")?, SecretString::from(file("ca.key")?));
        let now = now()?;
        let authority = BuilderCa::from_pem(&certificate, &key, now)?;
        Ok((authority.client("bench", now)?, certificate))
    }

    /// Takes away all builders, so that none that is there counts.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn take_away_builders(&self) -> Result<()> {
        let builders = labels::builders();
        let delete = ["delete", "pods", "--namespace", BUILDS, "--selector", &builders, "--now"];
        self.cluster.kubectl(&delete).await.map(drop)
    }

    /// Takes away the apps of earlier runs, as a team would: by removing them from `cluster/apps`.
    async fn take_away_apps(&self) -> Result<()> {
        let gitea = self.cluster.gitea();
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", "apps")).await?;
        if apps.git(&["ls-files", "--", "apps"]).await?.is_empty() {
            return Ok(());
        }
        apps.git(&["rm", "-r", "--quiet", "--", "apps"]).await?;
        apps.git(&["rm", "-r", "--quiet", "--ignore-unmatch", "--", "argocd/*.yaml"]).await?;
        apps.commit("Take away the apps of earlier runs").await?;
        apps.push().await
    }
}

async fn apply<'a>(cluster: &Cluster, documents: impl IntoIterator<Item = &'a Value>) -> Result<()> {
    let items: Vec<&Value> = documents.into_iter().collect();
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()).await
}

/// What `secrets.example.yaml` lists, and the same for people.
async fn install_secrets(cluster: &Cluster, tokens: &Tokens) -> Result<()> {
    let Tokens { read, status, hooks, apps } = tokens;
    let bus = |role: &str| cluster.nats().password(role).to_owned();
    let mut secrets = vec![
        (
            "fabrique-receiver",
            json!({ "webhook-secret": HOOK_SECRET, "apps-token": apps, "nats-password": bus("receiver") }),
        ),
        (
            "fabrique-worker",
            json!({
                "read-token": read, "status-token": status, "apps-token": apps, "nats-password": bus("worker"),
            }),
        ),
        (
            "fabrique-reconciler",
            json!({ "read-token": read, "apps-token": apps, "nats-password": bus("reconciler") }),
        ),
        (
            "fabrique-hooks",
            json!({ "hooks-token": hooks, "apps-token": apps, "webhook-secret": HOOK_SECRET }),
        ),
        ("fabrique-init", json!({ "nats-password": bus("admin") })),
        (
            "fabrique-people",
            json!({ "read-token": read, "apps-token": apps, "nats-password": bus("operator") }),
        ),
    ];
    let authority = ["get", "secret", "fabrique-builder-ca", "--namespace", OWN, "--ignore-not-found"];
    // Builders of an earlier run trust the authority of that run.
    if cluster.kubectl(&authority).await?.trim().is_empty() {
        let made = BuilderCa::generate(now()?, Duration::from_hours(24))?;
        secrets.push((
            "fabrique-builder-ca",
            json!({ "ca.crt": made.certificate, "ca.key": made.key.expose_secret() }),
        ));
    }
    let items: Vec<Value> = secrets
        .into_iter()
        .map(|(name, data)| {
            let metadata = json!({ "name": name, "namespace": OWN });
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data })
        })
        .collect();
    apply(cluster, &items).await
}

fn now() -> Result<Timestamp> {
    Ok(Timestamp(u64::try_from(std::time::UNIX_EPOCH.elapsed()?.as_millis())?))
}
