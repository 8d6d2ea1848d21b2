//! Webhooks: their secret, their delay, and what no forge would send.

use fabrique_bed::webhook::push;
use fabrique_bed::{GitRepo, Queues, wait_until};
use fabrique_stage::{AppOptions, Fabrique, SampleApp, Stage, StageBuilder};
use serde_json::Value;

use crate::LONG;
use crate::scene::{Scene, person_rewrites, running};

/// How many deliveries the receiver refused for their signature.
fn refused(fabrique: &Fabrique) -> usize {
    fabrique.logged(&["outcome=\"bad_signature\""])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_rotated_without_losing_a_push_and_the_old_one_is_refused_afterwards() {
    const NEW: &str = "n3w-s3cret";
    let (stage, fabrique) = running(Stage::builder()).await;
    let old = stage.hook_secret();
    let app = SampleApp::create(&stage, AppOptions { hook: false, ..AppOptions::named("citation") });
    let app = app.await.unwrap();
    stage.command(&["hooks", "ensure"]).await.unwrap();
    let deployed = async |message: &str| {
        let revision = app.push(message).await.unwrap();
        stage.committed_once(&app, &revision).await.unwrap();
    };
    let restart = async || {
        fabrique.peer.stop().await.unwrap();
        fabrique.peer.start_again().await.unwrap();
    };
    // Whether a delivery with each secret is heard. It is nobody's, but whoever makes the receiver read the
    // registrations may be told of what else changed: 200 or 202.
    let heard = async || {
        let mut heard = Vec::new();
        for secret in [old, NEW] {
            let body = push("atlas/nobody", "main", &"1".repeat(40), &"2".repeat(40)).to_string();
            let (status, answer) = stage.deliver(secret, body.into_bytes()).await.unwrap();
            assert!([200, 202, 401].contains(&status), "{status}: {answer}");
            heard.push(status != 401);
        }
        heard
    };
    deployed("signed with the old one").await;
    assert_eq!(heard().await, [true, false]);

    stage.rotate_hook_secret(&fabrique, old, Some(NEW)).unwrap();
    restart().await;
    deployed("still signed with the old one").await;
    assert_eq!(heard().await, [true, true], "both count from now on");
    let report = stage.command(&["hooks", "ensure"]).await.unwrap();
    assert!(report.contains("its secret may have been another"), "{report}");
    deployed("signed with the new one").await;

    stage.rotate_hook_secret(&fabrique, NEW, None).unwrap();
    restart().await;
    deployed("signed with the only one").await;
    let report = stage.command(&["hooks", "ensure"]).await.unwrap();
    assert!(!report.contains("repaired"), "there is nothing to be repaired: {report}");
    let before = refused(&fabrique);
    assert_eq!(heard().await, [false, true]);
    assert_eq!(refused(&fabrique), before + 1);
    // A webhook that was left with the old secret.
    stage.hook("atlas", "citation").await.unwrap();
    deployed("signed with both").await;
    fabrique.logs(before + 2, &["outcome=\"bad_signature\""]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_that_no_forge_sends_are_refused_and_the_next_push_is_built() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, secret) = (&scene.stage, scene.stage.hook_secret());
    let hostile = push("atlas/citation", "main", &scene.first, "--upload-pack=touch /tmp/x").to_string();
    let traversing = push("../../etc/passwd", "main", &scene.first, &scene.first).to_string();
    let large = format!("{{\"ref\": \"{}\"}}", "x".repeat(5 << 20));
    for (status, body) in [
        (413, large.into_bytes()),
        (400, vec![0xff; 4096]),
        (400, b"{\"ref\":".to_vec()),
        (400, hostile.into_bytes()),
        (400, traversing.into_bytes()),
    ] {
        let (answered, answer) = stage.deliver(secret, body).await.unwrap();
        assert_eq!(answered, status, "{answer}");
    }
    let second = scene.app.push("second").await.unwrap();
    stage.committed_once(&scene.app, &second).await.unwrap();
    assert_eq!(stage.builds("citation").await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_receivers_one_hears_of_a_registration_and_a_push_to_the_other_misses_no_app() {
    let stage = crate::stage().await;
    let citation = AppOptions { hook: false, ..AppOptions::named("citation") };
    let citation = SampleApp::create(&stage, citation).await.unwrap();
    let head = citation.push("first").await.unwrap();
    let _told = stage.receiver().await.unwrap();
    let (_other, other) =
        stage.another_receiver(&[("FABRIQUE_RECEIVER__LIMITS__RELOAD_AGE", "1s")]).await.unwrap();
    let told = async || {
        let (status, answer) = stage.deliver_push("cluster/apps", &"0".repeat(40), &head).await.unwrap();
        assert_eq!(status, 202, "{answer}");
    };
    let woken_after = async |app: &str, wake: u64| {
        let woken = async || stage.wanted(app).await.ok().filter(|newer| *newer > wake).map(drop);
        wait_until(&format!("{app} to be woken"), LONG, woken).await.unwrap();
    };

    let clone = GitRepo::clone(&stage.bed.gitea().clone_url_with_token("atlas", "citation")).await.unwrap();
    let ledger = AppOptions { repo: "citation".to_owned(), ..AppOptions::named("ledger") };
    SampleApp::over(&stage, ledger, clone).register(&stage).await.unwrap();
    told().await;
    let wake = stage.wanted("ledger").await.unwrap();
    let (status, answer) = stage.deliver_push_to(&other, "atlas/citation", "main", &head).await.unwrap();
    assert_eq!((status, answer.contains("citation"), answer.contains("ledger")), (202, true, false));
    woken_after("ledger", wake).await;

    let follow = |text: String| text.replace("branch: main", "branch: next");
    person_rewrites(&stage, "apps/citation/app.yaml", follow).await;
    told().await;
    let wake = stage.wanted("citation").await.unwrap();
    let (status, answer) = stage.deliver_push_to(&other, "atlas/citation", "next", &head).await.unwrap();
    assert_eq!(status, 200, "{answer}");
    woken_after("citation", wake).await;
}

/// What the doctor says of fabrique's own pushes, once it judges them to be of this level. Each of Gitea's own queues
/// is asked again after anything up to two seconds and a busy machine makes fast ones slow, so that one push shows
/// little; the doctor goes by half of them.
async fn push_delay(builder: StageBuilder, level: &str) -> Value {
    const MOST: usize = 8;
    let scene = Box::pin(Scene::open_on(builder, AppOptions::named("citation"))).await;
    scene.stage.command(&["hooks", "ensure"]).await.unwrap();
    let doctor = async || -> Option<Value> {
        let (_, report, _) = scene.stage.try_command(&["doctor", "-o", "json"]).await.ok()?;
        let report: Value = serde_json::from_str(&report).ok()?;
        report["checks"].as_array()?.iter().find(|check| check["name"] == "push delay").cloned()
    };
    let mut said = Value::Null;
    for number in 0..MOST {
        let next = scene.app.push(&format!("push {number}")).await.unwrap();
        scene.stage.committed_once(&scene.app, &next).await.unwrap();
        said = wait_until("fabrique's push to come back", LONG, || async {
            let came_back = |what: &str| what.contains("came back");
            doctor().await.filter(|check| check["what"].as_str().is_some_and(came_back) && *check != said)
        })
        .await
        .unwrap();
        if said["level"] == level {
            break;
        }
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_sees_that_pushes_come_back_at_once_through_fast_queues() {
    let check = push_delay(Stage::builder(), "ok").await;
    assert_eq!(check["level"], "ok", "{check}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_sees_what_gitea_s_own_queues_cost_a_push() {
    let check = push_delay(Stage::builder().queues(Queues::Default), "warn").await;
    assert_eq!(check["level"], "warn", "{check}");
    assert!(check["remedy"].as_str().unwrap().contains("[queue.push_update] TYPE = channel"), "{check}");
}
