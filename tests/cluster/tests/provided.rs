//! What the cluster provides, in the hands of a real Argo CD: brought as it is rendered, and given up by nothing that
//! happens to the files or to their Applications.

use std::collections::BTreeMap;

use fabrique_bed::{GitRepo, wait_until};
use fabrique_cluster_tests::manifests;
use serde_json::{Value, json};

use crate::argo;
use crate::ground::{Ground, SOON, ground};

pub(crate) const CRDS: &str = include_str!("../../../services/kubernetes/tests/live/crds.yaml");
/// Every file that the rendering's golden test holds, each after a line with its path.
const RENDERED: &str = include_str!(
    "../../../services/gitops/src/render/tests/snapshots/fabrique_gitops__render__tests__provided__provided.snap"
);
const LAKE: &str = "buckets/prod/atlas-datalake.yaml";
const SCRATCH: &str = "buckets/prod/scratch.yaml";
const VOLUME: &str = "volumes/prod/citation.yaml";
/// What a finalizer would have Argo CD remove.
const FINALIZER: &str = r#"{"metadata":{"finalizers":["resources-finalizer.argocd.argoproj.io"]}}"#;

/// What the installation has Argo CD think of the health of a claim.
const HEALTH: &str = "resource.customizations.health.objectbucket.io_ObjectBucketClaim";

/// The rendered files by path.
fn rendered() -> BTreeMap<&'static str, &'static str> {
    let (_, files) = RENDERED.split_once("### ").unwrap();
    files.split("### ").map(|file| file.split_once('\n').unwrap()).collect()
}

/// Has the API server know claims of buckets, and Argo CD what to think of them.
pub(crate) async fn claims(ground: Ground) {
    ground.cluster.apply(CRDS).await.unwrap();
    let wait =
        ["wait", "--for=condition=Established", "--timeout=60s", "crd", "objectbucketclaims.objectbucket.io"];
    ground.cluster.kubectl(&wait).await.unwrap();
    // Not the whole file: what it says of Applications would hold for the tests beside this one.
    let file = manifests::root().join("components/argocd/health/application-health.yaml");
    let config = manifests::documents(&std::fs::read_to_string(file).unwrap()).unwrap().remove(0);
    let bound = config["data"][HEALTH].as_str().unwrap();
    let health = json!({ "data": { HEALTH: bound } }).to_string();
    let patch = ["patch", "configmap", "argocd-cm", "--namespace=argocd", "--type=merge", "--patch", &health];
    ground.cluster.kubectl(&patch).await.unwrap();
}

/// What of it is brought, in a namespace and a repository of the test's own.
struct Scene {
    ground: Ground,
    name: String,
    apps: GitRepo,
}

#[tokio::test]
async fn neither_a_lost_file_nor_a_lost_application_costs_a_bucket_or_a_volume() {
    let Some(ground) = ground().await else { return };
    let scene = Scene::open(ground).await;
    let first = scene.push(&[LAKE, SCRATCH, VOLUME], "Deploy what uses them").await;
    scene.bring("buckets").await;
    scene.bring("volumes").await;
    // Nobody binds the volume, and nobody waits for it: its first pod would.
    scene.is_synced("volumes", &first, "Healthy").await;
    // A bucket is waited for until it is bound.
    scene.is_synced("buckets", &first, "Progressing").await;
    let bound = r#"{"status":{"phase":"Bound"}}"#;
    scene.kubectl(&["patch", "objectbucketclaims", "--type=merge", "--patch", bound, "atlas-datalake"]).await;
    scene.kubectl(&["patch", "objectbucketclaims", "--type=merge", "--patch", bound, "scratch"]).await;
    scene.is_synced("buckets", &first, "Healthy").await;
    let there = scene.there().await;
    assert_eq!(there.len(), 3, "{there:?}");

    // Somebody loses a file: Argo CD neither removes the bucket nor complains.
    let second = scene.push(&[SCRATCH, VOLUME], "Lose a file").await;
    scene.is_synced("buckets", &second, "Healthy").await;
    assert_eq!(scene.there().await, there);

    // Somebody deletes the Applications, one of them with everything below it.
    let all = scene.application("buckets");
    scene
        .ground
        .cluster
        .kubectl(&["patch", "application", &all, "--namespace=argocd", "--type=merge", "--patch", FINALIZER])
        .await
        .unwrap();
    for kind in ["buckets", "volumes"] {
        let delete =
            ["delete", "application", &scene.application(kind), "--namespace=argocd", "--timeout=60s"];
        scene.ground.cluster.kubectl(&delete).await.unwrap();
    }
    assert_eq!(scene.there().await, there);
    let delete = ["delete", "namespace", &scene.name, "--wait=false"];
    scene.ground.cluster.kubectl(&delete).await.unwrap();
    let delete = ["delete", "appproject", &scene.name, "--namespace=argocd"];
    scene.ground.cluster.kubectl(&delete).await.unwrap();
}

impl Scene {
    async fn open(ground: Ground) -> Self {
        let name = format!("provided-{}", std::process::id());
        claims(ground).await;
        ground.cluster.kubectl(&["create", "namespace", &name]).await.unwrap();
        let gitea = ground.cluster.gitea();
        // Whoever comes first makes it.
        let _ = gitea.create_org("cluster").await;
        gitea.create_repo("cluster", &name, false).await.unwrap();
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", &name)).await.unwrap();
        let scene = Self { ground, name, apps };
        scene.permit().await;
        scene
    }

    fn url(&self) -> String {
        self.ground.cluster.gitea().clone_url("cluster", &self.name)
    }

    fn application(&self, kind: &str) -> String {
        format!("{}-{kind}", self.name)
    }

    /// The rendered project of what is provided, with this repository and namespace.
    async fn permit(&self) {
        let documents = manifests::documents(rendered()["root.yaml"]).unwrap();
        let named = |document: &&Value| document["metadata"]["name"] == "fabrique-apps-provided";
        let mut project = documents.iter().find(named).unwrap().clone();
        project["metadata"]["name"] = json!(self.name);
        project["spec"]["sourceRepos"] = json!([self.url()]);
        project["spec"]["destinations"] =
            json!([{ "server": "https://kubernetes.default.svc", "namespace": self.name }]);
        self.ground.cluster.apply(&project.to_string()).await.unwrap();
    }

    /// The rendered Application of a folder, the same way.
    async fn bring(&self, kind: &str) {
        let file = format!("applications/{kind}-prod.yaml");
        let mut application = manifests::documents(rendered()[&*file]).unwrap().remove(0);
        application["metadata"]["name"] = json!(self.application(kind));
        application["spec"]["project"] = json!(self.name);
        application["spec"]["source"]["repoURL"] = json!(self.url());
        application["spec"]["destination"]["namespace"] = json!(self.name);
        self.ground.cluster.apply(&application.to_string()).await.unwrap();
    }

    /// Pushes these files and no others; the revision.
    async fn push(&self, files: &[&str], message: &str) -> String {
        for file in [LAKE, SCRATCH, VOLUME] {
            if files.contains(&file) {
                let text =
                    rendered()[file].replace("namespace: apps\n", &format!("namespace: {}\n", self.name));
                self.apps.write(file, text).await.unwrap();
            } else {
                self.apps.git(&["rm", "--quiet", file]).await.unwrap();
            }
        }
        let revision = self.apps.commit(message).await.unwrap();
        self.apps.push().await.unwrap();
        revision
    }

    async fn kubectl(&self, args: &[&str]) -> String {
        self.ground.cluster.kubectl(&[&["--namespace", &self.name], args].concat()).await.unwrap()
    }

    /// What is there, each with its identity.
    async fn there(&self) -> Vec<String> {
        let output = "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid}{\"\\n\"}{end}";
        let kinds = "objectbucketclaims,persistentvolumeclaims";
        let listed = self.kubectl(&["get", kinds, "--output", output]).await;
        let mut there: Vec<String> = listed.lines().map(str::to_owned).collect();
        there.sort();
        there
    }

    async fn look(&self, kind: &str) -> Option<Value> {
        argo::look(self.ground.cluster, &self.application(kind)).await
    }

    async fn refresh(&self, kind: &str) {
        let refresh = "argocd.argoproj.io/refresh=normal";
        let name = self.application(kind);
        let annotate = ["annotate", "application", &name, "--namespace=argocd", "--overwrite", refresh];
        self.ground.cluster.kubectl(&annotate).await.unwrap();
    }

    /// Waits until a revision was compared, and nothing is out of line.
    async fn is_synced(&self, kind: &str, revision: &str, health: &str) {
        let synced = async || {
            // Every time: Argo CD before 3.6 drops a request that arrives while it works on the one before (argo-cd
            // issue 28392).
            self.refresh(kind).await;
            let application = self.look(kind).await?;
            let status = &application["status"];
            let sync = &status["sync"];
            let is_so = sync["status"] == "Synced" && sync["revision"] == revision;
            (is_so && status["health"]["status"] == health).then_some(())
        };
        if let Err(error) = wait_until(&format!("{kind} to be {health}"), SOON, synced).await {
            panic!("{error:#}\n{:#}", self.look(kind).await.unwrap_or_default()["status"]);
        }
    }
}
