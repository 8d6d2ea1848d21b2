//! `fabrique init` where there is an Argo CD: webhook #1, its secret, and the proof of a delivery.

use std::path::PathBuf;
use std::process::Stdio;

use fabrique_bed::Bed;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::ground::{Ground, ground};
use crate::program::fabrique;

/// An installation of its own on the Gitea and the Argo CD that all tests share.
struct Site {
    ground: Ground,
    /// The bus, which nothing in the cluster has to reach.
    bed: Bed,
    folder: TempDir,
    fabrique: PathBuf,
    org: String,
}

#[tokio::test]
async fn a_push_is_proven_to_reach_argo_cd_and_what_does_not_arrive_is_told() {
    let Some(ground) = ground().await else { return };
    let site = Site::new(ground).await;
    site.without_a_way_there_it_is_told().await;
    site.argo_cd_is_told_and_its_secret_is_adopted().await;
    site.another_secret_is_refused_before_anything_is_made().await;
    site.one_secret_for_both_is_refused_where_it_shows().await;
    site.without_the_api_server_it_is_said_what_was_not_seen().await;
    site.end().await;
}

impl Site {
    async fn new(ground: Ground) -> Self {
        let org = format!("init-{}", std::process::id());
        let gitea = ground.cluster.gitea();
        let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": org } },
            {
                "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": "gitea-admin", "namespace": org },
                "stringData": { "username": gitea.admin_user(), "password": gitea.admin_password() },
            },
        ] });
        ground.cluster.apply(&objects.to_string()).await.unwrap();
        let bed = Bed::builder().nats().start().await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("nats-admin"), bed.nats().password("admin")).unwrap();
        Self { ground, bed, folder, fabrique: fabrique().await, org }
    }

    /// Runs `init`, with these keys of its section as well.
    async fn init(&self, more: Value) -> (i32, Value) {
        let (cluster, file) = (self.ground.cluster, |name: &str| self.folder.path().join(name));
        let mut init = json!({
            "kubernetes": true,
            "admin_secret": format!("{}/gitea-admin", self.org),
            "argocd_url": cluster.argocd().base_url(),
            "argocd_secret_file": file("argocd-secret"),
        });
        for (key, value) in more.as_object().unwrap() {
            init[key] = value.clone();
        }
        let settings = json!({
            "gitea": {
                "url": cluster.gitea().base_url(), "apps_repo": format!("{}/apps", self.org),
                "read_token_file": file("read-token"), "apps_token_file": file("apps-token"),
                "timeouts": { "request": "1m" },
            },
            "nats": {
                "servers": [self.bed.nats().address()],
                "users": { "admin": { "password_file": file("nats-admin") } },
            },
            "registry": { "allowed": ["registry:80"] },
            "receiver": { "public_url": "http://127.0.0.1:9/webhook", "secret_file": file("webhook-secret") },
            "init": init,
            "state": { "dir": file("state") },
        });
        std::fs::write(file("fabrique.yaml"), settings.to_string()).unwrap();
        let mut command = Command::new(&self.fabrique);
        command.args(["init", "-o", "json"]).env("FABRIQUE_CONFIG", file("fabrique.yaml"));
        command.env("KUBECONFIG", cluster.kubeconfig()).stdin(Stdio::null()).kill_on_drop(true);
        let ended = command.output().await.unwrap();
        let (out, told) = (String::from_utf8(ended.stdout).unwrap(), String::from_utf8_lossy(&ended.stderr));
        let secret = cluster.argocd().webhook_secret();
        assert!(!out.contains(secret) && !told.contains(secret), "a secret is told");
        let report = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{told}"));
        (ended.status.code().unwrap(), report)
    }

    fn gate<'r>(report: &'r Value, name: &str) -> (&'r str, String) {
        let gate = report["gates"].as_array().unwrap().iter().find(|gate| gate["gate"] == name);
        let gate = gate.unwrap_or_else(|| panic!("no {name} in {report}"));
        (gate["result"].as_str().unwrap(), gate["what"].to_string())
    }

    /// Webhook #1 leads nowhere: everything is there, and nothing arrives.
    async fn without_a_way_there_it_is_told(&self) {
        let (code, report) =
            self.init(json!({ "argocd_webhook_url": "http://127.0.0.1:9/api/webhook", "limit": "1m" })).await;
        assert_eq!(code, 1, "{report}");
        let (result, what) = Self::gate(&report, "delivery");
        assert!(result == "failed" && what.contains("no delivery of Gitea led to anything"), "{report}");
        assert_eq!(Self::gate(&report, "webhook #1").0, "changed", "{report}");
        self.no_probe_is_left().await;
    }

    async fn argo_cd_is_told_and_its_secret_is_adopted(&self) {
        let (code, report) = self.init(json!({})).await;
        assert_eq!((code, Self::gate(&report, "delivery").0), (0, "passed"), "{report}");
        assert_eq!(Self::gate(&report, "webhook #1").0, "changed", "it moved to where Argo CD is: {report}");
        let kept = std::fs::read_to_string(self.folder.path().join("argocd-secret")).unwrap();
        assert_eq!(kept, self.ground.cluster.argocd().webhook_secret());
        let hooks = format!("/repos/{}/apps/hooks", self.org);
        let hooks = self.ground.cluster.gitea().api("GET", &hooks, None).await.unwrap();
        assert_eq!(hooks.as_array().unwrap().len(), 2, "{hooks}");
        let (code, report) = self.init(json!({})).await;
        assert_eq!((code, &report["changed"]), (0, &json!(0)), "{report}");
        assert_eq!(Self::gate(&report, "delivery").0, "passed", "it is proven each time: {report}");
        self.no_probe_is_left().await;
    }

    async fn another_secret_is_refused_before_anything_is_made(&self) {
        let other = self.folder.path().join("other-secret");
        std::fs::write(&other, "not what Argo CD has").unwrap();
        let (code, report) = self.init(json!({ "argocd_secret_file": other })).await;
        assert_eq!(code, 1, "{report}");
        assert!(Self::gate(&report, "what is there").1.contains("webhook.gogs.secret"), "{report}");
        assert_eq!(Self::gate(&report, "webhook #1").0, "not-reached", "{report}");
    }

    /// It shows when Argo CD's secret was written to its file.
    async fn one_secret_for_both_is_refused_where_it_shows(&self) {
        let (own, adopted) =
            (self.folder.path().join("webhook-secret"), self.folder.path().join("adopted-secret"));
        let kept = std::fs::read_to_string(&own).unwrap();
        std::fs::write(&own, self.ground.cluster.argocd().webhook_secret()).unwrap();
        for gate in ["secrets", "what is there"] {
            let (code, report) = self.init(json!({ "argocd_secret_file": adopted })).await;
            let (result, what) = Self::gate(&report, gate);
            assert!(result == "failed" && what.contains("both webhooks have the same secret"), "{report}");
            assert_eq!(code, 1, "{report}");
        }
        std::fs::write(&own, kept).unwrap();
    }

    async fn without_the_api_server_it_is_said_what_was_not_seen(&self) {
        let gitea = self.ground.cluster.gitea();
        let password = self.folder.path().join("admin-password");
        std::fs::write(&password, gitea.admin_password()).unwrap();
        let alone = json!({
            "kubernetes": false, "admin_user": gitea.admin_user(), "admin_password_file": password,
        });
        let (code, report) = self.init(alone).await;
        assert_eq!((code, Self::gate(&report, "delivery").0), (0, "unproven"), "{report}");
    }

    async fn no_probe_is_left(&self) {
        let get = ["get", "applications", "--namespace=argocd", "--output=name"];
        let all = self.ground.cluster.kubectl(&get).await.unwrap();
        assert!(!all.contains("fabrique-webhook-probe"), "{all}");
    }

    async fn end(self) {
        self.ground.cluster.kubectl(&["delete", "namespace", &self.org, "--wait=false"]).await.unwrap();
        self.bed.stop().await.unwrap();
    }
}
