//! A `cluster/apps` of a test's own: a person registers apps there and puts their compositions beside them, `fabrique
//! render` writes the rest, and a real Argo CD deploys what is pushed. Everything is in one namespace, called like it.

use std::path::PathBuf;
use std::time::Duration;

use fabrique_bed::{GitRepo, wait_until};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::argo;
use crate::ground::{Ground, SOON};
use crate::program::fabrique;

const MANIFEST: &str = "code-location.manifest.yaml";
/// How long Argo CD may take from a push that it is told of to what it deploys, on a busy machine.
const SYNCED: Duration = Duration::from_mins(3);

/// The repository, its checkout, and whoever renders into it.
pub(crate) struct Apps {
    pub(crate) ground: Ground,
    /// Of the namespace, the repository, the root Application and its project.
    pub(crate) name: String,
    pub(crate) repo: GitRepo,
    config: tempfile::NamedTempFile,
    fabrique: PathBuf,
}

/// One app with its repository, and the digest that it deploys.
pub(crate) struct App {
    pub(crate) name: String,
    pub(crate) source: GitRepo,
    image: String,
    /// Where the image really is, and which it is.
    bed: &'static str,
    digest: &'static str,
}

impl Apps {
    /// An empty one with its namespace. `render` is added to the settings of that name.
    pub(crate) async fn open(ground: Ground, what: &str, render: Value) -> Self {
        let name = format!("{what}-{}", std::process::id());
        ground.cluster.kubectl(&["create", "namespace", &name]).await.unwrap();
        let gitea = ground.cluster.gitea();
        // Whoever comes first makes them.
        for org in ["cluster", "atlas"] {
            let _ = gitea.create_org(org).await;
        }
        // Public: the bed's Argo CD cannot answer git when it asks who it is.
        gitea.create_repo("cluster", &name, false).await.unwrap();
        let repo = GitRepo::clone(&gitea.clone_url_with_token("cluster", &name)).await.unwrap();
        let mut settings = json!({
            "gitea": { "url": gitea.base_url(), "apps_repo": format!("cluster/{name}") },
            "nats": { "servers": ["nats://127.0.0.1:9"] },
            "registry": { "allowed": ["registry:80"] },
            "state": { "dir": ground.cluster.folder() },
            "render": {
                "root": name, "project": name,
                "destinations": [{ "environment": "prod", "namespaces": [name] }],
            },
        });
        for (key, value) in render.as_object().unwrap() {
            settings["render"][key] = value.clone();
        }
        let config = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(config.path(), settings.to_string()).unwrap();
        Self { ground, name, repo, config, fabrique: fabrique().await }
    }

    /// What the cluster offers, with `more` in it.
    pub(crate) async fn offer(&self, more: Value) {
        let mut contract = json!({
            "apiVersion": "fabrique/v1", "kind": "Contract", "version": 1, "accepts": [1],
            "endpoints": {
                "gitea": "http://gitea:3000", "argocd": "http://argocd:8080",
                "registry": "registry:80", "nats": "nats://nats:4222",
            },
            "environments": { "prod": {} },
        });
        for (key, value) in more.as_object().unwrap() {
            contract[key] = value.clone();
        }
        self.repo.write("contract.yaml", contract.to_string()).await.unwrap();
    }

    /// Runs `fabrique` with this repository's settings. Returns the exit code and what was told.
    pub(crate) async fn fabrique(&self, args: &[&str]) -> (i32, String) {
        let token = self.ground.cluster.gitea().admin_token();
        let mut command = Command::new(&self.fabrique);
        command.arg("--config").arg(self.config.path()).args(args);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.config.path().parent().unwrap());
        command.env("KUBECONFIG", self.ground.cluster.kubeconfig());
        command.env("FABRIQUE_GITEA__READ_TOKEN", token).env("FABRIQUE_GITEA__APPS_TOKEN", token);
        let output = tokio::time::timeout(SOON, command.kill_on_drop(true).output()).await.unwrap().unwrap();
        let told = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(told).unwrap())
    }

    /// Renders into the checkout, commits everything and pushes it. The revision.
    pub(crate) async fn deploy(&self, message: &str, more: &[&str]) -> String {
        let path = self.repo.path().display().to_string();
        let (code, told) = self.fabrique(&[&["render", "--path", &path], more].concat()).await;
        assert_eq!(code, 0, "{told}");
        let revision = self.repo.commit(message).await.unwrap();
        self.repo.push().await.unwrap();
        revision
    }

    /// Brings the root to Argo CD, as a person does once.
    pub(crate) async fn bring_root(&self) {
        self.ground.cluster.apply(&self.repo.read("root.yaml").await.unwrap()).await.unwrap();
    }

    /// Runs `kubectl` in the namespace.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).await.unwrap()
    }

    /// The same, where it may fail.
    pub(crate) async fn try_kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        self.ground.cluster.kubectl(&[&["--namespace", &self.name], args].concat()).await
    }

    /// An object of the namespace; nothing while it is not there.
    pub(crate) async fn get(&self, kind: &str, name: &str) -> Option<Value> {
        serde_json::from_str(&self.try_kubectl(&["get", kind, name, "--output=json"]).await.ok()?).ok()
    }

    /// What Argo CD makes of an Application.
    pub(crate) async fn application(&self, name: &str) -> Option<Value> {
        argo::look(self.ground.cluster, name).await
    }

    /// Has Argo CD look at the root and at an Application.
    pub(crate) async fn refresh(&self, name: &str) {
        argo::refresh(self.ground.cluster, &[&self.name, name]).await;
    }

    /// Waits until an Application has been synced to a revision, and everything of it is well.
    pub(crate) async fn is_synced(&self, name: &str, revision: &str) {
        let synced = async || {
            self.refresh(name).await;
            let status = self.application(name).await?["status"].clone();
            let well = status["sync"]["status"] == "Synced" && status["health"]["status"] == "Healthy";
            let operation = &status["operationState"];
            let done = operation["phase"] == "Succeeded" && is_of(&operation["syncResult"], revision);
            (well && done && is_of(&status["sync"], revision)).then_some(())
        };
        self.waits(name, "is not synced", synced).await;
    }

    /// Waits for something of an Application, and tells what Argo CD says of it when it was in vain.
    pub(crate) async fn waits<T, F: Future<Output = Option<T>>>(
        &self,
        name: &str,
        what: &str,
        check: impl FnMut() -> F,
    ) -> T {
        match wait_until(what, SYNCED, check).await {
            Ok(found) => found,
            Err(error) => {
                let told = argo::told(self.ground.cluster, &[&self.name, name]).await;
                panic!("{name} {what}: {error:#}{told}");
            }
        }
    }

    /// Lets Argo CD forget about it, and removes the namespace.
    pub(crate) async fn end(&self, applications: &[&str]) {
        for name in [&[&*self.name], applications].concat() {
            let delete =
                ["delete", "application", name, "--namespace=argocd", "--wait=false", "--ignore-not-found"];
            self.ground.cluster.kubectl(&delete).await.unwrap();
        }
        self.ground.cluster.kubectl(&["delete", "namespace", &self.name, "--wait=false"]).await.unwrap();
    }
}

/// Whether a comparison or the result of a sync is of a revision, in an Application of one source or of several.
fn is_of(compared: &Value, revision: &str) -> bool {
    match compared["revisions"].as_array() {
        Some(revisions) => !revisions.is_empty() && revisions.iter().all(|seen| seen == revision),
        None => compared["revision"] == revision,
    }
}

impl App {
    /// One that runs an image of the bed's, its repository empty.
    pub(crate) async fn create(apps: &Apps, name: &str, image: &'static str) -> Self {
        let (gitea, name) = (apps.ground.cluster.gitea(), format!("{name}-{}", std::process::id()));
        gitea.create_repo("atlas", &name, false).await.unwrap();
        let source = GitRepo::clone(&gitea.clone_url_with_token("atlas", &name)).await.unwrap();
        let (bed, digest) = image.split_once('@').unwrap();
        // No two apps share one.
        Self { image: format!("registry:80/{name}"), bed, digest, name, source }
    }

    /// Its Application.
    pub(crate) fn application(&self) -> String {
        format!("{}-prod", self.name)
    }

    /// Commits its declaration with everything that was written beside it, and pushes it. The revision.
    pub(crate) async fn declare(&self, lines: &str) -> String {
        let text = format!("codeLocation: {}\nready: true\ncontractVersion: 1\n{lines}\n", self.name);
        self.source.write(MANIFEST, text).await.unwrap();
        let revision = self.source.commit("Declare").await.unwrap();
        self.source.push().await.unwrap();
        revision
    }

    /// Registers it, with `more` said of its source.
    pub(crate) async fn register(&self, apps: &Apps, more: Value) {
        let (name, image) = (&self.name, &self.image);
        let mut source =
            json!({ "repo": format!("atlas/{name}"), "branch": "main", "declaration": MANIFEST });
        for (key, value) in more.as_object().unwrap() {
            source[key] = value.clone();
        }
        let registration = json!({
            "apiVersion": "fabrique/v1", "kind": "App", "metadata": { "name": name },
            "spec": {
                "source": source, "image": image,
                "environments": [{
                    "name": "prod",
                    "bindings": [{
                        "channel": "image", "file": "kustomization.yaml",
                        "path": format!("images[name={image}].digest"), "form": "digest",
                    }],
                }],
            },
        });
        let registration = serde_saphyr::to_string(&registration).unwrap();
        apps.repo.write(&format!("apps/{name}/app.yaml"), registration).await.unwrap();
    }

    /// Puts down what a worker would have committed once `revision` was built. `pod` is the template of its pods.
    pub(crate) async fn build(&self, apps: &Apps, revision: &str, pod: Value) {
        let (name, image, digest) = (&self.name, &self.image, self.digest);
        let home = format!("apps/{name}/prod");
        let composition = format!(
            "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: {name}, environment: prod }}\n\
             image: {{ repository: \"{image}\", digest: \"{digest}\", revision: {revision} }}\n"
        );
        apps.repo.write(&format!("{home}/composition.yaml"), composition).await.unwrap();
        let labels = json!({ "app": name });
        let mut pod = pod;
        pod["metadata"]["labels"] = labels.clone();
        pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
        let container = &mut pod["spec"]["containers"][0];
        (container["name"], container["image"]) = (json!("app"), json!(image));
        container["resources"] = json!({ "requests": { "cpu": "1m", "memory": "4Mi" } });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
            "spec": { "selector": { "matchLabels": labels }, "template": pod },
        });
        let kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": ["deployment.yaml"], "images": [{ "name": image, "newName": self.bed, "digest": digest }],
        });
        for (file, content) in [("deployment.yaml", deployment), ("kustomization.yaml", kustomization)] {
            let text = serde_saphyr::to_string(&content).unwrap();
            apps.repo.write(&format!("{home}/{file}"), text).await.unwrap();
        }
    }
}
