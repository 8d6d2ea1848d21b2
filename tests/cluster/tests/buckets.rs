//! Buckets on their whole way: declared by apps, rendered into `cluster/apps`, brought by a real Argo CD in a wave before the
//! apps, bound by a provisioner over a real S3 server, and used with the keys that it puts beside the claim.

use std::sync::Arc;

use fabrique_bed::{Cluster, S3};
use serde_json::{Value, json};

use crate::apps::{App, Apps};
use crate::ground::{Ground, applications_health, ground};
use crate::provided;
use crate::provisioner::Provisioner;

/// The rendered Application of every bucket.
const APPLICATION: &str = "buckets-prod";
/// Whatever is signed: `curl` leaves what it sends out of it.
const SIGNED: &str = "curl --fail --silent --show-error --max-time 5 --header x-amz-content-sha256:UNSIGNED-PAYLOAD \
                      --aws-sigv4 aws:amz:$BUCKET_REGION:s3 --user $AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY";
const NOTE: &str = "http://$BUCKET_HOST:$BUCKET_PORT/$BUCKET_NAME/note";

/// One app that fills a bucket and has one of its own, and one that reads the first.
struct Scene {
    apps: Apps,
    writer: App,
    reader: App,
    /// The buckets: the one that both use, and the writer's own.
    lake: String,
    scratch: String,
}

#[tokio::test]
async fn buckets_are_bound_before_the_apps_come_are_shared_and_outlive_the_app_that_asked_for_them() {
    let Some(ground) = ground().await else { return };
    let s3 = Arc::new(S3::start_at(Cluster::CALLER).await.unwrap());
    let alone = applications_health().await;
    ground.judge_applications().await;
    let scene = Box::pin(Scene::open(ground)).await;
    scene.while_nobody_binds_them_the_apps_do_not_come().await;
    let provisioner = Provisioner::start(ground, &scene.apps.name, s3.clone()).await;
    let there = scene.once_they_are_bound_both_apps_use_them(&s3).await;
    scene.an_app_that_is_removed_leaves_its_buckets(&there).await;
    assert_eq!(s3.buckets().await.unwrap(), [scene.lake.as_str(), scene.scratch.as_str()]);
    drop(provisioner);
    scene.end().await;
    drop(alone);
}

impl Scene {
    async fn open(ground: Ground) -> Self {
        provided::claims(ground).await;
        // Of a test that failed, on a cluster that stays.
        let stale = ["delete", "application", APPLICATION, "--namespace=argocd", "--ignore-not-found"];
        ground.cluster.kubectl(&stale).await.unwrap();
        let apps = Apps::open(ground, "buckets", json!({})).await;
        let (lake, scratch) = (format!("lake-{}", apps.name), format!("scratch-{}", apps.name));
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": apps.name },
            "provisioner": "bed.example.com/bucket", "reclaimPolicy": "Retain",
        });
        ground.cluster.apply(&class.to_string()).await.unwrap();
        let object =
            json!({ "defaultClass": apps.name, "defaultSize": "1Gi", "classes": { (&*apps.name): null } });
        apps.offer(json!({ "environments": { "prod": { "object": object } } })).await;
        let image = &ground.cluster.images().debian;
        let (writer, reader) =
            (App::create(&apps, "writer", image).await, App::create(&apps, "reader", image).await);
        let scene = Self { apps, writer, reader, lake, scratch };
        let both = [&*scene.lake, &*scene.scratch];
        let write = format!(
            "until {SIGNED} --upload-file /etc/hostname {NOTE}; do sleep 1; done; exec sleep infinity"
        );
        scene.deploy(&scene.writer, &both, &write).await;
        scene.deploy(&scene.reader, &both[..1], "exec sleep infinity").await;
        scene
    }

    /// Puts down an app that is ready once it can read what the writer wrote into the first of its buckets.
    async fn deploy(&self, app: &App, buckets: &[&str], script: &str) {
        app.register(&self.apps, json!({})).await;
        let revision = app.declare(&format!("dependsOn: {{ buckets: [{}] }}", buckets.join(", "))).await;
        let from = |kind: &str| json!({ kind: { "name": self.lake } });
        let read = format!("{SIGNED} --output /dev/null {NOTE}");
        let container = json!({
            "command": ["bash", "-c", script],
            "envFrom": [from("configMapRef"), from("secretRef")],
            "readinessProbe": {
                "exec": { "command": ["bash", "-c", read] }, "periodSeconds": 1, "timeoutSeconds": 6,
            },
        });
        app.build(&self.apps, &revision, json!({ "spec": { "containers": [container] } })).await;
    }

    async fn while_nobody_binds_them_the_apps_do_not_come(&self) {
        self.apps.deploy("Deploy both", &[]).await;
        self.apps.bring_root().await;
        let held_up = async || {
            self.apps.refresh(APPLICATION).await;
            let operation = self.apps.application(&self.apps.name).await?["status"]["operationState"].clone();
            let message = operation["message"].as_str()?.to_owned();
            let waits = format!("waiting for healthy state of argoproj.io/Application/{APPLICATION}");
            (operation["phase"] == "Running" && message.contains(&waits)).then_some(())
        };
        self.apps.waits(APPLICATION, "does not hold the apps up", held_up).await;
        let brought = async || {
            self.apps.refresh(APPLICATION).await;
            let status = self.apps.application(APPLICATION).await?["status"].clone();
            let unbound = status["health"]["status"] == "Progressing";
            (status["sync"]["status"] == "Synced" && unbound).then_some(())
        };
        self.apps.waits(APPLICATION, "does not bring the claims", brought).await;
        // One for each bucket, however many apps ask for it.
        let claims = self.claims().await;
        assert_eq!(names(&claims), [&*self.lake, &*self.scratch]);
        for app in [&self.writer, &self.reader] {
            assert_eq!(self.apps.application(&app.application()).await, None, "it came before its buckets");
        }
        let (code, told) = self.validate().await;
        assert_eq!(code, 1, "{told}");
        for (bucket, apps) in [(&self.lake, 2), (&self.scratch, 1)] {
            let claim = format!("its claim {}/{bucket}", self.apps.name);
            let unbound = format!("\"found\": \"{claim} is not looked at, not Bound\"");
            assert_eq!(told.matches(&unbound).count(), apps, "{told}");
        }
    }

    async fn once_they_are_bound_both_apps_use_them(&self, s3: &S3) -> Vec<Value> {
        let well = async || {
            self.apps.refresh(APPLICATION).await;
            let status = self.apps.application(APPLICATION).await?["status"].clone();
            let well = status["sync"]["status"] == "Synced" && status["health"]["status"] == "Healthy";
            well.then_some(())
        };
        self.apps.waits(APPLICATION, "is not well, though its claims can be bound", well).await;
        assert_eq!(s3.buckets().await.unwrap(), [&*self.lake, &*self.scratch]);
        let claims = self.claims().await;
        assert!(claims.iter().all(|claim| claim["status"]["phase"] == "Bound"), "{claims:#?}");
        for app in [&self.writer, &self.reader] {
            self.is_well(app).await;
        }
        let (code, told) = self.validate().await;
        assert_eq!(code, 0, "{told}");
        claims
    }

    async fn an_app_that_is_removed_leaves_its_buckets(&self, there: &[Value]) {
        self.apps.repo.git(&["rm", "-r", "--quiet", &format!("apps/{}", self.writer.name)]).await.unwrap();
        self.apps.deploy("Remove the app that asked for both", &["--remove", "--yes"]).await;
        let name = self.writer.application();
        let gone = async || {
            self.apps.refresh(APPLICATION).await;
            let get = ["get", "deployment", &self.writer.name, "--ignore-not-found", "--output=name"];
            let deployment = self.apps.try_kubectl(&get).await.ok()?;
            let application = self.apps.application(&name).await;
            (deployment.is_empty() && application.is_none()).then_some(())
        };
        self.apps.waits(&name, "stays", gone).await;
        let uids = |claims: &[Value]| -> Vec<Value> {
            claims.iter().map(|claim| claim["metadata"]["uid"].clone()).collect()
        };
        assert_eq!(uids(&self.claims().await), uids(there));
        // What was written is there for the one that is left: its probe reads it every second.
        self.is_well(&self.reader).await;
        let (code, told) = self.validate().await;
        assert_eq!(code, 0, "{told}");
    }

    async fn is_well(&self, app: &App) {
        let name = app.application();
        let well = async || {
            self.apps.refresh(&name).await;
            let status = self.apps.application(&name).await?["status"].clone();
            let well = status["sync"]["status"] == "Synced" && status["health"]["status"] == "Healthy";
            well.then_some(())
        };
        self.apps.waits(&name, "is not well", well).await;
    }

    /// What `fabrique validate --live` finds in everything.
    async fn validate(&self) -> (i32, String) {
        self.apps.fabrique(&["validate", "--live", "--environment", "prod", "--output", "json"]).await
    }

    /// The claims of the namespace, by name.
    async fn claims(&self) -> Vec<Value> {
        let list = self.apps.kubectl(&["get", "objectbucketclaims", "--output=json"]).await;
        let list: Value = serde_json::from_str(&list).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    async fn end(&self) {
        let (reader, writer) = (self.reader.application(), self.writer.application());
        self.apps.end(&[APPLICATION, &reader, &writer]).await;
        let class = ["delete", "storageclass", &self.apps.name, "--wait=false"];
        self.apps.ground.cluster.kubectl(&class).await.unwrap();
    }
}

fn names(claims: &[Value]) -> Vec<&str> {
    claims.iter().map(|claim| claim["metadata"]["name"].as_str().unwrap()).collect()
}
