//! What a real cluster has, read with the least rights, and every provided resource as that cluster takes it.

use std::collections::BTreeMap;
use std::time::Duration;

use fabrique_kubernetes::inventory::{ClusterInventory, RULES};
use fabrique_kubernetes::rbac::Scope;
use fabrique_ports::inventory::{Inventory, Listed, MOST_REQUESTS, Seen, Wanted};
use serde_json::{Value, json};

use crate::ground::{Ground, eventually};

const CRDS: &str = include_str!("crds.yaml");
/// Every file that the rendering's golden test holds, each after a line with its path.
const RENDERED: &str = include_str!(
    "../../../gitops/src/render/tests/snapshots/fabrique_gitops__render__tests__provided__provided.snap"
);
const SECRET: &str = "correct-horse-battery-staple";

/// The rendered files by path, in this namespace instead of those of the example.
fn rendered(namespace: &str) -> BTreeMap<String, String> {
    let (_, files) = RENDERED.split_once("### ").unwrap();
    let files = files.split("### ").map(|file| file.split_once('\n').unwrap());
    let here = |text: &str| {
        let ours = |name: &str| format!("namespace: {name}\n");
        text.replace(&ours("apps"), &ours(namespace)).replace(&ours("postgres"), &ours(namespace))
    };
    files.map(|(path, text)| (path.to_owned(), here(text))).collect()
}

impl Ground {
    /// An account with the rights of an inventory and no other.
    async fn asker(&self) -> ClusterInventory {
        let namespace = &self.namespace;
        let rules = |scope: Scope| -> Vec<Value> {
            let rules = RULES.iter().filter(|rule| rule.scope == scope);
            rules
                .map(|rule| json!({ "apiGroups": [rule.group], "resources": [rule.resource], "verbs": rule.verbs }))
                .collect()
        };
        let name = format!("{namespace}-asker");
        let subjects = json!([{ "kind": "ServiceAccount", "name": "asker", "namespace": namespace }]);
        let api = "rbac.authorization.k8s.io/v1";
        let to = |kind: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
        let wide = json!({ "name": name });
        let here = json!({ "name": name, "namespace": namespace });
        let account = json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "asker", "namespace": namespace } },
            { "apiVersion": api, "kind": "ClusterRole", "metadata": wide, "rules": rules(Scope::Cluster) },
            { "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": wide, "subjects": subjects, "roleRef": to("ClusterRole") },
            { "apiVersion": api, "kind": "Role", "metadata": here, "rules": rules(Scope::Namespace) },
            { "apiVersion": api, "kind": "RoleBinding", "metadata": here, "subjects": subjects, "roleRef": to("Role") },
        ] });
        self.cluster.apply(&account.to_string()).await.unwrap();
        ClusterInventory::new(self.client_of("asker").await, Duration::from_secs(30))
    }

    async fn make(&self, objects: &[Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        self.cluster.apply(&list.to_string()).await.unwrap();
    }
}

fn wanted(namespaces: &[&str]) -> Wanted {
    let secrets = namespaces.iter().map(|name| (*name).to_owned()).collect();
    Wanted { secrets, databases: true, buckets: true }
}

fn here<T>(listed: &Listed<T>, of: impl Fn(&T) -> bool) -> Vec<&T> {
    listed.items().iter().filter(|item| of(item)).collect()
}

#[tokio::test]
async fn a_look_is_at_most_ten_requests_with_the_least_rights_and_brings_no_value_of_a_secret() {
    let Some(ground) = Ground::new("rootless").await else { return };
    let namespace = ground.namespace.clone();
    let asker = ground.asker().await;
    let many: Vec<String> = (0..20).map(|number| format!("elsewhere-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();

    // A cluster that stays may have them of the last time.
    let kinds =
        ["objectbucketclaims.objectbucket.io", "databases.postgresql.cnpg.io", "clusters.postgresql.cnpg.io"];
    ground.kubectl(&[&["delete", "--ignore-not-found", "crd"], &kinds[..]].concat()).await;
    // Where no operator is, a kind is unknown; where the rights are missing, that is told.
    let bare = asker.look(&wanted(&[&namespace, "kube-system"])).await.unwrap();
    assert_eq!((&bare.buckets, &bare.databases), (&Listed::Unknown, &Listed::Unknown), "{bare:?}");
    assert_eq!(bare.secrets["kube-system"], Listed::Denied);
    assert!(matches!(bare.secrets[&namespace], Listed::All(_)), "{bare:?}");
    assert!(bare.nodes.items().iter().any(|node| node.is_usable && node.cpu.is_some()), "{bare:?}");
    let wide = asker.look(&wanted(&many)).await.unwrap();
    assert!(wide.secrets.len() == 20 && wide.secrets.values().all(|listed| *listed == Listed::Denied));

    every_rendered_file_is_taken(&ground, &namespace).await;
    there_is_more(&ground, &namespace).await;
    let before = ground.asked_by("asker");
    let seen = asker.look(&wanted(&[&namespace])).await.unwrap();
    is_seen(&seen, &namespace);
    assert!(!format!("{seen:?}").contains(SECRET), "a secret's value is known");
    assert!(seen.requests <= MOST_REQUESTS && seen.requests == 9, "{} requests", seen.requests);
    eventually("all requests are in the audit log", async || {
        ground.asked_by("asker") == before + seen.requests
    })
    .await;
    // However much there is, it stays so.
    let more: Vec<Value> = (0..50)
        .map(|number| {
            json!({ "apiVersion": "objectbucket.io/v1alpha1", "kind": "ObjectBucketClaim",
                "metadata": { "name": format!("bucket-{number}"), "namespace": namespace },
                "spec": { "storageClassName": "x" } })
        })
        .collect();
    ground.make(&more).await;
    let again = asker.look(&wanted(&[&namespace])).await.unwrap();
    assert_eq!(again.requests, seen.requests);
    assert!(here(&again.buckets, |bucket| bucket.at.namespace == namespace).len() >= 52);
    ground.kubectl(&["delete", "storageclass", &namespace]).await;
    let role = format!("{namespace}-asker");
    ground.kubectl(&["delete", "clusterrole,clusterrolebinding", &role]).await;
}

/// Server-side apply takes each of them as it is, and the same once more changes nothing.
async fn every_rendered_file_is_taken(ground: &Ground, namespace: &str) {
    ground.cluster.apply(CRDS).await.unwrap();
    ground.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await;
    let folder = tempfile::tempdir().unwrap();
    let files = rendered(namespace);
    assert!(files.len() >= 8, "{:?}", files.keys());
    for (path, text) in &files {
        let file = folder.path().join(path.replace('/', "_"));
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        // What Argo CD would act upon is only tried.
        let is_claim = ["buckets/", "databases/", "volumes/"].iter().any(|kind| path.starts_with(kind));
        let apply = |rest: &[&'static str]| {
            let words = ["apply", "--server-side", "--field-manager=argocd-controller", "--filename"];
            [&words[..], rest].concat()
        };
        if is_claim {
            let version = async || {
                let args =
                    ["get", "--filename", file, "--output", "jsonpath={.metadata.generation}{.metadata.uid}"];
                ground.cluster.kubectl(&args).await.unwrap()
            };
            let mut words = apply(&[]);
            words.push(file);
            ground.cluster.kubectl(&words).await.unwrap();
            let first = version().await;
            ground.cluster.kubectl(&words).await.unwrap();
            assert_eq!(version().await, first, "{path} changed when it was applied again");
        } else {
            let mut words = apply(&[]);
            // In a cluster that stays another test may have made some of them.
            words.extend([file, "--force-conflicts", "--dry-run=server"]);
            ground.cluster.kubectl(&words).await.unwrap();
        }
    }
}

/// What operators would have made.
async fn there_is_more(ground: &Ground, namespace: &str) {
    let at = |name: &str| json!({ "name": name, "namespace": namespace });
    ground
        .make(&[
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": at("pgvector-pg-auth"),
                "stringData": { "username": "pgvector", "password": SECRET } }),
            json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": namespace },
                "provisioner": "rook-ceph.rbd.csi.ceph.com", "parameters": { "clusterID": namespace } }),
            json!({ "apiVersion": "ceph.rook.io/v1", "kind": "CephCluster", "metadata": at("ceph"),
                "status": { "ceph": { "health": "HEALTH_WARN", "capacity": { "bytesAvailable": 12345 } } } }),
            json!({ "apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "metadata": at("pg"),
                "spec": { "bootstrap": { "initdb": { "database": "pgvector" } } } }),
            json!({ "apiVersion": "objectbucket.io/v1alpha1", "kind": "ObjectBucketClaim", "metadata": at("bound"),
                "spec": { "storageClassName": "x", "additionalConfig": { "maxSize": "2G" } },
                "status": { "phase": "Bound" } }),
        ])
        .await;
}

fn is_seen(seen: &Seen, namespace: &str) {
    let Listed::All(secrets) = &seen.secrets[namespace] else { panic!("{seen:?}") };
    let secret = secrets.iter().find(|secret| secret.at.name == "pgvector-pg-auth").unwrap();
    assert_eq!(secret.keys.iter().map(String::as_str).collect::<Vec<_>>(), ["password", "username"]);
    let class = here(&seen.classes, |class| class.name == namespace);
    assert_eq!(class[0].ceph.as_deref(), Some(namespace));
    let ceph = here(&seen.ceph, |ceph| ceph.at.namespace == namespace);
    assert_eq!((ceph[0].bytes_left, ceph[0].health.as_deref()), (Some(12345), Some("HEALTH_WARN")));
    let clusters = here(&seen.clusters, |cluster| cluster.at.namespace == namespace);
    assert_eq!(clusters[0].first_database.as_deref(), Some("pgvector"));
    let buckets = here(&seen.buckets, |bucket| bucket.at.namespace == namespace);
    let called = |name: &str| buckets.iter().find(|bucket| bucket.at.name == name).unwrap();
    assert_eq!((called("bound").phase.as_str(), called("bound").size.as_deref()), ("Bound", Some("2G")));
    let lake = called("atlas-datalake");
    assert_eq!((lake.phase.as_str(), lake.size.as_deref()), ("", Some("100Gi")), "nobody binds it here");
    let databases = here(&seen.databases, |database| database.at.namespace == namespace);
    assert_eq!((databases[0].database.as_str(), databases[0].applied), ("marts_raw", None));
    let volumes = here(&seen.volumes, |volume| volume.at.namespace == namespace);
    assert_eq!((volumes[0].at.name.as_str(), volumes[0].phase.as_str()), ("citation-disk", "Pending"));
    assert!(seen.pods.items().iter().any(|pod| pod.namespace == "kube-system" && pod.node.is_some()));
}
