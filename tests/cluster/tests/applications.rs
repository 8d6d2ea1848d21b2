//! What `fabrique render` writes, deployed by a real Argo CD: one app that another one needs, each in one of the two forms
//! of a source.
//!
//! Nobody builds here. A person registers both apps, puts their compositions beside them and pushes what is rendered.

use std::path::PathBuf;
use std::time::Duration;

use fabrique_bed::{Cluster, GitRepo, wait_until};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::MutexGuard;

use crate::argo;
use crate::ground::{Ground, SOON, applications_health, ground};
use crate::program::fabrique;

const MANIFEST: &str = "code-location.manifest.yaml";
const OVERLAY: &str = "deploy/overlays/prod";
const HEALTH: &str = "resource.customizations.health.argoproj.io_Application";
/// How long Argo CD may take from a push that it is told of to what it deploys, on a busy machine.
const SYNCED: Duration = Duration::from_mins(2);

/// One app with its repository.
struct App {
    name: String,
    source: GitRepo,
    /// Its image without a digest, and with one.
    image: String,
    reference: String,
    /// How its manifests go on below the container.
    container: Value,
    form: &'static str,
}

/// Both apps and a `cluster/apps` of their own.
struct Scene {
    ground: Ground,
    apps: GitRepo,
    repo: String,
    root: String,
    base: App,
    top: App,
    config: tempfile::NamedTempFile,
    fabrique: PathBuf,
}

#[tokio::test]
async fn an_app_is_deployed_after_the_one_that_it_needs_by_the_health_of_applications_and_not_without() {
    let Some(ground) = ground().await else { return };
    let scene = Scene::open(ground).await;
    scene.nothing_is_created_too_early().await;
    let alone = applications_health().await;
    scene.without_their_health_both_come_at_once().await;
    scene.what_people_lay_beside_them_takes_none_away().await;
    scene.what_is_removed_takes_its_resources_along_and_leaves_what_is_to_stay().await;
    scene.with_it_the_other_one_comes_first(alone).await;
    scene.end().await;
}

impl Scene {
    async fn open(ground: Ground) -> Self {
        let id = std::process::id();
        let (repo, root) = (format!("apps-{id}"), format!("rendered-{id}"));
        let gitea = ground.cluster.gitea();
        // Whoever comes first makes them.
        for org in ["cluster", "atlas"] {
            let _ = gitea.create_org(org).await;
        }
        gitea.create_repo("cluster", &repo, false).await.unwrap();
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", &repo)).await.unwrap();
        let config = tempfile::NamedTempFile::new().unwrap();
        let settings = json!({
            "gitea": { "url": gitea.base_url(), "apps_repo": format!("cluster/{repo}") },
            "nats": { "servers": ["nats://127.0.0.1:9"] },
            "registry": { "allowed": ["registry:80"] },
            "state": { "dir": ground.cluster.folder() },
            "render": {
                "root": root, "project": root,
                "destinations": [{ "environment": "prod", "namespaces": ["apps"] }],
            },
        });
        std::fs::write(config.path(), settings.to_string()).unwrap();
        let ready = json!(["/bin/busybox", "test", "-e", "/state/ready"]);
        let base = App::create(
            ground.cluster,
            &format!("base-{id}"),
            &ground.cluster.images().busybox,
            json!({
                "command": ["/bin/busybox", "sleep", "2147483647"],
                "readinessProbe": { "exec": { "command": ready }, "periodSeconds": 1 },
                "volumeMounts": [{ "name": "state", "mountPath": "/state" }],
            }),
            "copy",
        )
        .await;
        let top = App::create(
            ground.cluster,
            &format!("top-{id}"),
            &ground.cluster.images().debian,
            json!({ "command": ["sleep", "2147483647"] }),
            "repository",
        )
        .await;
        Self { ground, apps, repo, root, base, top, config, fabrique: fabrique().await }
    }

    /// Refused while the one that is needed is absent; left alone while it is not ready, or not deployed.
    async fn nothing_is_created_too_early(&self) {
        let (base, top) = (&self.base, &self.top);
        let contract = json!({
            "apiVersion": "fabrique/v1", "kind": "Contract", "version": 1, "accepts": [1],
            "endpoints": {
                "gitea": "http://gitea:3000", "argocd": "http://argocd:8080",
                "registry": "registry:80", "nats": "nats://nats:4222",
            },
            "environments": { "prod": {} },
        });
        self.apps.write("contract.yaml", contract.to_string()).await.unwrap();
        base.declare("ready: false").await;
        top.declare(&format!("ready: true\ndependsOn: {{ codeLocations: [{}] }}", base.name)).await;
        top.register(&self.apps, true).await;
        let (code, told) = self.render(&[]).await;
        assert_eq!(code, 1, "{told}");
        let unknown = format!("{}, which it depends on, is not registered", base.name);
        assert!(told.contains(&unknown), "{told}");

        base.register(&self.apps, false).await;
        let (code, told) = self.render(&[]).await;
        assert_eq!(code, 0, "to wait is nothing to be mended: {told}");
        let waits =
            format!("{}: not rendered: {}, which it depends on, says ready: false", top.file(), base.name);
        assert!(told.contains(&waits), "{told}");

        base.declare("ready: true").await;
        let (code, told) = self.render(&[]).await;
        assert_eq!(code, 0, "{told}");
        let absent =
            format!("{}: not rendered: {}, which it depends on, is not deployed", top.file(), base.name);
        assert!(told.contains(&absent), "{told}");
        assert!(!self.apps.path().join(top.file()).exists());

        base.register(&self.apps, true).await;
        let (code, told) = self.render(&[]).await;
        assert_eq!((code, self.waves().await), (0, ["0".to_owned(), "1".to_owned()]), "{told}");
        let text = self.apps.read(&top.file()).await.unwrap();
        let pinned = format!("targetRevision: {}", top.source.head().await.unwrap());
        let put_in = format!("{}={}", top.image, top.reference);
        assert!(text.contains(&pinned) && text.contains(&put_in), "{text}");
    }

    /// As Argo CD comes: it thinks nothing of the health of an Application, and waves order nothing.
    async fn without_their_health_both_come_at_once(&self) {
        let forget = json!({ "data": { HEALTH: null } }).to_string();
        let patch =
            ["patch", "configmap", "argocd-cm", "--namespace=argocd", "--type=merge", "--patch", &forget];
        self.ground.cluster.kubectl(&patch).await.unwrap();
        self.push("Deploy both").await;
        self.ground.cluster.apply(&self.apps.read("root.yaml").await.unwrap()).await.unwrap();
        // In the form `repository`.
        self.is_well(&self.top).await;
        // It is not ready before its file is there, and nobody has made that yet.
        let progresses = async || {
            let base = self.application(&self.base.application()).await?;
            (base["status"]["health"]["status"] == "Progressing").then_some(())
        };
        self.waits("the one that is needed to be under way still", progresses).await;
        self.runs(&self.top).await;
    }

    /// A kustomization that does not name an app, and Helm's file: for Argo CD they make a build of a folder.
    async fn what_people_lay_beside_them_takes_none_away(&self) {
        let kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [format!("{}.yaml", self.base.application())],
        });
        let beside = ["applications/kustomization.yaml", "applications/Chart.yaml"];
        self.apps.write(beside[0], kustomization.to_string()).await.unwrap();
        self.apps.write(beside[1], "apiVersion: v2\nname: apps\nversion: 0.1.0\n").await.unwrap();
        let (code, told) = self.render(&[]).await;
        assert!(code == 1 && beside.iter().all(|file| told.contains(&format!("{file}: "))), "{told}");
        self.push("Lay a build beside the Applications").await;
        let head = self.apps.head().await.unwrap();
        let synced = async || {
            self.refresh(&self.root).await;
            let status = self.application(&self.root).await?["status"].clone();
            let is_done = status["sync"]["revision"] == head.as_str() && status["sync"]["status"] == "Synced";
            is_done.then_some(status)
        };
        let status = self.waits("the root to be Synced", synced).await;
        assert_eq!(status["sourceType"], "Directory");
        for app in [&self.base, &self.top] {
            let application = self.application(&app.application()).await.unwrap();
            assert!(application["metadata"]["deletionTimestamp"].is_null(), "{application:#}");
        }
        self.apps.git(&["revert", "--no-edit", "HEAD"]).await.unwrap();
        self.push("Take it away").await;
    }

    async fn what_is_removed_takes_its_resources_along_and_leaves_what_is_to_stay(&self) {
        let top = &self.top;
        self.apps.git(&["rm", "-r", "--quiet", &format!("apps/{}", top.name)]).await.unwrap();
        let (code, told) = self.render(&["--remove", "--yes"]).await;
        assert_eq!(code, 0, "{told}");
        assert!(told.contains("removes everything that it deployed"), "{told}");
        self.push("Remove an app").await;
        let gone = async || {
            self.refresh(&self.root).await;
            let application = self.find("application", &top.application(), "argocd").await?;
            let deployment = self.find("deployment", &top.name, "apps").await?;
            (application.is_empty() && deployment.is_empty()).then_some(())
        };
        self.waits("the app to be gone", gone).await;
        let kept = self.find("configmap", &format!("{}-kept", top.name), "apps").await.unwrap();
        assert!(!kept.is_empty(), "Delete=false is honoured");
        assert!(self.application(&self.base.application()).await.is_some());
    }

    async fn with_it_the_other_one_comes_first(&self, alone: MutexGuard<'static, ()>) {
        self.ground.judge_applications().await;
        // Without it the root is healthy whatever its Applications are.
        let judged = async || {
            self.refresh(&self.root).await;
            let root = self.application(&self.root).await?;
            (root["status"]["health"]["status"] == "Progressing").then_some(())
        };
        self.waits("Argo CD to judge the health of an Application", judged).await;
        // From here on it stays so.
        drop(alone);

        self.apps.git(&["revert", "--no-edit", "HEAD"]).await.unwrap();
        self.push("Deploy it again").await;
        let held_up = async || {
            self.refresh(&self.root).await;
            let operation = self.application(&self.root).await?["status"]["operationState"].clone();
            let message = operation["message"].as_str()?.to_owned();
            let waits = message.contains("waiting for healthy state of argoproj.io/Application/");
            (operation["phase"] == "Running" && waits && message.contains(&self.base.application()))
                .then_some(())
        };
        self.waits("the second wave to be held up", held_up).await;
        assert_eq!(self.find("application", &self.top.application(), "argocd").await.unwrap(), "");

        let pod = format!("deployment/{}", self.base.name);
        let touch = ["exec", "--namespace=apps", &pod, "--", "/bin/busybox", "touch", "/state/ready"];
        self.ground.cluster.kubectl(&touch).await.unwrap();
        // In the form `copy`, and then the other one.
        self.is_well(&self.base).await;
        self.is_well(&self.top).await;
        for app in [&self.base, &self.top] {
            self.runs(app).await;
        }
    }

    async fn end(&self) {
        let names = [&self.root, &self.top.application(), &self.base.application()];
        for name in names {
            let delete =
                ["delete", "application", name, "--namespace=argocd", "--wait=false", "--ignore-not-found"];
            self.ground.cluster.kubectl(&delete).await.unwrap();
        }
        let kept = format!("{}-kept", self.top.name);
        let delete = ["delete", "configmap", &kept, "--namespace=apps", "--wait=false", "--ignore-not-found"];
        self.ground.cluster.kubectl(&delete).await.unwrap();
    }

    /// Renders into the checkout. Returns the exit code and what was told.
    async fn render(&self, more: &[&str]) -> (i32, String) {
        let token = self.ground.cluster.gitea().admin_token();
        let mut command = Command::new(&self.fabrique);
        command.arg("--config").arg(self.config.path()).arg("render").arg("--path").arg(self.apps.path());
        command.args(more).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.config.path().parent().unwrap());
        command.env("FABRIQUE_GITEA__READ_TOKEN", token).env("FABRIQUE_GITEA__APPS_TOKEN", token);
        let output = tokio::time::timeout(SOON, command.kill_on_drop(true).output()).await.unwrap().unwrap();
        let told = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(told).unwrap())
    }

    async fn push(&self, message: &str) {
        self.apps.commit(message).await.unwrap();
        self.apps.push().await.unwrap();
    }

    /// The waves of both.
    async fn waves(&self) -> [String; 2] {
        let wave = async |app: &App| {
            let text = self.apps.read(&app.file()).await.unwrap();
            text.split_once("sync-wave: \"").unwrap().1.split('"').next().unwrap().to_owned()
        };
        [wave(&self.base).await, wave(&self.top).await]
    }

    async fn application(&self, name: &str) -> Option<Value> {
        argo::look(self.ground.cluster, name).await
    }

    /// Its name where it is there; nothing when nobody could say.
    async fn find(&self, kind: &str, name: &str, namespace: &str) -> Option<String> {
        let get = ["get", kind, name, "--namespace", namespace, "--ignore-not-found", "--output=name"];
        self.ground.cluster.kubectl(&get).await.ok().map(|found| found.trim().to_owned())
    }

    /// To be asked for until something comes of it: Argo CD before 3.6 drops a request that arrives while it works on
    /// the one before (argo-cd issue 28392).
    async fn refresh(&self, name: &str) {
        let refresh = "argocd.argoproj.io/refresh=normal";
        let annotate = ["annotate", "application", name, "--namespace=argocd", "--overwrite", refresh];
        self.ground.cluster.kubectl(&annotate).await.unwrap();
    }

    async fn is_well(&self, app: &App) {
        let name = app.application();
        let well = async || {
            let status = self.application(&name).await?["status"].clone();
            (status["sync"]["status"] == "Synced" && status["health"]["status"] == "Healthy").then_some(())
        };
        self.waits(&format!("{name} to be Synced and Healthy"), well).await;
    }

    /// Its pod runs the digest that the composition names, and is told so.
    async fn runs(&self, app: &App) {
        let selector = format!("app={}", app.name);
        let get = ["get", "pods", "--namespace=apps", "--selector", &selector, "--output=json"];
        let pods: Value = serde_json::from_str(&self.ground.cluster.kubectl(&get).await.unwrap()).unwrap();
        let [pod] = &pods["items"].as_array().unwrap()[..] else { panic!("not one pod: {pods:#}") };
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["image"], app.reference);
        assert_eq!(container["env"], json!([{ "name": "DAGSTER_CURRENT_IMAGE", "value": app.reference }]));
        let runs = pod["status"]["containerStatuses"][0]["imageID"].as_str().unwrap_or_default();
        assert_eq!(runs.rsplit('@').next(), app.reference.rsplit('@').next());
    }

    /// Waits, and tells what Argo CD says of everything when it was in vain.
    async fn waits<T, F: Future<Output = Option<T>>>(&self, what: &str, check: impl FnMut() -> F) -> T {
        match wait_until(what, SYNCED, check).await {
            Ok(found) => found,
            Err(error) => {
                let mut told = format!("{error:#} ({})", self.repo);
                for name in [&self.root, &self.base.application(), &self.top.application()] {
                    let seen = self.application(name).await.unwrap_or_default();
                    told.push_str(&format!("\n{name}: {:#}", seen["status"]));
                }
                panic!("{told}");
            }
        }
    }
}

impl App {
    async fn create(
        cluster: &Cluster,
        name: &str,
        reference: &str,
        container: Value,
        form: &'static str,
    ) -> Self {
        // Public: the bed's Argo CD cannot answer git when it asks who it is.
        cluster.gitea().create_repo("atlas", name, false).await.unwrap();
        let source = GitRepo::clone(&cluster.gitea().clone_url_with_token("atlas", name)).await.unwrap();
        let image = reference.split('@').next().unwrap().to_owned();
        let app =
            Self { name: name.to_owned(), source, image, reference: reference.to_owned(), container, form };
        let upper = name.to_uppercase().replace('-', "_");
        app.write(&app.source, OVERLAY, &format!("__{upper}_IMAGE_DIGEST__"), &format!("__{upper}_IMAGE__"))
            .await;
        app
    }

    fn application(&self) -> String {
        format!("{}-prod", self.name)
    }

    fn file(&self) -> String {
        format!("applications/{}.yaml", self.application())
    }

    /// Pushes its declaration.
    async fn declare(&self, lines: &str) {
        let text = format!("codeLocation: {}\ncontractVersion: 1\n{lines}\n", self.name);
        self.source.write(MANIFEST, text).await.unwrap();
        self.source.commit("Declare").await.unwrap();
        self.source.push().await.unwrap();
    }

    /// Registers it, and where it is `deployed` puts down what a worker would have committed by now.
    async fn register(&self, apps: &GitRepo, deployed: bool) {
        let (name, image, home) = (&self.name, &self.image, format!("apps/{}", self.name));
        let repo = format!("atlas/{name}");
        let place = "spec.template.spec.containers[0].env[name=DAGSTER_CURRENT_IMAGE].value";
        let registration = json!({
            "apiVersion": "fabrique/v1", "kind": "App", "metadata": { "name": name },
            "spec": {
                "source": { "repo": repo, "branch": "main", "declaration": MANIFEST },
                "image": image,
                "environments": [{
                    "name": "prod",
                    "application": { "source": self.form },
                    "infra": { "from": "head", "repo": repo, "path": OVERLAY },
                    "bindings": [
                        {
                            "channel": "image", "file": "kustomization.yaml",
                            "path": format!("images[name={image}].digest"), "form": "digest",
                        },
                        { "channel": "image", "file": "patch.yaml", "path": place, "form": "reference" },
                    ],
                }],
            },
        });
        let registration = serde_saphyr::to_string(&registration).unwrap();
        apps.write(&format!("{home}/app.yaml"), registration).await.unwrap();
        if !deployed {
            return;
        }
        let (digest, head) = (self.reference.rsplit('@').next().unwrap(), self.source.head().await.unwrap());
        self.write(apps, &format!("{home}/prod"), digest, &self.reference).await;
        let composition = format!(
            "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: {name}, environment: prod }}\n\
             image: {{ repository: \"{image}\", digest: \"{digest}\", revision: {head} }}\n\
             infra: {{ repo: {repo}, path: {OVERLAY}, revision: {head} }}\n"
        );
        apps.write(&format!("{home}/prod/composition.yaml"), composition).await.unwrap();
    }

    /// The overlay, unfilled or filled.
    async fn write(&self, into: &GitRepo, folder: &str, digest: &str, reference: &str) {
        let (name, image) = (&self.name, &self.image);
        let mut container = json!({
            "name": "app", "image": image, "resources": { "requests": { "cpu": "1m", "memory": "4Mi" } },
        });
        for (key, value) in self.container.as_object().unwrap() {
            container[key] = value.clone();
        }
        let labels = json!({ "app": name });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "terminationGracePeriodSeconds": 1, "containers": [container],
                        "volumes": [{ "name": "state", "emptyDir": {} }],
                    },
                },
            },
        });
        let kept = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": format!("{name}-kept"),
                "annotations": { "argocd.argoproj.io/sync-options": "Delete=false" },
            },
        });
        let patch = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
            "spec": { "template": { "spec": { "containers": [
                { "name": "app", "env": [{ "name": "DAGSTER_CURRENT_IMAGE", "value": reference }] },
            ] } } },
        });
        let kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": ["deployment.yaml", "kept.yaml"],
            "patches": [{ "path": "patch.yaml" }],
            "images": [{ "name": image, "digest": digest }],
        });
        for (file, content) in [
            ("deployment.yaml", deployment),
            ("kept.yaml", kept),
            ("patch.yaml", patch),
            ("kustomization.yaml", kustomization),
        ] {
            into.write(&format!("{folder}/{file}"), serde_saphyr::to_string(&content).unwrap())
                .await
                .unwrap();
        }
    }
}
