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
fn an_application_shows_a_revision_only_once_it_is_synced_to_it() {
    let application = json!({ "status": { "sync": { "status": "Synced", "revision": "c1" } } });
    assert_eq!(synced_to(&application), Some("c1"));
    assert_eq!(synced_to(&but(application, "/status/sync/status", &json!("OutOfSync"))), None);
    assert_eq!(synced_to(&json!({})), None);
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
fn what_was_acknowledged_is_deployed_or_something_newer() {
    let pushes = [("r1", false), ("r2", true), ("r3", false)]
        .map(|(revision, acknowledged)| Push { revision: revision.to_owned(), acknowledged });
    for deployed in ["r2", "r3"] {
        assert_eq!(acknowledged_is_deployed(&pushes, Some(deployed)), Ok(()));
    }
    for deployed in [Some("r1"), Some("r4"), None] {
        assert!(acknowledged_is_deployed(&pushes, deployed).is_err(), "{deployed:?}");
    }
    assert_eq!(acknowledged_is_deployed(&pushes[..1], None), Ok(()));
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
    assert_eq!(no_orphans(&[], &[]), Ok(()));
    // Whoever sees no secret at all has not looked.
    assert!(no_orphans(&pods, &[]).is_err());
    let of_the_dead = but(secret.clone(), "/metadata/ownerReferences/0/uid", &json!("u0"));
    assert!(no_orphans(&pods, &[secret.clone(), of_the_dead]).is_err());
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
fn why_tells_of_the_failure_of_this_revision_alone() {
    let why = json!({ "reason": "attempt 2 at r1", "failure": {
        "kind": "environment", "message": "builder-0 was evicted: lost", "revision": "r1",
    } });
    let told = |why: Value| why_tells(&why, "r1", &["was evicted"]);
    assert_eq!(told(why.clone()), Ok(()));
    for (pointer, value) in [
        ("/failure/revision", json!("r2")),
        ("/failure/kind", json!("source")),
        ("/failure/message", json!("it broke")),
        ("/failure", Value::Null),
    ] {
        assert!(told(but(why.clone(), pointer, &value)).is_err(), "{pointer}");
    }
}

#[test]
fn a_status_tells_the_committer_while_it_is_pending() {
    let status = json!({
        "context": "fabrique/build/citation", "status": "pending",
        "description": "attempt 1 failed and is tried again: builder-0 was evicted: lost",
    });
    let told = |status: Value| {
        let deployed =
            json!({ "context": "fabrique/build/citation", "status": "success", "description": "x" });
        status_tells(&json!([deployed, status]), "citation", &["was evicted"])
    };
    assert_eq!(told(status.clone()), Ok(()));
    for (pointer, value) in [
        ("/context", "fabrique/build/other"),
        ("/status", "failure"),
        ("/description", "building: attempt 2"),
    ] {
        assert!(told(but(status.clone(), pointer, &json!(value))).is_err(), "{pointer}");
    }
    assert!(status_tells(&json!([]), "citation", &["was evicted"]).is_err());
}

#[test]
fn an_event_tells_how_an_attempt_of_this_push_ended() {
    let timeline = json!({ "revision": "r1", "rows": [
        { "stage": "build", "text": "building" },
        { "stage": "build", "text": "failed (environment): builder-0 was evicted: lost" },
    ] });
    let told = |timeline: Value| events_tell(&timeline, "r1", &["was evicted"]);
    assert_eq!(told(timeline.clone()), Ok(()));
    for (pointer, value) in [
        ("/revision", "r2"),
        ("/rows/1/stage", "decision"),
        ("/rows/1/text", "failed (source): builder-0 was evicted: lost"),
        ("/rows/1/text", "failed (environment): it broke"),
        ("/rows/1/text", "builder-0 was evicted"),
    ] {
        assert!(told(but(timeline.clone(), pointer, &json!(value))).is_err(), "{pointer}: {value}");
    }
}

#[test]
fn an_attempt_is_the_only_one_at_its_revision() {
    let of = |revisions: &[&str]| -> Vec<Value> {
        revisions.iter().map(|revision| json!({ "revision": revision })).collect()
    };
    assert_eq!(built_at_once(&of(&["r1", "r2"]), "r1"), Ok(()));
    assert!(built_at_once(&of(&["r1", "r1"]), "r1").is_err());
    assert!(built_at_once(&of(&["r2"]), "r1").is_err());
}

#[test]
fn every_hole_in_a_wall_is_seen() {
    let walls = Walls { sees_daemon: false, forged: "403", token: "aa".into() };
    let log = "sees bash\nkeys 0\nsearched\ntoken aa  -\nlooked\nforged 403\nknocked";
    assert_eq!(walls_hold(log, &walls), Ok(()));
    for hole in
        ["sees buildkitd", "finds /etc/fabrique", "found mine", "open a:1", "token bb  -", "forged 201"]
    {
        assert!(walls_hold(&format!("{log}\n{hole}"), &walls).is_err(), "{hole}");
    }
    for untried in log.lines() {
        assert!(walls_hold(&log.replace(untried, ""), &walls).is_err(), "{untried}");
    }
    assert!(walls_hold(&log.replace("keys 0", "keys 1"), &walls).is_err());
}

#[test]
fn one_door_more_or_less_is_seen() {
    let wanted = ["a:1".to_owned(), "b:2".to_owned()];
    let said = "open a:1\nopen b:2\nknocked";
    assert_eq!(opened(said, &wanted), Ok(()));
    assert_eq!(opened("knocked", &[]), Ok(()));
    assert!(opened("knocked", &wanted).is_err());
    assert!(opened(said, &wanted[..1]).is_err());
    assert!(opened("", &[]).is_err());
}

#[test]
fn only_the_same_pod_in_good_health_lives_on() {
    let pod = json!({ "metadata": { "uid": "a", "annotations": {} }, "status": { "phase": "Running" } });
    assert_eq!(lives_on(&pod, &pod), Ok(()));
    for (at, value) in [
        ("/metadata/uid", json!("b")),
        ("/metadata/annotations", json!({ "fabrique/doubt": "it said so" })),
        ("/status/phase", json!("Failed")),
    ] {
        assert!(lives_on(&pod, &but(pod.clone(), at, &value)).is_err(), "{at}");
    }
    let mut leaving = pod.clone();
    leaving["metadata"]["deletionTimestamp"] = json!("2026-11-30T12:00:00Z");
    assert!(lives_on(&pod, &leaving).is_err());
    assert!(lives_on(&json!({}), &json!({})).is_err());
}

#[test]
fn only_a_fault_of_the_source_is_the_sources() {
    let build = |phase: &str, kind: &str| json!({ "phase": { "phase": phase, "kind": kind } });
    assert_eq!(blamed_on_the_source(&build("failed", "source")), Ok(()));
    assert!(blamed_on_the_source(&build("failed", "infrastructure")).is_err());
    assert!(blamed_on_the_source(&build("committed", "source")).is_err());
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
