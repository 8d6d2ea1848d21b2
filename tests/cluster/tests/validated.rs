//! `fabrique validate --live`: the binary between a real Gitea and a real API server.

use std::path::PathBuf;

use fabrique_bed::GitRepo;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::ground::{Ground, ground};
use crate::program::fabrique;
use crate::provided::CRDS;

/// An app that declares some of everything, and what the contract says of it.
struct Scene {
    ground: Ground,
    name: String,
    config: tempfile::NamedTempFile,
    fabrique: PathBuf,
}

#[tokio::test]
async fn what_the_cluster_lacks_is_told_at_once_in_at_most_ten_requests_and_is_gone_once_it_is_there() {
    let Some(ground) = ground().await else { return };
    let scene = Scene::open(ground).await;
    let (code, told) = scene.validate(&[]).await;
    assert_eq!(code, 1, "{told:#}");
    let whole = told["findings"].to_string();
    for missing in [
        format!("there is no PostgreSQL cluster {}/pg", scene.name),
        format!("there is no secret {}/pgvector-pg-auth", scene.name),
        format!(
            "class {} of block storage in prod is declared, the cluster has no such storage class",
            scene.name
        ),
    ] {
        assert!(whole.contains(&missing), "{missing} is not told: {told:#}");
    }
    let lines = told["findings"].as_array().unwrap().iter().map(|finding| finding["line"].as_u64().unwrap());
    assert!(lines.clone().all(|line| line > 0), "{told:#}");
    assert!(told["requests"].as_u64().unwrap() <= 10, "{told:#}");

    scene.provide().await;
    let (code, told) = scene.validate(&[]).await;
    assert_eq!((code, &told["findings"]), (0, &json!([])), "{told:#}");
    // A context that is not there is said to be missing, and nothing is asked of another cluster.
    let (code, _) = scene.validate(&["--context", "nowhere"]).await;
    assert_eq!(code, 2);
    scene.end().await;
}

impl Scene {
    async fn open(ground: Ground) -> Self {
        let name = format!("validated-{}", std::process::id());
        ground.cluster.apply(CRDS).await.unwrap();
        let wait = ["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"];
        ground.cluster.kubectl(&wait).await.unwrap();
        ground.cluster.kubectl(&["create", "namespace", &name]).await.unwrap();
        let gitea = ground.cluster.gitea();
        // Whoever comes first makes them.
        for org in ["cluster", "atlas"] {
            let _ = gitea.create_org(org).await;
            gitea.create_repo(org, &name, false).await.unwrap();
        }
        let config = tempfile::NamedTempFile::new().unwrap();
        let settings = json!({
            "gitea": { "url": gitea.base_url(), "apps_repo": format!("cluster/{name}") },
            "nats": { "servers": ["nats://127.0.0.1:9"] },
            "registry": { "allowed": ["registry:80"] },
            "state": { "dir": ground.cluster.folder() },
            "render": { "destinations": [{ "environment": "prod", "namespaces": [name] }] },
        });
        std::fs::write(config.path(), settings.to_string()).unwrap();
        let scene = Self { ground, name, config, fabrique: fabrique().await };
        scene.declare().await;
        scene
    }

    async fn declare(&self) {
        let (gitea, name) = (self.ground.cluster.gitea(), &self.name);
        let source = GitRepo::clone(&gitea.clone_url_with_token("atlas", name)).await.unwrap();
        // A bucket is the whole cluster's: the name that the seeds give it would meet the claims of other tests.
        let declaration = format!(
            "codeLocation: citation\nready: true\ncontractVersion: 1\n\
             resources: {{ cpu: 10m, disk: 1Gi }}\ndependsOn:\n  database: [pgvector]\n  \
             secrets: [pgvector-pg-auth]\n  buckets: [{name}]\n"
        );
        source.write("code-location.manifest.yaml", &declaration).await.unwrap();
        source.commit("Declare").await.unwrap();
        source.push().await.unwrap();
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", name)).await.unwrap();
        let registration = json!({
            "apiVersion": "fabrique/v1", "kind": "App", "metadata": { "name": "citation" },
            "spec": {
                "source": { "repo": format!("atlas/{name}"), "declaration": "code-location.manifest.yaml" },
                "image": "registry:80/citation", "environments": [{ "name": "prod" }],
            },
        });
        let classes = json!({ "defaultClass": name, "classes": { (name.as_str()): null } });
        let mut object = classes.clone();
        object["defaultSize"] = json!("1Gi");
        let contract = json!({
            "apiVersion": "fabrique/v1", "kind": "Contract", "version": 1, "accepts": [1],
            "endpoints": {
                "gitea": "http://gitea:3000", "argocd": "http://argocd:8080",
                "registry": "registry:80", "nats": "nats://nats:4222",
            },
            "databases": { "pgvector": { "namespace": name, "cluster": "pg" } },
            "secrets": { "pgvector-pg-auth": { "namespace": name, "keys": ["username", "password"] } },
            "environments": { "prod": { "block": classes, "object": object } },
        });
        apps.write("apps/citation/app.yaml", registration.to_string()).await.unwrap();
        apps.write("contract.yaml", contract.to_string()).await.unwrap();
        apps.commit("Register").await.unwrap();
        apps.push().await.unwrap();
    }

    /// What operators and people would have made. The bucket comes with the first deployment.
    async fn provide(&self) {
        let at = |name: &str| json!({ "name": name, "namespace": self.name });
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "v1", "kind": "Secret", "metadata": at("pgvector-pg-auth"),
              "stringData": { "username": "pgvector", "password": "x" } },
            { "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": self.name },
              "provisioner": "nobody.example.com" },
            { "apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "metadata": at("pg"),
              "spec": { "bootstrap": { "initdb": { "database": "pgvector" } } } },
        ] });
        self.ground.cluster.apply(&list.to_string()).await.unwrap();
    }

    /// The exit code, and what is told to programs.
    async fn validate(&self, more: &[&str]) -> (i32, Value) {
        let output = Command::new(&self.fabrique)
            .args(["validate", "citation", "--live", "--environment", "prod", "--output", "json", "--config"])
            .arg(self.config.path())
            .args(more)
            .env("KUBECONFIG", self.ground.cluster.kubeconfig())
            .output()
            .await
            .unwrap();
        let told = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code().unwrap(), told)
    }

    async fn end(&self) {
        for [kind, name] in [["storageclass", &*self.name], ["namespace", &*self.name]] {
            self.ground.cluster.kubectl(&["delete", kind, name, "--wait=false"]).await.unwrap();
        }
    }
}
