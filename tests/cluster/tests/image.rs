//! The image that runs in the cluster, from the Dockerfile, by our own BuildKit, on a base given by argument.

use std::time::Duration;

use fabrique_bed::{Bed, BuildkitOptions, wait_until};
use fabrique_cluster_tests::manifests;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::ground::{Ground, ground};
use crate::program::fabrique;

/// Where the cluster's registry is to a builder beside the cluster.
const REGISTRY: &str = "198.18.0.2:80";
const LONGEST: Duration = Duration::from_mins(5);

/// The image by digest, as pods name it. Built once.
pub(crate) async fn image(ground: Ground) -> &'static str {
    static IMAGE: OnceCell<String> = OnceCell::const_new();
    IMAGE.get_or_init(|| build(ground)).await
}

async fn build(ground: Ground) -> String {
    let options = BuildkitOptions {
        extra_toml: format!("[registry.\"{REGISTRY}\"]\n  http = true\n"),
        ..BuildkitOptions::default()
    };
    let bed = Bed::builder().buildkit_with(options).start().await.unwrap();
    let context = tempfile::tempdir().unwrap();
    std::fs::copy(fabrique().await, context.path().join("fabrique")).unwrap();
    let metadata = context.path().join("metadata.json");
    let base = ground.cluster.images().debian.replacen("registry:80", REGISTRY, 1);

    let mut build = bed.buildkit(0).buildctl();
    build.args(["build", "--frontend=dockerfile.v0", "--opt=target=prebuilt"]);
    build.arg(format!("--opt=build-arg:RUNTIME_BASE={base}"));
    build.arg(format!("--local=dockerfile={}", manifests::repository().display()));
    build.arg(format!("--local=context={}", context.path().display()));
    build.arg(format!("--output=type=image,name={REGISTRY}/manifests-test/fabrique,push=true"));
    build.arg("--metadata-file").arg(&metadata);
    let output = tokio::time::timeout(LONGEST, build.output()).await.expect("the build hangs").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&std::fs::read(metadata).unwrap()).unwrap();
    format!("registry:80/manifests-test/fabrique@{}", metadata["containerimage.digest"].as_str().unwrap())
}

#[tokio::test]
async fn the_prebuilt_image_is_built_by_our_buildkit_and_runs_as_a_restricted_pod() {
    let Some(ground) = ground().await else { return };
    let image = image(ground).await;
    assert!(run(image, "version", json!({ "args": ["--version"] })).await.starts_with("fabrique "));
    let git = json!({ "command": ["git", "--version"] });
    assert!(run(image, "git", git).await.starts_with("git version "));
    let user = json!({ "command": ["id", "--user"] });
    assert_eq!(run(image, "user", user).await.trim(), "65532");
}

/// Runs a container in our own namespace, whose level is `restricted`, to its end, and returns what it printed. The
/// user is the image's own.
async fn run(image: &str, name: &str, container: Value) -> String {
    let cluster = ground().await.unwrap().cluster;
    let name = format!("image-{name}-{}", std::process::id());
    let mut container = container;
    container["name"] = json!("main");
    container["image"] = json!(image);
    container["securityContext"] = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "fabrique" },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [container],
        },
    });
    cluster.apply(&pod.to_string()).await.unwrap();
    let what = format!("pod {name} to end");
    let ended = wait_until(&what, LONGEST, || async {
        let args = ["get", "pod", &name, "--namespace=fabrique", "--output=json"];
        let pod: Value = serde_json::from_str(&cluster.kubectl(&args).await.ok()?).ok()?;
        let phase = pod["status"]["phase"].as_str()?.to_owned();
        ["Succeeded", "Failed"].contains(&phase.as_str()).then_some(phase)
    });
    let phase = ended.await.unwrap();
    let log = cluster.kubectl(&["logs", "--namespace=fabrique", &name]).await.unwrap();
    cluster.kubectl(&["delete", "pod", "--namespace=fabrique", "--now", &name]).await.unwrap();
    assert_eq!(phase, "Succeeded", "{log}");
    log
}
