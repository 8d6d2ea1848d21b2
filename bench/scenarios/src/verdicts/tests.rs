use serde_json::json;

use super::*;

const DIGEST: &str = "sha256:aa";
const IMAGE: &str = "registry:80/citation";

fn pod() -> Value {
    json!({
        "spec": { "containers": [{
            "name": "main", "image": "registry:80/citation@sha256:aa",
            "env": [{ "name": "DAGSTER_CURRENT_IMAGE", "value": "registry:80/citation@sha256:aa" }],
        }] },
        "status": { "containerStatuses": [
            { "name": "main", "ready": true, "imageID": "registry:80/citation@sha256:aa" },
        ] },
    })
}

/// `pod` with one value changed.
fn but(mut value: Value, pointer: &str, to: &Value) -> Value {
    *value.pointer_mut(pointer).unwrap() = to.clone();
    value
}

#[test]
fn an_application_is_synced_to_this_revision_and_healthy() {
    let application = json!({ "status": {
        "sync": { "status": "Synced", "revision": "c1" }, "health": { "status": "Healthy" },
    } });
    assert_eq!(synced_and_healthy(&application, "c1"), Ok(()));
    assert!(synced_and_healthy(&application, "c2").is_err());
    for (pointer, value) in [("/status/sync/status", "OutOfSync"), ("/status/health/status", "Progressing")] {
        assert!(synced_and_healthy(&but(application.clone(), pointer, &json!(value)), "c1").is_err());
    }
    assert!(synced_and_healthy(&json!({}), "c1").is_err());
}

#[test]
fn a_pod_runs_a_digest_that_manifest_and_node_agree_on() {
    assert_eq!(runs_digest(&pod(), "main", IMAGE, DIGEST), Ok(()));
    for (pointer, value) in [
        ("/spec/containers/0/image", json!("registry:80/citation:latest")),
        ("/status/containerStatuses/0/imageID", json!("registry:80/citation@sha256:bb")),
        ("/status/containerStatuses/0/ready", json!(false)),
    ] {
        assert!(runs_digest(&but(pod(), pointer, &value), "main", IMAGE, DIGEST).is_err(), "{pointer}");
    }
    assert!(runs_digest(&pod(), "other", IMAGE, DIGEST).is_err());
}

#[test]
fn a_variable_shows_the_containers_own_image() {
    let knows = |pod: &Value| knows_its_image(pod, "main", "DAGSTER_CURRENT_IMAGE");
    assert_eq!(knows(&pod()), Ok(()));
    assert!(knows(&but(pod(), "/spec/containers/0/env/0/value", &json!("__CITATION_IMAGE__"))).is_err());
    assert!(knows(&but(pod(), "/spec/containers/0/env", &json!([]))).is_err());
    assert!(knows(&json!({})).is_err());
}

#[test]
fn a_worker_is_no_part_of_the_control_plane() {
    let node = |labels: &Value| json!({ "metadata": { "labels": labels } });
    assert_eq!(is_worker(&node(&json!({ "node-role.kubernetes.io/worker": "" }))), Ok(()));
    let both = json!({ "node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": "" });
    assert!(is_worker(&node(&both)).is_err());
    assert!(is_worker(&node(&json!({}))).is_err());
}

fn deployment(app: &str, revision: &str) -> Deployment {
    let [app, revision] = [app, revision].map(str::to_owned);
    Deployment { commit: "c".into(), at: 0, app, revision, digest: DIGEST.into() }
}

#[test]
fn one_commit_is_neither_none_nor_two() {
    let once = [deployment("a", "r1"), deployment("a", "r2"), deployment("b", "r1")];
    assert_eq!(committed_once(&once, "a", "r1").unwrap().app, "a");
    assert!(committed_once(&once, "a", "r3").is_err());
    let twice = [deployment("a", "r1"), deployment("a", "r1")];
    assert!(committed_once(&twice, "a", "r1").is_err());
    assert_eq!(nothing_twice(&once), Ok(()));
    assert!(nothing_twice(&twice).is_err());
}

#[test]
fn revisions_may_be_passed_over_but_not_go_back() {
    let pushed: Vec<String> = ["r1", "r2", "r3"].map(str::to_owned).into();
    // Newest commit first, as git tells them.
    let seen = |revisions: &[&str]| {
        let all: Vec<_> = revisions.iter().map(|revision| deployment("a", revision)).collect();
        newest_last(&all, "a", &pushed)
    };
    assert_eq!(seen(&["r3", "r1"]), Ok(()));
    assert!(seen(&["r2", "r1"]).is_err());
    assert!(seen(&["r3", "r1", "r2"]).is_err());
    assert!(seen(&[]).is_err());
}

#[test]
fn a_bound_is_met_or_missed() {
    assert_eq!(within("it", Duration::from_secs(60), Duration::from_secs(60)), Ok(()));
    assert!(within("it", Duration::from_secs(61), Duration::from_secs(60)).is_err());
}

#[test]
fn a_change_anywhere_is_a_change() {
    let before = Footprint { head: "c1".into(), ..Footprint::default() };
    assert_eq!(unchanged(&before, &before.clone()), Ok(()));
    for after in [
        Footprint { head: "c2".into(), ..before.clone() },
        Footprint { builds: 1, ..before.clone() },
        Footprint { builders: ["uid".to_owned()].into(), ..before.clone() },
        Footprint { pods: ["uid".to_owned()].into(), ..before.clone() },
        Footprint { rollout: "2".into(), ..before.clone() },
    ] {
        assert!(unchanged(&before, &after).is_err());
    }
}

#[test]
fn a_builder_at_rest_with_its_secret_is_no_orphan() {
    let pod = json!({
        "metadata": { "name": "builder-0", "uid": "u1", "annotations": { "fabrique/builds": "1" } },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    let secret = json!({ "metadata": { "name": "builder-0-tls", "ownerReferences": [{ "uid": "u1" }] } });
    let (pods, secrets) = ([pod.clone()], [secret.clone()]);
    assert_eq!(no_orphans(&pods, &secrets), Ok(()));
    assert!(no_orphans(&[], &secrets).is_err());
    assert!(no_orphans(&pods, &[but(secret, "/metadata/ownerReferences", &json!([]))]).is_err());
    for annotation in ["fabrique/claim", "fabrique/doubt"] {
        let odd = but(pod.clone(), "/metadata/annotations", &json!({ annotation: "" }));
        assert!(no_orphans(&[odd], &secrets).is_err(), "{annotation}");
    }
    let ended = but(pod, "/status/conditions/0/status", &json!("False"));
    assert!(no_orphans(&[ended], &secrets).is_err());
}

#[test]
fn a_reason_is_told_by_the_right_attempt_in_its_own_words() {
    let build = |revision: &str, kind: &str, message: &str| json!({ "revision": revision, "phase": { "phase": "failed", "kind": kind, "message": message } });
    let told = |build: Value| reason_told(&[build], "r1", &["was evicted"]);
    assert_eq!(told(build("r1", "environment", "builder-0 was evicted")), Ok(()));
    assert!(told(build("r2", "environment", "builder-0 was evicted")).is_err());
    assert!(told(build("r1", "source", "builder-0 was evicted")).is_err());
    assert!(told(build("r1", "environment", "it broke")).is_err());
}

#[test]
fn a_webhook_is_there_once_and_sound() {
    let hook = json!({
        "active": true, "events": ["push"], "config": { "url": "http://a/", "content_type": "json" },
    });
    assert_eq!(hooked_once(&json!([hook.clone()]), "http://a/"), Ok(()));
    assert!(hooked_once(&json!([hook.clone(), hook.clone()]), "http://a/").is_err());
    assert!(hooked_once(&json!([]), "http://a/").is_err());
    assert!(hooked_once(&json!([but(hook, "/active", &json!(false))]), "http://a/").is_err());
}

#[test]
fn only_pushes_to_this_repository_are_counted() {
    let log = "{\"msg\":\"Received push event repo: http://gitea/cluster/apps, revision: main, touchedHead: true\"}\n\
               {\"msg\":\"Received push event repo: http://gitea/other/apps, revision: main, touchedHead: true\"}\n\
               {\"msg\":\"Refreshing http://gitea/cluster/apps, \"}\n";
    assert_eq!(pushes_heard(log, "cluster/apps"), 1);
}
