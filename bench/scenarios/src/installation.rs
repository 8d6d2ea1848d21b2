//! Fabrique, brought into the cluster as an operator would.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fabrique_bed::{Cluster, GitRepo};
use fabrique_cluster_tests::manifests;
use fabrique_core::time::Timestamp;
use fabrique_kubernetes::config::Isolation;
use fabrique_kubernetes::labels;
use fabrique_kubernetes::pki::BuilderCa;
use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::Mutex;

use crate::forge::{self, Seeded, Tokens};
use crate::image;
use crate::overlay::{self, Filling, kind};
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
    /// Fabrique's image by digest.
    pub image: String,
    receiver: String,
    /// What is applied now.
    isolation: Mutex<Isolation>,
}

impl Installation {
    /// Seeds Gitea, builds the image, installs the overlay and waits until everything is ready. An installation that
    /// is there already becomes this one; the apps of earlier runs are taken away.
    ///
    /// # Errors
    /// When a server refuses, or a role does not get ready, with what it says.
    pub async fn install(cluster: &'static Cluster, isolation: Isolation) -> Result<Self> {
        forge::seed(cluster).await?;
        let image = image::push(cluster).await.context("fabrique's image")?;
        let unfinished = Filling {
            image: image.clone(),
            builder: cluster.images().builder.clone(),
            receiver: String::new(),
            isolation,
        };
        let documents = overlay::fill(&manifests::overlay("bench").await?, &unfinished)?;
        apply(cluster, documents.iter().filter(|document| kind(document) == "Namespace")).await?;
        let service = documents.iter().filter(|document| kind(document) == "Service");
        apply(cluster, service).await?;
        let address =
            ["get", "service", "fabrique", "--namespace", OWN, "--output=jsonpath={.spec.clusterIP}"];
        let address = cluster.kubectl(&address).await?;
        let receiver = format!("http://{}:8080/webhook", address.trim());
        let tokens = forge::tokens(cluster.gitea()).await?;
        install_secrets(cluster, &tokens).await?;
        cluster.apply(&forge::root(cluster).to_string()).await?;
        let installation = Self { cluster, image, receiver, isolation: Mutex::new(isolation) };
        installation.take_away_pods().await?;
        installation.take_away_apps().await?;
        installation.apply(isolation).await?;
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

    /// Lets builds be kept apart in another way from now on.
    ///
    /// # Errors
    /// As [`Installation::install`].
    pub async fn isolate(&self, isolation: Isolation) -> Result<()> {
        let mut now = self.isolation.lock().await;
        if *now != isolation {
            self.apply(isolation).await?;
            *now = isolation;
        }
        Ok(())
    }

    async fn apply(&self, isolation: Isolation) -> Result<()> {
        let filling = Filling {
            image: self.image.clone(),
            builder: self.cluster.images().builder.clone(),
            receiver: self.receiver.clone(),
            isolation,
        };
        let documents = overlay::fill(&manifests::overlay("bench").await?, &filling)?;
        let (roles, rest): (Vec<_>, Vec<_>) =
            documents.iter().partition(|document| kind(document) == "Deployment");
        apply(self.cluster, rest).await?;
        self.job("init").await?;
        apply(self.cluster, roles).await?;
        self.cluster.apply(&people(&self.image, &config_name(&documents)?)).await?;
        for role in ["receiver", "worker"] {
            self.rolled_out(role).await?;
        }
        let ready = ["wait", "--namespace", OWN, "--for=condition=Ready", "--timeout=110s", "pod/people"];
        self.cluster.kubectl(&ready).await.context("the pod for people")?;
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
        let command = ["exec", "people", "--container=people", "--", "fabrique"];
        let text = self.kubectl(&[&command, args, &["--output=json"]].concat()).await?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }

    /// Delivers what Gitea sends for a push to `main`, signed. Returns the status.
    ///
    /// # Errors
    /// When the receiver does not answer.
    pub async fn deliver_push(&self, repo: &str, before: &str, after: &str) -> Result<u16> {
        let payload = json!({
            "ref": "refs/heads/main", "before": before, "after": after, "repository": { "full_name": repo },
        });
        let body = payload.to_string();
        let mac = Hmac::<Sha256>::new_from_slice(HOOK_SECRET.as_bytes())?.chain_update(&body);
        // Refused when the process has a provider already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().timeout(JOB).build()?;
        let request = client
            .post(self.hook_url())
            .header("content-type", "application/json")
            .header("x-gitea-event", "push")
            .header("x-gitea-delivery", "f6266f16-1bf3-46a5-9ea4-602e06ead473")
            .header("x-gitea-signature", hex::encode(mac.finalize().into_bytes()))
            .body(body);
        Ok(request.send().await?.status().as_u16())
    }

    /// Takes away the builders of earlier runs, so that none of them counts, and the pod for people, which cannot be
    /// changed.
    async fn take_away_pods(&self) -> Result<()> {
        self.kubectl(&["delete", "pod", "people", "--now", "--ignore-not-found"]).await?;
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

/// The name of the configuration that pods mount, hash included.
fn config_name(documents: &[Value]) -> Result<String> {
    let names = documents
        .iter()
        .filter(|document| kind(document) == "ConfigMap")
        .filter_map(|document| document["metadata"]["name"].as_str());
    let found = names.into_iter().find(|name| name.starts_with("fabrique-config"));
    found.map(str::to_owned).context("an overlay without a configuration")
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
        let now = std::time::UNIX_EPOCH.elapsed()?.as_millis();
        let made = BuilderCa::generate(Timestamp(u64::try_from(now)?), Duration::from_hours(24))?;
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

/// The pod in which people ask: fabrique's image with a configuration, doing nothing.
fn people(image: &str, config: &str) -> String {
    let file =
        |key: &str, name: &str| json!({ "name": key, "value": format!("/run/secrets/fabrique/{name}") });
    let volume = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "people", "namespace": OWN, "labels": { "app.kubernetes.io/component": "people" } },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "people", "image": image, "command": ["sleep", "2147483647"],
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": { "drop": ["ALL"] },
                },
                "env": [
                    { "name": "FABRIQUE_CONFIG", "value": "/etc/fabrique/fabrique.yaml" },
                    file("FABRIQUE_GITEA__READ_TOKEN_FILE", "read-token"),
                    file("FABRIQUE_GITEA__APPS_TOKEN_FILE", "apps-token"),
                    file("FABRIQUE_NATS__USERS__OPERATOR__PASSWORD_FILE", "nats-password"),
                ],
                "volumeMounts": [
                    volume("secrets", "/run/secrets/fabrique"), volume("config", "/etc/fabrique"),
                    volume("state", "/var/lib/fabrique"), volume("tmp", "/tmp"),
                ],
            }],
            "volumes": [
                { "name": "secrets", "secret": { "secretName": "fabrique-people", "defaultMode": 0o440 } },
                { "name": "config", "configMap": { "name": config } },
                { "name": "state", "emptyDir": {} },
                { "name": "tmp", "emptyDir": {} },
            ],
        },
    })
    .to_string()
}
