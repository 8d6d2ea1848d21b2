//! The image that runs in the cluster, from the Dockerfile, by our own BuildKit, on a base given by argument.

use std::time::Duration;

use fabrique_bed::wait_until;
use fabrique_cluster_tests::{image, source};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::ground::{Ground, ground};

const LONGEST: Duration = Duration::from_mins(5);

/// The image by digest, as pods name it. Built once.
pub(crate) async fn image(ground: Ground) -> &'static str {
    static IMAGE: OnceCell<String> = OnceCell::const_new();
    IMAGE
        .get_or_init(async || image::push(ground.cluster, "manifests-test/fabrique", None).await.unwrap())
        .await
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

/// On a base of this machine's own toolchain, since no Rust image is to be had where the bed is. It needs no cluster.
#[tokio::test]
#[ignore = "compiles fabrique and all crates anew: `./just test -p fabrique-cluster-tests -- --ignored from_source`"]
async fn the_image_from_source_is_built_by_our_buildkit_and_has_all_that_the_prebuilt_one_has() {
    let said = source::ask("fabrique --version && git --version && id --user").await.unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let [version, git, user] = lines.as_slice() else { panic!("{said}") };
    assert!(version.starts_with("fabrique ") && git.starts_with("git version "), "{said}");
    assert_eq!(*user, "65532");
}

/// Behind an air gap `.cargo/config.toml` says where crates come from, and `.cargo/vendor` may be it. It needs no cluster.
#[tokio::test]
async fn what_says_where_crates_come_from_reaches_the_build_and_what_is_not_copied_does_not() {
    let wanted =
        ["Cargo.toml", ".cargo/config.toml", ".cargo/vendor/serde/src/lib.rs", "services/core/src/lib.rs"];
    let there = source::let_through(&[&wanted[..], &["target/release/fabrique", ".git/HEAD"]].concat()).await;
    assert_eq!(there.unwrap(), wanted);
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
