//! Builder pods whose image is behind credentials.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fabrique_bed::Guarded;
use serde_json::{Value, json};

use crate::ground::Ground;
use crate::scene::Scene;

/// What `pull.secrets` names.
const SECRET: &str = "pull";

fn credentials(ground: &Ground, guarded: &Guarded) -> Value {
    let auth = STANDARD.encode(format!("{}:{}", guarded.user(), guarded.password()));
    let config = json!({ "auths": { guarded.host(): { "auth": auth } } });
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
        "metadata": { "name": SECRET, "namespace": ground.namespace },
        "stringData": { ".dockerconfigjson": config.to_string() },
    })
}

/// The node asks with the Secret that the pod names, and without it has no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_builders_image_is_pulled_with_the_secret_that_is_configured_and_with_nothing_less() {
    let Some(mut ground) = Ground::new().await else { return };
    let guarded = ground.cluster.guarded_registry().await.unwrap();
    let image = guarded.image(&ground.cluster.images().builder).unwrap();
    ground.settings["images"]["builder"] = image.as_str().into();
    ground.settings["pull"] = json!({ "policy": "Always", "secrets": [SECRET] });
    ground.settings["pool"]["start"] = "20s".into();
    ground.settings["gate"]["limit"] = "15s".into();
    ground.stage.settings.patience = "12s".into();
    let credentials = credentials(&ground, &guarded);
    let scene = Scene::set(ground).await;
    let revision = scene.push("COPY message /message").await;
    let why = scene.why_tells(&revision, "cannot pull its image").await;
    assert_eq!(why["failure"]["kind"], "unplaced", "{why:#}");

    scene.ground.apply(&credentials).await;
    scene.ends_in_one_commit(&revision, &scene.worker).await;
    let pod = scene.ground.one_pod("the builder", |_| true).await;
    assert_eq!(pod["spec"]["imagePullSecrets"], json!([{ "name": SECRET }]));
    assert_eq!(pod["spec"]["containers"][0]["image"], image.as_str());
    // The worker may make Secrets, and read none: it does not know these credentials.
    assert!(!scene.worker.log().contains(guarded.password()));
}
