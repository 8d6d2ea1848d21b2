//! When Argo CD takes an Application or a bucket for healthy, asked of Argo CD's own program. No cluster is needed.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fabrique_bed::install::{self, Cache, Product};
use fabrique_cluster_tests::manifests;
use serde_json::{Value, json};
use tokio::process::Command;

const KEY: &str = "resource.customizations.health.argoproj.io_Application";
const OF_BUCKETS: &str = "resource.customizations.health.objectbucket.io_ObjectBucketClaim";
const LONGEST: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_component_puts_the_health_of_applications_beside_what_is_configured() {
    let text = manifests::argocd_cm(&json!({ "timeout.reconciliation": "60s" })).await.unwrap();
    let documents = manifests::documents(&text).unwrap();
    let [config] = &documents[..] else { panic!("{documents:#?}") };
    assert_eq!(config["data"]["timeout.reconciliation"], "60s");
    assert!(config["data"][KEY].as_str().is_some_and(|script| script.contains("status.health.status")));
    assert!(config["data"][OF_BUCKETS].as_str().is_some_and(|script| script.contains("Bound")));
    assert_eq!(config["metadata"]["labels"]["app.kubernetes.io/part-of"], "argocd");
}

#[tokio::test]
async fn an_application_is_healthy_once_it_is_rendered_and_synced_and_not_before() {
    let status = |sync: &str, health: &str, phase: Option<&str>| {
        let operation = phase.map(|phase| json!({ "phase": phase }));
        json!({ "sync": { "status": sync }, "health": { "status": health }, "operationState": operation })
    };
    let without_operation =
        |sync: &str, health: &str| json!({ "sync": { "status": sync }, "health": { "status": health } });
    let cases = [
        (Value::Null, "Progressing"),
        (json!({}), "Progressing"),
        (json!({ "sync": { "status": "Synced" } }), "Progressing"),
        // Of what cannot be rendered Argo CD itself says this.
        (without_operation("Unknown", "Healthy"), "Progressing"),
        (without_operation("OutOfSync", "Healthy"), "Progressing"),
        (status("OutOfSync", "Healthy", Some("Running")), "Progressing"),
        // A migration that failed leaves the old pods running, and healthy.
        (status("OutOfSync", "Healthy", Some("Failed")), "Progressing"),
        (status("OutOfSync", "Healthy", Some("Succeeded")), "Healthy"),
        (status("Synced", "Healthy", Some("Succeeded")), "Healthy"),
        (status("Synced", "Degraded", Some("Succeeded")), "Degraded"),
        (without_operation("Synced", "Missing"), "Missing"),
    ];
    let application = json!({
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Application",
        "metadata": { "name": "base-prod", "namespace": "argocd" },
    });
    is_judged(application, cases).await;
}

#[tokio::test]
async fn a_bucket_is_healthy_once_it_is_bound_and_not_before() {
    let cases = [
        (Value::Null, "Progressing"),
        (json!({}), "Progressing"),
        (json!({ "phase": "Pending" }), "Progressing"),
        (json!({ "phase": "Bound" }), "Healthy"),
    ];
    let claim = json!({
        "apiVersion": "objectbucket.io/v1alpha1", "kind": "ObjectBucketClaim",
        "metadata": { "name": "atlas-datalake", "namespace": "dagster" },
    });
    is_judged(claim, cases).await;
}

/// The object with each status, none where that is null, is as healthy as expected.
async fn is_judged(object: Value, cases: impl IntoIterator<Item = (Value, &str)>) {
    let folder = tempfile::tempdir().unwrap();
    let (config, file) = (folder.path().join("argocd-cm.yaml"), folder.path().join("object.yaml"));
    std::fs::write(&config, manifests::argocd_cm(&json!({})).await.unwrap()).unwrap();
    for (status, expected) in cases {
        let mut object = object.clone();
        if !status.is_null() {
            object["status"] = status.clone();
        }
        std::fs::write(&file, object.to_string()).unwrap();
        let told = judged(&config, &file).await;
        assert!(told.contains(&format!("STATUS: {expected}\n")), "{status}: {told}");
    }
}

/// What Argo CD says of the health of the object in `file`.
async fn judged(config: &Path, file: &Path) -> String {
    let cache = Cache::open().unwrap();
    let preparing = cache.clone();
    let prepared = tokio::task::spawn_blocking(move || install::ensure(&preparing, &[Product::Argocd]));
    prepared.await.unwrap().unwrap();
    let mut command = Command::new(cache.folder(Product::Argocd).join("argocd"));
    command
        .args(["admin", "settings", "resource-overrides", "health"])
        .arg(file)
        .arg("--argocd-cm-path")
        .arg(config)
        .env("ARGOCD_BINARY_NAME", "argocd")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(LONGEST, command.output()).await.unwrap().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    told
}
