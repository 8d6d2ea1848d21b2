//! The two apps of the seeds on their whole way: citation, which needs mediawatch, a database, a bucket and a migration.
//! Developers push, a real worker builds, composes and renders, and a real Argo CD deploys what that committed.

use std::sync::Arc;
use std::time::Duration;

use fabrique_bed::{Bed, BuildkitOptions, Cluster, GitRepo, Plain, Postgres, S3, wait_until};
use fabrique_cluster_tests::image::binary;
use fabrique_stage::{AppOptions, Composition, Fabrique, SampleApp, Settings, Stage};
use serde_json::{Value, json};

use crate::argo;
use crate::ground::{Ground, applications_health, ground};
use crate::image::image;
use crate::provided;
use crate::provisioner::Provisioner;

const MANIFEST: &str = "code-location.manifest.yaml";
const DEPLOYMENT: &str = "deploy/overlays/prod/deployment.yaml";
const DATABASE: &str = "pgvector";
const PASSWORD: &str = "kX7-of-citation";
const SECRET: &str = "pgvector-pg-auth";
/// What it is derived from, where databases are looked after.
const ROLE: &str = "pg-role-pgvector";
const LAKE: &str = "rook-ceph-datalake";
/// What citation needs, as the seed has it.
const NEEDS: &str = "resources: { cpu: 500m, memory: 1Gi, disk: 20Gi }
dependsOn:
  codeLocations: [mediawatch]
  database: [pgvector]
  secrets: [pgvector-pg-auth]
  buckets:
    - name: atlas-datalake
      size: 100Gi
      storageClass: rook-ceph-datalake
  migrations: [001-researchers-hnsw.sql]
";
const MIGRATION: &str = "CREATE TABLE researchers (id int PRIMARY KEY, embedding vector(384));
CREATE INDEX researchers_hnsw ON researchers USING hnsw (embedding vector_cosine_ops);
";
/// How long Argo CD may take from a commit to what it deploys, on a busy machine.
const SYNCED: Duration = Duration::from_mins(3);

/// Whatever runs, the processes before what they need.
struct Scene {
    ground: Ground,
    /// Of the namespace, of the root Application and of its project.
    name: String,
    citation: SampleApp,
    mediawatch: SampleApp,
    postgres: Postgres,
    settings: Vec<(&'static str, String)>,
    _fabrique: Fabrique,
    _provisioner: Provisioner,
    _registry: Plain,
    _builder: Bed,
    stage: Stage,
}

#[tokio::test]
async fn citation_comes_after_mediawatch_and_both_run_by_digest_until_one_is_removed() {
    let Some(ground) = ground().await else { return };
    let _alone = applications_health().await;
    ground.judge_applications().await;
    let scene = Box::pin(Scene::open(ground)).await;
    scene.absent_it_is_refused_with_the_reason().await;
    scene.not_ready_it_is_waited_for().await;
    let first = scene.ready_both_are_built_and_deployed_in_order().await;
    scene.an_infra_only_change_is_deployed_without_a_build(&first).await;
    scene.a_newer_contract_lets_what_asks_for_it_go_on(&first).await;
    scene.what_is_removed_leaves_its_data_and_the_other_app().await;
    scene.end().await;
}

impl Scene {
    async fn open(ground: Ground) -> Self {
        let cluster = ground.cluster;
        let name = format!("seeds-{}", std::process::id());
        provided::claims(ground).await;
        cluster.kubectl(&["create", "namespace", &name]).await.unwrap();
        let stage = Stage::builder().settings(Settings::default()).beside_pods(Cluster::CALLER);
        let stage = Box::pin(stage.start(binary().await.unwrap())).await.unwrap();
        let registry = stage.bed.registry().host();
        let plain = format!("[registry.\"{registry}\"]\n  http = true\n");
        let daemon = BuildkitOptions { extra_toml: plain, ..BuildkitOptions::default() };
        let builder = Bed::builder().buildkit_with(daemon).start().await.unwrap();
        let s3 = Arc::new(S3::start_at(Cluster::CALLER).await.unwrap());
        let postgres = Postgres::start_with_vectors_at(Cluster::CALLER).await.unwrap();
        postgres.database(DATABASE, DATABASE, PASSWORD).await.unwrap();
        postgres.sql(DATABASE, "CREATE EXTENSION vector").await.unwrap();
        provide(ground, &name, postgres.port()).await;
        let settings = settings(ground, &name, builder.buildkit(0).address().as_str()).await;
        bring_root(ground, &stage, &name, &settings).await;
        derive(ground, &stage, &name).await;
        let fabrique = stage.all_with(&borrowed(&settings)).await.unwrap();
        stage.hook("cluster", "apps").await.unwrap();
        let (citation, mediawatch) =
            (unregistered(&stage, "citation").await, unregistered(&stage, "mediawatch").await);
        Self {
            ground,
            citation,
            mediawatch,
            postgres,
            settings,
            _fabrique: fabrique,
            _provisioner: Provisioner::start(ground, LAKE, s3).await,
            _registry: cluster.plain_registry(&registry).unwrap(),
            _builder: builder,
            stage,
            name,
        }
    }

    async fn absent_it_is_refused_with_the_reason(&self) {
        self.register(&self.citation, ", migrations: sql").await;
        self.citation.source.write("sql/001-researchers-hnsw.sql", MIGRATION).await.unwrap();
        let head = self.declare(&self.citation, &format!("ready: true\ncontractVersion: 3\n{NEEDS}")).await;
        let status = self.stage.declaration_status(&self.citation, &head).await.unwrap();
        assert_eq!(status.state, "failure", "{status:?}");
        let reason = "code-location mediawatch is declared, no such app is registered";
        self.stage.decided("citation", reason).await.unwrap();
        assert_eq!(self.stage.builds("citation").await.unwrap().len(), 0);
    }

    async fn not_ready_it_is_waited_for(&self) {
        self.register(&self.mediawatch, "").await;
        let head = self.declare(&self.mediawatch, "ready: false\ncontractVersion: 3").await;
        let status = self.stage.declaration_status(&self.mediawatch, &head).await.unwrap();
        assert!(status.description.contains("ready: false"), "{status:?}");
        // As by any further push of its own.
        let head = self.citation.push("second").await.unwrap();
        self.tell(&self.citation, &head).await;
        self.stage.decided("citation", "mediawatch, which it depends on, says ready: false").await.unwrap();
        for app in ["citation", "mediawatch"] {
            self.stage.settled(app, 0).await.unwrap();
            assert_eq!(self.stage.builds(app).await.unwrap().len(), 0, "{app}");
        }
    }

    /// What is deployed of citation in the end.
    async fn ready_both_are_built_and_deployed_in_order(&self) -> Composition {
        let ready = self.declare(&self.mediawatch, "ready: true\ncontractVersion: 3").await;
        let waiting = self.citation.source.head().await.unwrap();
        // Nobody pushes to the one that waits.
        let below = self.stage.committed_once(&self.mediawatch, &ready).await.unwrap();
        let first = self.stage.committed_once(&self.citation, &waiting).await.unwrap();
        let pods = [self.runs("mediawatch", &below.digest).await, self.runs("citation", &first.digest).await];
        let [before, after] =
            pods.each_ref().map(|pod| pod["metadata"]["creationTimestamp"].as_str().unwrap());
        assert!(before <= after, "mediawatch came at {before}, and citation at {after}");
        let ledger = "SELECT string_agg(description, ',' ORDER BY version) FROM fabrique_migrations_citation";
        let applied = self.postgres.sql(DATABASE, ledger).await.unwrap();
        assert_eq!(applied, "001-researchers-hnsw.sql");
        let job = self.get("job", "citation-migrate").await.unwrap();
        let done = job["status"]["completionTime"].as_str().unwrap();
        assert!(done <= after, "migrated at {done}, the pod is of {after}");
        let claim = self.get("objectbucketclaim", "atlas-datalake").await.unwrap();
        assert_eq!(claim["status"]["phase"], "Bound", "{claim:#}");
        assert!(self.get("persistentvolumeclaim", "citation-disk").await.is_some());
        first
    }

    async fn an_infra_only_change_is_deployed_without_a_build(&self, first: &Composition) {
        let (source, before) = (&self.citation.source, self.pod("citation").await.unwrap());
        let text = source.read(DEPLOYMENT).await.unwrap();
        let named = "metadata: { name: citation }";
        let changed = text.replace(named, "metadata: { name: citation, annotations: { tier: gold } }");
        assert_ne!(changed, text);
        source.write(DEPLOYMENT, changed).await.unwrap();
        let head = source.commit("Change the manifests alone").await.unwrap();
        source.push().await.unwrap();
        let deployed = async || {
            self.refresh("citation-prod").await;
            let deployment = self.get("deployment", "citation").await?;
            (deployment["metadata"]["annotations"]["tier"] == "gold").then_some(())
        };
        self.waits("citation-prod", "does not bring the changed manifest", deployed).await;
        let composition = self.stage.composition("citation").await.unwrap().unwrap();
        assert_eq!(composition.infra.as_deref(), Some(&*head));
        assert_eq!((&composition.revision, &composition.digest), (&first.revision, &first.digest));
        assert_eq!(self.stage.builds("citation").await.unwrap().len(), 1);
        let pod = self.runs("citation", &first.digest).await;
        assert_eq!(pod["metadata"]["uid"], before["metadata"]["uid"], "nothing of the pod changed");
    }

    async fn a_newer_contract_lets_what_asks_for_it_go_on(&self, first: &Composition) {
        self.citation.source.write("message", "third").await.unwrap();
        let head = self.declare(&self.citation, &format!("ready: true\ncontractVersion: 4\n{NEEDS}")).await;
        let status = self.stage.declaration_status(&self.citation, &head).await.unwrap();
        assert_eq!(status.state, "failure", "{status:?}");
        assert!(status.description.contains("the contract accepts 3"), "{status:?}");
        self.stage.settled("citation", 0).await.unwrap();
        assert_eq!(self.stage.builds("citation").await.unwrap().len(), 1);

        let apps = self.stage.clone_apps().await.unwrap();
        apps.write("contract.yaml", contract(&self.name, 4).to_string()).await.unwrap();
        apps.commit("Raise the contract").await.unwrap();
        apps.push().await.unwrap();
        let second = self.stage.committed_once(&self.citation, &head).await.unwrap();
        assert_ne!(second.digest, first.digest);
        self.runs("citation", &second.digest).await;
    }

    async fn what_is_removed_leaves_its_data_and_the_other_app(&self) {
        let apps = self.stage.clone_apps().await.unwrap();
        apps.git(&["rm", "-r", "--quiet", "apps/citation"]).await.unwrap();
        let path = apps.path().display().to_string();
        let render = ["render", "--path", &path, "--remove", "--yes"];
        let (code, out, err) = self.stage.try_command_with(&borrowed(&self.settings), &render).await.unwrap();
        assert_eq!(code, 0, "{out}{err}");
        apps.commit("Remove citation").await.unwrap();
        apps.push().await.unwrap();
        let gone = async || {
            self.refresh("citation-prod").await;
            let left = self.get("deployment", "citation").await.is_some();
            (self.application("citation-prod").await.is_none() && !left).then_some(())
        };
        self.waits("citation-prod", "stays", gone).await;
        let claim = self.get("objectbucketclaim", "atlas-datalake").await.unwrap();
        assert_eq!(claim["status"]["phase"], "Bound", "{claim:#}");
        assert!(self.get("persistentvolumeclaim", "citation-disk").await.is_some());
        let other = self.stage.composition("mediawatch").await.unwrap().unwrap();
        self.runs("mediawatch", &other.digest).await;
    }

    async fn end(&self) {
        let all = [&*self.name, "citation-prod", "mediawatch-prod", "buckets-prod", "volumes-prod"];
        for name in all {
            let delete =
                ["delete", "application", name, "--namespace=argocd", "--wait=false", "--ignore-not-found"];
            self.ground.cluster.kubectl(&delete).await.unwrap();
        }
        let delete = ["delete", "namespace", &self.name, &keeper(&self.name), "--wait=false"];
        self.ground.cluster.kubectl(&delete).await.unwrap();
    }

    /// Registers an app with its declaration and its webhook, with more said of its source.
    async fn register(&self, app: &SampleApp, more: &str) {
        let apps = self.stage.clone_apps().await.unwrap();
        app.write_registration(&apps).await.unwrap();
        declares(&apps, app, more).await;
        apps.commit(&format!("Register {}", app.options.name)).await.unwrap();
        apps.push().await.unwrap();
        self.stage.hook("atlas", &app.options.name).await.unwrap();
    }

    /// Pushes a declaration with everything that was written beside it; the revision.
    async fn declare(&self, app: &SampleApp, lines: &str) -> String {
        let text = format!("codeLocation: {}\n{lines}\n", app.options.name);
        app.source.write(MANIFEST, text).await.unwrap();
        let revision = app.source.commit("Declare").await.unwrap();
        app.source.push().await.unwrap();
        self.tell(app, &revision).await;
        revision
    }

    /// Delivers a push until it is accepted: a receiver that hears of a repository for the first time on a busy machine may
    /// have to read for longer than Gitea waits.
    async fn tell(&self, app: &SampleApp, head: &str) {
        let repo = format!("atlas/{}", app.options.name);
        wait_until("the push to be accepted", SYNCED, || async {
            let (status, _) = self.stage.deliver_push(&repo, &"0".repeat(40), head).await.ok()?;
            (status == 202).then_some(())
        })
        .await
        .unwrap();
    }

    /// Waits until an app is Synced and Healthy and its one pod runs this digest, and returns that.
    async fn runs(&self, app: &str, digest: &str) -> Value {
        let application = format!("{app}-prod");
        let reference = format!("{}/{app}@{digest}", self.stage.bed.registry().host());
        let running = async || {
            self.refresh(&application).await;
            let status = self.application(&application).await?["status"].clone();
            let well = status["sync"]["status"] == "Synced" && status["health"]["status"] == "Healthy";
            let pod = self.pod(app).await.filter(|_| well)?;
            (pod["spec"]["containers"][0]["image"] == *reference).then_some(pod)
        };
        let pod = self.waits(&application, "does not run what was built", running).await;
        let env = &pod["spec"]["containers"][0]["env"];
        assert_eq!(*env, json!([{ "name": "DAGSTER_CURRENT_IMAGE", "value": reference }]));
        let status = &pod["status"]["containerStatuses"][0];
        let pulled = status["imageID"].as_str().unwrap_or_default();
        assert_eq!((pulled.rsplit('@').next(), &status["ready"]), (Some(digest), &json!(true)), "{pod:#}");
        pod
    }

    /// The pod of an app, while there is exactly one. One that is on its way out is none.
    async fn pod(&self, app: &str) -> Option<Value> {
        let selector = format!("app={app}");
        let pods = self.kubectl(&["get", "pods", "--selector", &selector, "--output=json"]).await?;
        let pods: Value = serde_json::from_str(&pods).ok()?;
        let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        let pods: Vec<&Value> = pods["items"].as_array()?.iter().filter(stays).collect();
        let [pod] = pods[..] else { return None };
        Some(pod.clone())
    }

    async fn kubectl(&self, args: &[&str]) -> Option<String> {
        self.ground.cluster.kubectl(&[&["--namespace", &self.name], args].concat()).await.ok()
    }

    async fn get(&self, kind: &str, name: &str) -> Option<Value> {
        serde_json::from_str(&self.kubectl(&["get", kind, name, "--output=json"]).await?).ok()
    }

    async fn application(&self, name: &str) -> Option<Value> {
        argo::look(self.ground.cluster, name).await
    }

    /// Has Argo CD look at the root and at an Application.
    async fn refresh(&self, application: &str) {
        argo::refresh(self.ground.cluster, &[&self.name, "buckets-prod", application]).await;
    }

    /// Waits, and tells what Argo CD says when it was in vain.
    async fn waits<T, F: Future<Output = Option<T>>>(
        &self,
        application: &str,
        what: &str,
        check: impl FnMut() -> F,
    ) -> T {
        match wait_until(what, SYNCED, check).await {
            Ok(found) => found,
            Err(error) => {
                let names = [&*self.name, "buckets-prod", "mediawatch-prod", application];
                let told = argo::told(self.ground.cluster, &names).await;
                let pods = self.kubectl(&["describe", "pods"]).await.unwrap_or_default();
                panic!("{application} {what}: {error:#}{told}\n{pods}");
            }
        }
    }
}

/// What everything that renders is told, and where builds run.
async fn settings(ground: Ground, name: &str, daemon: &str) -> Vec<(&'static str, String)> {
    let destinations = format!("[{{environment=\"prod\", namespaces=[\"{name}\"]}}]");
    vec![
        ("FABRIQUE_RENDER__ENABLED", "true".to_owned()),
        ("FABRIQUE_RENDER__ROOT", name.to_owned()),
        ("FABRIQUE_RENDER__PROJECT", name.to_owned()),
        ("FABRIQUE_RENDER__DESTINATIONS", destinations),
        ("FABRIQUE_RENDER__MIGRATIONS__IMAGE", image(ground).await.to_owned()),
        // The bed's server with vectors has no TLS.
        ("FABRIQUE_RENDER__MIGRATIONS__SSLMODE", "disable".to_owned()),
        ("FABRIQUE_BUILDKIT__DAEMONS", format!("[{{name=\"beside\", address=\"{daemon}\"}}]")),
    ]
}

fn borrowed<'a>(settings: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    settings.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

/// The namespace in which the database's roles are kept.
fn keeper(name: &str) -> String {
    format!("{name}-postgres")
}

/// What the cluster offers.
fn contract(namespace: &str, version: u32) -> Value {
    let accepts: Vec<u32> = (3..=version).collect();
    json!({
        "apiVersion": "fabrique/v1", "kind": "Contract", "version": version, "accepts": accepts,
        "endpoints": {
            "gitea": "http://gitea:3000", "argocd": "http://argocd:8080",
            "registry": "registry:80", "nats": "nats://nats:4222",
        },
        "databases": { DATABASE: { "namespace": namespace, "cluster": "pg" } },
        "secrets": { SECRET: {
            "namespace": namespace, "keys": ["username", "password"],
            "from": { "namespace": keeper(namespace), "secret": ROLE },
        } },
        "environments": { "prod": {
            "block": { "defaultClass": "rook-ceph-block", "classes": { "rook-ceph-block": null } },
            "object": { "defaultClass": LAKE, "defaultSize": "10Gi", "classes": { LAKE: null } },
        } },
    })
}

/// Commits the contract and what is rendered of it, and has Argo CD know the root, as a person does once.
async fn bring_root(ground: Ground, stage: &Stage, name: &str, settings: &[(&'static str, String)]) {
    // The bed's Argo CD cannot answer git when it asks who it is.
    let public = json!({ "private": false });
    stage.bed.gitea().api("PATCH", "/repos/cluster/apps", Some(public)).await.unwrap();
    let apps = stage.clone_apps().await.unwrap();
    apps.write("contract.yaml", contract(name, 3).to_string()).await.unwrap();
    let path = apps.path().display().to_string();
    let rendered = stage.try_command_with(&borrowed(settings), &["render", "--path", &path]).await.unwrap();
    assert_eq!(rendered.0, 0, "{rendered:?}");
    apps.commit("Offer the contract").await.unwrap();
    apps.push().await.unwrap();
    // Of a test that failed, on a cluster that stays.
    for stale in ["citation-prod", "mediawatch-prod", "buckets-prod", "volumes-prod"] {
        let delete = ["delete", "application", stale, "--namespace=argocd", "--ignore-not-found"];
        ground.cluster.kubectl(&delete).await.unwrap();
    }
    ground.cluster.apply(&apps.read("root.yaml").await.unwrap()).await.unwrap();
}

/// Has `fabrique secrets` make the secret that apps use from that of the database's role: once.
async fn derive(ground: Ground, stage: &Stage, name: &str) {
    let kubeconfig = ground.cluster.kubeconfig().display().to_string();
    let secrets = async |more: &[&str]| {
        let args = [&["secrets", "--only", SECRET], more].concat();
        let (code, out, err) = stage.try_command_with(&[("KUBECONFIG", &kubeconfig)], &args).await.unwrap();
        assert!(!format!("{out}{err}").contains(PASSWORD), "a password is told");
        (code, out, err)
    };
    let get = ["get", "secret", SECRET, "--namespace", name, "--output=json"];
    let dry = secrets(&["--dry-run"]).await;
    assert!(dry.0 == 1 && dry.1.ends_with("1 would be changed\n"), "{dry:?}");
    ground.cluster.kubectl(&get).await.expect_err("a dry run made it");
    let made = secrets(&[]).await;
    assert!(made.0 == 0 && made.1.ends_with("1 changed\n"), "{made:?}");
    let found: Value = serde_json::from_str(&ground.cluster.kubectl(&get).await.unwrap()).unwrap();
    let keys: Vec<&String> = found["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["password", "username"], "the role has more");
    let again = secrets(&[]).await;
    assert!(again.0 == 0 && again.1.ends_with("0 changed\n"), "{again:?}");
}

/// The database's Service, as CloudNativePG calls it, and the secret of its role.
async fn provide(ground: Ground, namespace: &str, port: u16) {
    let at = |name: &str| json!({ "name": name, "namespace": namespace });
    let mut endpoints = at("pg-rw-bed");
    endpoints["labels"] = json!({ "kubernetes.io/service-name": "pg-rw" });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Service", "metadata": at("pg-rw"),
          "spec": { "ports": [{ "name": "postgres", "port": 5432 }] } },
        { "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": endpoints,
          "addressType": "IPv4", "ports": [{ "name": "postgres", "port": port }],
          "endpoints": [{ "addresses": [Cluster::CALLER] }] },
        { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": keeper(namespace) } },
        { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": ROLE, "namespace": keeper(namespace) },
          "stringData": { "username": DATABASE, "password": PASSWORD, "host": "pg-rw" } },
    ] });
    ground.cluster.apply(&list.to_string()).await.unwrap();
}

/// Has a registration name the app's declaration, with more said of its source.
async fn declares(apps: &GitRepo, app: &SampleApp, more: &str) {
    let file = format!("apps/{}/app.yaml", app.options.name);
    let text = apps.read(&file).await.unwrap();
    let source = format!("branch: main, declaration: {MANIFEST}{more} }}");
    let declared = text.replace("branch: main }", &source);
    assert_ne!(declared, text);
    apps.write(&file, declared).await.unwrap();
}

/// An app that nobody has registered or pushed yet. By itself busybox would end at once.
async fn unregistered(stage: &Stage, name: &str) -> SampleApp {
    let options = AppOptions { watch: vec!["message".to_owned()], ..AppOptions::named(name) };
    let source = stage.create_source("atlas", name, false).await.unwrap();
    let app = SampleApp::over(stage, options, source);
    app.write_source("first").await.unwrap();
    let text = app.source.read(DEPLOYMENT).await.unwrap();
    let image = format!("          image: {}\n", app.image);
    let container = format!(
        "{image}          command: [/bin/busybox, sleep, \"2147483647\"]\n          resources: {{ requests: {{ cpu: 1m, \
         memory: 4Mi }} }}\n      terminationGracePeriodSeconds: 1\n"
    );
    let running = text.replace(&image, &container);
    assert_ne!(running, text);
    app.source.write(DEPLOYMENT, running).await.unwrap();
    app
}
