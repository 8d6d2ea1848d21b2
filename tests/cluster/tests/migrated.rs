//! Migrations on their whole way: declared by an app, rendered into `cluster/apps`, run by a real Argo CD before the sync,
//! in the image of fabrique, against a PostgreSQL that pods reach by the name of its Service.

use fabrique_bed::{Cluster, Postgres};
use serde_json::{Value, json};

use crate::apps::{App, Apps};
use crate::ground::{Ground, ground};
use crate::image::image;

const DATABASE: &str = "pgvector";
const PASSWORD: &str = "kX7-of-the-app";
const SECRET: &str = "pgvector-pg-auth";
const NOTES: (&str, &str) =
    ("001-notes.sql", "CREATE TABLE notes (id int PRIMARY KEY, embedding vector(3));\n");
const INDEX: (&str, &str) = (
    "002-notes-hnsw.sql",
    "-- no-transaction\nCREATE INDEX CONCURRENTLY notes_embedding ON notes USING hnsw (embedding vector_cosine_ops);\n",
);
/// The second statement is none: the first has to be undone.
const BROKEN: (&str, &str) = ("003-at.sql", "ALTER TABLE notes ADD COLUMN at timestamptz;\nSELEC 1;\n");

/// The app with its database.
struct Scene {
    apps: Apps,
    app: App,
    postgres: Postgres,
}

#[tokio::test]
async fn a_sync_applies_migrations_once_and_before_its_workloads_and_a_broken_one_leaves_those_as_they_were()
{
    let Some(ground) = ground().await else { return };
    let scene = Box::pin(Scene::open(ground)).await;
    let first = scene.the_first_sync_applies_them_before_the_workload_starts().await;
    let pod = scene.the_second_finds_nothing_to_do(&first).await;
    scene.a_broken_one_leaves_the_old_pod_running_and_the_application_says_so(&pod).await;
    scene.apps.end(&[&scene.app.application()]).await;
}

impl Scene {
    async fn open(ground: Ground) -> Self {
        // The bed's server with vectors has no TLS.
        let runner = json!({ "image": image(ground).await, "sslmode": "disable", "limit": "1m" });
        let apps = Apps::open(ground, "migrated", json!({ "migrations": runner })).await;
        let postgres = Postgres::start_with_vectors_at(Cluster::CALLER).await.unwrap();
        postgres.database(DATABASE, DATABASE, PASSWORD).await.unwrap();
        // Not for the role of an app to make.
        postgres.sql(DATABASE, "CREATE EXTENSION vector").await.unwrap();
        let keys = ["username", "password"];
        apps.offer(json!({
            "databases": { DATABASE: { "namespace": apps.name, "cluster": "pg" } },
            "secrets": { SECRET: { "namespace": apps.name, "keys": keys } },
        }))
        .await;
        let app = App::create(&apps, "migrated", &ground.cluster.images().busybox).await;
        app.register(&apps, json!({ "migrations": "sql" })).await;
        let scene = Self { apps, app, postgres };
        scene.provide().await;
        scene
    }

    /// The database's Service, as CloudNativePG calls it, and its secret.
    async fn provide(&self) {
        let at = |name: &str| json!({ "name": name, "namespace": self.apps.name });
        let mut endpoints = at("pg-rw-bed");
        endpoints["labels"] = json!({ "kubernetes.io/service-name": "pg-rw" });
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "v1", "kind": "Service", "metadata": at("pg-rw"),
              "spec": { "ports": [{ "name": "postgres", "port": 5432 }] } },
            { "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": endpoints,
              "addressType": "IPv4", "ports": [{ "name": "postgres", "port": self.postgres.port() }],
              "endpoints": [{ "addresses": [Cluster::CALLER] }] },
            { "apiVersion": "v1", "kind": "Secret", "metadata": at(SECRET),
              "stringData": { "username": DATABASE, "password": PASSWORD } },
        ] });
        self.apps.ground.cluster.apply(&list.to_string()).await.unwrap();
    }

    /// Pushes what a worker would have committed after a build of these files; the revision of `cluster/apps`. Another
    /// `generation` is another pod.
    async fn deploy(&self, files: &[(&str, &str)], generation: &str) -> String {
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        for (name, sql) in files {
            self.app.source.write(&format!("sql/{name}"), sql).await.unwrap();
        }
        let needs = format!(
            "dependsOn: {{ database: [{DATABASE}], secrets: [{SECRET}], migrations: [{}] }}",
            names.join(", ")
        );
        let revision = self.app.declare(&format!("{needs}\n# {generation}")).await;
        let container = json!({
            "command": ["/bin/busybox", "sleep", "2147483647"],
            "env": [{ "name": "GENERATION", "value": generation }],
        });
        self.app.build(&self.apps, &revision, json!({ "spec": { "containers": [container] } })).await;
        self.apps.deploy(&format!("Deploy generation {generation}"), &[]).await
    }

    async fn the_first_sync_applies_them_before_the_workload_starts(&self) -> Value {
        let revision = self.deploy(&[NOTES, INDEX], "1").await;
        self.apps.bring_root().await;
        self.apps.is_synced(&self.app.application(), &revision).await;
        let (job, pod) = (self.job().await.unwrap(), self.pod().await);
        assert!(self.told().await.contains("2 files applied, 0 before"), "{}", self.told().await);
        assert_eq!(self.ledger().await, "001-notes.sql,002-notes-hnsw.sql");
        let index = "SELECT i.indisvalid, a.amname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a \
                     ON a.oid = c.relam WHERE c.relname = 'notes_embedding'";
        assert_eq!(self.postgres.sql(DATABASE, index).await.unwrap(), "t|hnsw");
        // Both in whole seconds, of one clock and one form.
        let (done, made) = (&job["status"]["completionTime"], &pod["metadata"]["creationTimestamp"]);
        assert!(done.as_str().unwrap() <= made.as_str().unwrap(), "migrated at {done}, the pod is of {made}");
        job
    }

    async fn the_second_finds_nothing_to_do(&self, first: &Value) -> Value {
        let before = self.pod().await;
        let revision = self.deploy(&[NOTES, INDEX], "2").await;
        self.apps.is_synced(&self.app.application(), &revision).await;
        let (job, pod) = (self.job().await.unwrap(), self.pod().await);
        assert_ne!(job["metadata"]["uid"], first["metadata"]["uid"], "every sync has a run of its own");
        assert!(self.told().await.contains("0 files applied, 2 before"), "{}", self.told().await);
        assert_eq!(self.ledger().await, "001-notes.sql,002-notes-hnsw.sql");
        assert_ne!(pod["metadata"]["uid"], before["metadata"]["uid"], "the workload is a new one");
        pod
    }

    async fn a_broken_one_leaves_the_old_pod_running_and_the_application_says_so(&self, pod: &Value) {
        let revision = self.deploy(&[NOTES, INDEX, BROKEN], "3").await;
        let name = self.app.application();
        // Of one answer: between two, Argo CD may have begun to try again, and tell of that instead.
        let failed = async || {
            self.apps.refresh(&name).await;
            let application = self.apps.application(&name).await?;
            let operation = &application["status"]["operationState"];
            let result = &operation["syncResult"];
            let of_it = result["revisions"].as_array()?.iter().all(|seen| *seen == *revision);
            let hook = result["resources"].as_array()?.iter().find(|resource| resource["kind"] == "Job")?;
            let message = operation["message"].as_str()?;
            let over = message.contains("synchronization tasks completed unsuccessfully");
            (of_it && hook["hookPhase"] == "Failed" && over).then(|| hook.clone())
        };
        let hook = self.apps.waits(&name, "does not say that its sync failed with its hook", failed).await;
        assert_eq!((&hook["name"], &hook["hookType"]), (&json!(self.job_name()), &json!("PreSync")));
        let message = hook["message"].as_str().unwrap_or_default();
        assert!(message.contains("exit code 1"), "{hook:#}");
        // Argo CD tries again, and takes the Job away before it does.
        let told = async || {
            let told = self.apps.try_kubectl(&["logs", &format!("job/{}", self.job_name())]).await.ok()?;
            told.contains("003-at.sql:2: syntax error at or near \"SELEC\"").then_some(())
        };
        self.apps.waits(&name, "does not have why in the log of its Job", told).await;
        assert_eq!(self.ledger().await, "001-notes.sql,002-notes-hnsw.sql");
        assert_eq!(self.columns().await, "id,embedding");
        let there = self.pod().await;
        assert_eq!(there["metadata"]["uid"], pod["metadata"]["uid"], "{there:#}");
        assert_eq!(there["status"]["containerStatuses"][0]["ready"], true, "{there:#}");
    }

    fn job_name(&self) -> String {
        format!("{}-migrate", self.app.name)
    }

    async fn job(&self) -> Option<Value> {
        self.apps.get("job", &self.job_name()).await
    }

    /// What the last run printed.
    async fn told(&self) -> String {
        self.apps.kubectl(&["logs", &format!("job/{}", self.job_name())]).await
    }

    /// The pod of the app. One that is on its way out is none.
    async fn pod(&self) -> Value {
        let selector = format!("app={}", self.app.name);
        let pods = self.apps.kubectl(&["get", "pods", "--selector", &selector, "--output=json"]).await;
        let pods: Value = serde_json::from_str(&pods).unwrap();
        let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        let pods: Vec<&Value> = pods["items"].as_array().unwrap().iter().filter(stays).collect();
        let [pod] = pods[..] else { panic!("not one pod: {pods:#?}") };
        pod.clone()
    }

    async fn ledger(&self) -> String {
        let table = format!("fabrique_migrations_{}", self.app.name.replace('-', "_"));
        let statement = format!("SELECT string_agg(description, ',' ORDER BY version) FROM {table}");
        self.postgres.sql(DATABASE, &statement).await.unwrap()
    }

    async fn columns(&self) -> String {
        let columns = "SELECT string_agg(column_name, ',' ORDER BY ordinal_position) FROM information_schema.columns \
                       WHERE table_name = 'notes'";
        self.postgres.sql(DATABASE, columns).await.unwrap()
    }
}
