//! What an app may deploy, asked of a real Argo CD.

use std::collections::BTreeMap;

use fabrique_bed::{GitRepo, wait_until};
use serde_json::{Value, json};

use crate::argo;
use crate::ground::{Ground, SOON, ground};

/// Each is refused, and would otherwise be made.
const REFUSED: [(&str, &str); 5] = [
    (
        "NetworkPolicy",
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: { name: NAME }\n\
         spec: { podSelector: {}, policyTypes: [Egress], egress: [{}] }\n",
    ),
    (
        "RoleBinding",
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: { name: NAME }\n\
         roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin }\n",
    ),
    (
        "ClusterRole",
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: { name: NAME }\nrules: []\n",
    ),
    ("Namespace", "apiVersion: v1\nkind: Namespace\nmetadata: { name: NAME }\n"),
    (
        "ConfigMap",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: NAME, namespace: fabrique-builds }\ndata: {}\n",
    ),
];
/// A Service that takes what is sent to Gitea, when it may name addresses.
const GREEDY: &str = "apiVersion: v1\nkind: Service\nmetadata: { name: NAME, namespace: apps }\n\
                      spec: { ports: [{ port: 3000 }], externalIPs: [198.18.0.3] }\n";
const PERMITTED: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: NAME }\ndata: {}\n";

#[tokio::test]
async fn a_service_of_an_app_claims_no_addresses() {
    let Some(ground) = ground().await else { return };
    let greedy = GREEDY.replace("NAME", &format!("greedy-{}", std::process::id()));
    let refused = ground.cluster.apply(&greedy).await.unwrap_err();
    assert!(format!("{refused:#}").contains("claims no addresses"), "{refused:#}");
    let modest = greedy.replace(", externalIPs: [198.18.0.3]", "");
    ground.cluster.apply(&modest).await.unwrap();
    let name = format!("greedy-{}", std::process::id());
    ground.cluster.kubectl(&["delete", "service", &name, "--namespace=apps"]).await.unwrap();
}

#[tokio::test]
async fn an_app_deploys_into_its_namespace_and_neither_policies_nor_rights_nor_anything_cluster_wide() {
    let Some(ground) = ground().await else { return };
    let name = format!("project-{}", std::process::id());
    let apps = repository(ground, &name).await;
    apps.write("prod/permitted.yaml", PERMITTED.replace("NAME", &name)).await.unwrap();
    push(&apps, "Deploy what is permitted").await;
    let url = ground.cluster.gitea().clone_url("cluster", &name);
    ground.cluster.apply(&application(&name, &url)).await.unwrap();
    let synced = async || {
        let application = argo::look(ground.cluster, &name).await?;
        (application["status"]["sync"]["status"] == "Synced").then_some(())
    };
    wait_until("what is permitted to be deployed", SOON, synced).await.unwrap();

    for (kind, manifest) in REFUSED {
        apps.write(&format!("prod/{}.yaml", kind.to_lowercase()), manifest.replace("NAME", &name))
            .await
            .unwrap();
    }
    let revision = push(&apps, "And what is not").await;
    let refused = async || {
        refresh(ground, &name).await;
        let application = argo::look(ground.cluster, &name).await?;
        let told = told_of(&application, &revision);
        REFUSED
            .iter()
            .all(|(kind, _)| told.get(*kind).is_some_and(|told| told.contains("not permitted")))
            .then_some(())
    };
    if let Err(error) = wait_until("Argo CD to refuse the rest", SOON, refused).await {
        panic!("{error:#}\n{:#}", argo::look(ground.cluster, &name).await.unwrap_or_default()["status"]);
    }
    for (kind, namespace) in [
        ("networkpolicy", "apps"),
        ("rolebinding", "apps"),
        ("clusterrole", "apps"),
        ("namespace", "apps"),
        ("configmap", "fabrique-builds"),
    ] {
        let get = ["get", kind, &name, "--namespace", namespace, "--ignore-not-found", "--output=name"];
        assert_eq!(ground.cluster.kubectl(&get).await.unwrap(), "", "{kind}");
    }
    let delete = ["delete", "application", &name, "--namespace=argocd", "--wait=false"];
    ground.cluster.kubectl(&delete).await.unwrap();
}

/// A repository of the organisation that the project trusts.
async fn repository(ground: Ground, name: &str) -> GitRepo {
    let gitea = ground.cluster.gitea();
    // Whoever comes first makes it.
    let _ = gitea.create_org("cluster").await;
    gitea.create_repo("cluster", name, false).await.unwrap();
    GitRepo::clone(&gitea.clone_url_with_token("cluster", name)).await.unwrap()
}

async fn push(apps: &GitRepo, message: &str) -> String {
    let revision = apps.commit(message).await.unwrap();
    apps.push().await.unwrap();
    revision
}

fn application(name: &str, url: &str) -> String {
    json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
        "metadata": {
            "name": name, "namespace": "argocd", "finalizers": ["resources-finalizer.argocd.argoproj.io"],
        },
        "spec": {
            "project": "fabrique-apps",
            "source": { "repoURL": url, "path": "prod", "targetRevision": "main" },
            "destination": { "server": "https://kubernetes.default.svc", "namespace": "apps" },
            "syncPolicy": { "automated": { "prune": true } },
        },
    })
    .to_string()
}

/// To be asked for until something comes of it: Argo CD before 3.6 drops a request that arrives while it works on the
/// one before (argo-cd issue 28392).
async fn refresh(ground: Ground, name: &str) {
    let refresh = "argocd.argoproj.io/refresh=normal";
    let annotate = ["annotate", "application", name, "--namespace=argocd", "--overwrite", refresh];
    ground.cluster.kubectl(&annotate).await.unwrap();
}

/// What was said of each kind when this revision was synced.
fn told_of(application: &Value, revision: &str) -> BTreeMap<String, String> {
    let result = &application["status"]["operationState"]["syncResult"];
    if result["revision"] != revision {
        return BTreeMap::new();
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let resources = result["resources"].as_array().cloned().unwrap_or_default();
    resources
        .iter()
        // The permitted one has the kind of a refused one.
        .filter(|resource| !(resource["kind"] == "ConfigMap" && resource["namespace"] == "apps"))
        .map(|resource| (text(&resource["kind"]), text(&resource["message"])))
        .collect()
}
