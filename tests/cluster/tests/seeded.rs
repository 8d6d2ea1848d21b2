//! `fabrique seed` as from a workstation: Gitea and the registry by addresses of their own, the API server by a context of
//! KUBECONFIG, and a real Argo CD that ends Synced and Healthy.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use fabrique_bed::Bed;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::apps::Apps;
use crate::ground::ground;
use crate::program::fabrique;

const SECRET: &str = "pgvector-pg-auth";
const MANIFEST: &str = "code-location.manifest.yaml";
/// How long Argo CD may take on a busy machine, and a little more.
const AGES: Duration = Duration::from_mins(6);

/// An app that is committed and that lacks the secret that its pod needs.
struct Site {
    apps: Apps,
    bed: Bed,
    folder: TempDir,
    fabrique: PathBuf,
    context: String,
    app: String,
}

#[tokio::test]
async fn an_app_is_seeded_until_argo_cd_says_synced_and_healthy_and_in_no_other_cluster() {
    let Some(ground) = ground().await else { return };
    let apps = Apps::open(ground, "seeded", json!({})).await;
    let site = Box::pin(Site::over(apps)).await;
    site.it_refuses_another_cluster_and_a_cluster_without_the_root().await;
    site.it_derives_the_secret_and_waits_for_argo_cd().await;
    site.a_second_run_changes_nothing().await;
    let application = format!("{}-prod", site.app);
    site.apps.end(&[&application]).await;
    site.bed.stop().await.unwrap();
}

impl Site {
    async fn over(apps: Apps) -> Self {
        let cluster = apps.ground.cluster;
        let context = cluster.kubectl(&["config", "current-context"]).await.unwrap().trim().to_owned();
        let bed = Bed::builder().nats().start().await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let app = format!("seeded-{}", std::process::id());
        let site = Self { apps, bed, folder, fabrique: fabrique().await, context, app };
        site.configure();
        site.commit().await;
        let (code, told) = site.run(&["init"], "unused").await;
        assert_eq!(code, 0, "{told}");
        site
    }

    fn configure(&self) {
        let (cluster, name) = (self.apps.ground.cluster, &self.apps.name);
        let file = |name: &str, value: &str| {
            std::fs::write(self.folder.path().join(name), value).unwrap();
            self.folder.path().join(name)
        };
        let token = file("token", cluster.gitea().admin_token());
        let users = ["admin", "operator"].map(|role| {
            let password = file(&format!("nats-{role}"), self.bed.nats().password(role));
            (role.to_owned(), json!({ "password_file": password }))
        });
        let settings = json!({
            "gitea": {
                "url": cluster.gitea().base_url(), "apps_repo": format!("cluster/{name}"),
                "read_token_file": token, "apps_token_file": token, "hooks_token_file": token,
            },
            "nats": {
                "servers": [self.bed.nats().address()],
                "users": users.into_iter().collect::<serde_json::Map<_, _>>(),
            },
            // As images call it, and as it is reached from here.
            "registry": {
                "allowed": ["registry:80"], "plain_http": ["registry:80"],
                "addresses": [{ "host": "registry:80", "address": cluster.registry().host() }],
            },
            "receiver": { "public_url": "http://127.0.0.1:9/webhook", "secret_file": file("secret", "of-the-test") },
            "render": {
                "enabled": true, "root": name, "project": name,
                "destinations": [{ "environment": "prod", "namespaces": [name] }],
            },
            "state": { "dir": self.folder.path().join("state") },
        });
        file("fabrique.yaml", &settings.to_string());
    }

    /// What a person and a worker have committed: everything but the secret.
    async fn commit(&self) {
        let (apps, app) = (&self.apps, &self.app);
        let gitea = apps.ground.cluster.gitea();
        gitea.create_repo("atlas", app, false).await.unwrap();
        let source = fabrique_bed::GitRepo::clone(&gitea.clone_url_with_token("atlas", app)).await.unwrap();
        let declaration = format!(
            "codeLocation: {app}\nready: true\ncontractVersion: 1\ndependsOn: {{ secrets: [{SECRET}] }}\n"
        );
        source.write(MANIFEST, declaration).await.unwrap();
        let revision = source.commit("Declare").await.unwrap();
        source.push().await.unwrap();
        let from = json!({ "namespace": apps.name, "secret": "pg-role" });
        let keys = ["username", "password"];
        apps.offer(json!({ "secrets": { SECRET: { "namespace": apps.name, "keys": keys, "from": from } } }))
            .await;
        let source = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "pg-role", "namespace": apps.name },
            "stringData": { "username": "pgvector", "password": "kX7-of-the-role", "uri": "not to be copied" },
        });
        apps.ground.cluster.apply(&source.to_string()).await.unwrap();
        let busybox = &apps.ground.cluster.images().busybox;
        let (image, digest) = busybox.split_once('@').unwrap();
        let write = async |path: &str, value: &Value| {
            apps.repo.write(path, serde_saphyr::to_string(value).unwrap()).await.unwrap();
        };
        let registration = json!({
            "apiVersion": "fabrique/v1", "kind": "App", "metadata": { "name": app },
            "spec": {
                "source": { "repo": format!("atlas/{app}"), "branch": "main", "declaration": MANIFEST },
                "image": image,
                "environments": [{ "name": "prod" }],
            },
        });
        write(&format!("apps/{app}/app.yaml"), &registration).await;
        let composition = format!(
            "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: {app}, environment: prod }}\n\
             image: {{ repository: \"{image}\", digest: \"{digest}\", revision: {revision} }}\n"
        );
        apps.repo.write(&format!("apps/{app}/prod/composition.yaml"), composition).await.unwrap();
        let labels = json!({ "app": app });
        let password = json!({ "secretKeyRef": { "name": SECRET, "key": "password" } });
        let container = json!({
            "name": "app", "image": busybox, "command": ["/bin/busybox", "sleep", "2147483647"],
            "env": [{ "name": "PASSWORD", "valueFrom": password }],
            "resources": { "requests": { "cpu": "1m", "memory": "4Mi" } },
        });
        let pod = json!({ "metadata": { "labels": labels }, "spec": {
            "terminationGracePeriodSeconds": 1, "containers": [container],
        } });
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": app },
            "spec": { "selector": { "matchLabels": labels }, "template": pod },
        });
        let kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": ["deployment.yaml"],
        });
        for (file, content) in [("deployment.yaml", deployment), ("kustomization.yaml", kustomization)] {
            write(&format!("apps/{app}/prod/{file}"), &content).await;
        }
        apps.deploy("Deploy", &[]).await;
    }

    /// Runs a command where `prod` is this context of KUBECONFIG.
    async fn run(&self, args: &[&str], context: &str) -> (i32, String) {
        let environments = format!(r#"[{{environment="prod", context="{context}"}}]"#);
        let mut command = Command::new(&self.fabrique);
        command.args(args).env("FABRIQUE_CONFIG", self.folder.path().join("fabrique.yaml"));
        command.env("FABRIQUE_SEED__ENVIRONMENTS", environments);
        command.env("KUBECONFIG", self.apps.ground.cluster.kubeconfig()).stdin(Stdio::null());
        let output = tokio::time::timeout(AGES, command.kill_on_drop(true).output()).await.unwrap().unwrap();
        let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!told.contains("kX7-of-the-role"), "a password is told");
        (output.status.code().unwrap(), told)
    }

    async fn seed(&self, more: &[&str], context: &str) -> (i32, String) {
        self.run(&[&["seed", &self.app], more].concat(), context).await
    }

    async fn it_refuses_another_cluster_and_a_cluster_without_the_root(&self) {
        let (code, told) = self.seed(&["--yes"], "elsewhere").await;
        assert!(code == 2 && told.contains("prod is the context elsewhere, and this is"), "{told}");
        let (code, told) = self.seed(&["--yes"], &self.context).await;
        assert!(code == 1 && told.contains("no root Application"), "{told}");
        assert!(told.ends_with("nothing was changed\n"), "{told}");
        assert_eq!(self.apps.get("secret", SECRET).await, None, "something was derived");
    }

    async fn it_derives_the_secret_and_waits_for_argo_cd(&self) {
        self.apps.bring_root().await;
        let (code, told) = self.seed(&["--dry-run", "-o", "json"], &self.context).await;
        let plan: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"));
        assert_eq!((code, &plan["changed"]), (1, &json!(3)), "a secret and two webhooks: {plan:#}");
        assert_eq!(self.apps.get("secret", SECRET).await, None, "a dry run derived something");
        let application = format!("{}-prod", self.app);
        // Webhook #1 is not of this test: whoever looks at Argo CD asks it to look.
        let refreshing = async {
            loop {
                self.apps.refresh(&application).await;
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        };
        let (code, told) = tokio::select! {
            ended = self.seed(&["--yes", "--limit", "5m"], &self.context) => ended,
            () = refreshing => unreachable!("it has no end"),
        };
        let status = self.apps.application(&application).await.map(|found| found["status"].clone());
        assert!(code == 0 && told.ends_with("3 changed\n"), "{told}\n{status:#?}");
        assert!(told.contains("Synced and Healthy"), "{told}");
        let status = status.unwrap();
        let ended = (&status["sync"]["status"], &status["health"]["status"]);
        assert_eq!(ended, (&json!("Synced"), &json!("Healthy")), "{status:#}");
        let secret = self.apps.get("secret", SECRET).await.unwrap();
        let keys: Vec<&String> = secret["data"].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["password", "username"]);
    }

    async fn a_second_run_changes_nothing(&self) {
        let before = self.apps.get("secret", SECRET).await.unwrap();
        let (code, told) = self.seed(&["--yes"], &self.context).await;
        assert!(code == 0 && told.ends_with("0 changed\n"), "{told}");
        let after = self.apps.get("secret", SECRET).await.unwrap();
        assert_eq!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
    }
}
