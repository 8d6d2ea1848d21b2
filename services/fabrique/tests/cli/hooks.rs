//! Webhook #2: created, repaired, left alone.

use fabrique_stage::{AppOptions, SampleApp, Stage};
use serde_json::{Value, json};

use crate::support::FABRIQUE;

/// The webhooks of a repository, as Gitea tells them.
async fn hooks(stage: &Stage, repo: &str) -> Vec<Value> {
    let path = format!("/repos/{repo}/hooks");
    stage.bed.gitea().api("GET", &path, None).await.unwrap().as_array().unwrap().clone()
}

/// Runs `hooks ensure` and returns its exit code, and what came of each repository.
async fn ensure(stage: &Stage, more: &[&str]) -> (i32, Vec<(String, String)>) {
    let args = [&["hooks", "ensure", "-o", "json"], more].concat();
    let (code, out, err) = stage.try_command(&args).await.unwrap();
    let result: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let repositories = result["repositories"].as_array().unwrap();
    let text = |hook: &Value, field: &str| hook[field].as_str().unwrap().to_owned();
    (code, repositories.iter().map(|hook| (text(hook, "repo"), text(hook, "result"))).collect())
}

fn both(result: &str) -> Vec<(String, String)> {
    ["atlas/citation", "cluster/apps"].map(|repo| (repo.to_owned(), result.to_owned())).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_created_repaired_and_left_alone_and_a_dry_run_writes_nothing() {
    let stage = Box::pin(Stage::builder().start(FABRIQUE)).await.unwrap();
    let unhooked = AppOptions { hook: false, ..AppOptions::named("citation") };
    SampleApp::create(&stage, unhooked).await.unwrap();

    assert_eq!(ensure(&stage, &["--dry-run"]).await, (1, both("created")), "a dry run that would write");
    assert!(
        hooks(&stage, "atlas/citation").await.is_empty() && hooks(&stage, "cluster/apps").await.is_empty()
    );

    assert_eq!(ensure(&stage, &[]).await, (0, both("created")));
    let made = hooks(&stage, "atlas/citation").await;
    assert_eq!((made.len(), &made[0]["config"]["url"]), (1, &json!(stage.hook_url())), "{made:?}");
    assert_eq!(ensure(&stage, &[]).await, (0, both("present")), "idempotent");
    assert_eq!(ensure(&stage, &["--dry-run"]).await, (0, both("present")));
    assert_eq!(hooks(&stage, "atlas/citation").await, made);

    let path = format!("/repos/atlas/citation/hooks/{}", made[0]["id"]);
    stage.bed.gitea().api("PATCH", &path, Some(json!({ "active": false }))).await.unwrap();
    let (code, out, _) = stage.try_command(&["hooks", "ensure", "--dry-run"]).await.unwrap();
    let line = out.lines().find(|line| line.starts_with("atlas/citation")).unwrap();
    assert!(code == 1 && line.contains("would be repaired"), "{code} {out}");
    let (code, results) = ensure(&stage, &[]).await;
    assert_eq!((code, results[0].1.as_str(), results[1].1.as_str()), (0, "repaired", "present"));
    let repaired = hooks(&stage, "atlas/citation").await;
    assert_eq!((repaired.len(), &repaired[0]["active"]), (1, &json!(true)), "{repaired:?}");
}

/// What the doctor says of webhooks, without trying them, under one more setting where there is one.
async fn doctor(stage: &Stage, set: &[&str]) -> Value {
    let args = [&["doctor", "-o", "json", "--set", "doctor.deliveries=0"], set].concat();
    let (_, out, err) = stage.try_command(&args).await.unwrap();
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == "webhooks").unwrap_or_else(|| panic!("{report:#}")).clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_and_hooks_ensure_agree_on_what_is_wrong_with_a_webhook() {
    let stage = Box::pin(Stage::builder().start(FABRIQUE)).await.unwrap();
    let unhooked = AppOptions { hook: false, ..AppOptions::named("citation") };
    SampleApp::create(&stage, unhooked).await.unwrap();
    assert_eq!(ensure(&stage, &[]).await, (0, both("created")));
    assert_eq!(doctor(&stage, &[]).await["what"], "present at 2 repositories");

    for (damage, told) in [
        (json!({ "config": { "content_type": "form" } }), "its content type was form"),
        (json!({ "events": ["create", "delete"] }), "its events were [create, delete]"),
        (json!({ "branch_filter": "release/*" }), "its branch filter was \"release/*\""),
    ] {
        let hook = hooks(&stage, "atlas/citation").await.remove(0);
        // What a PATCH leaves out is reset.
        let mut body = json!({ "active": true, "events": ["push"], "branch_filter": "main" });
        body.as_object_mut().unwrap().extend(damage.as_object().unwrap().clone());
        let path = format!("/repos/atlas/citation/hooks/{}", hook["id"]);
        stage.bed.gitea().api("PATCH", &path, Some(body)).await.unwrap();
        let check = doctor(&stage, &[]).await;
        let what = format!("would be repaired at atlas/citation ({told})");
        assert_eq!((check["level"].as_str(), check["what"].as_str()), (Some("fail"), Some(what.as_str())));
        assert!(check["remedy"].as_str().unwrap().contains("`fabrique hooks ensure`"), "{check}");
        let (code, results) = ensure(&stage, &[]).await;
        assert_eq!((code, results[0].1.as_str()), (0, "repaired"));
        assert_eq!(doctor(&stage, &[]).await["level"], "ok", "{told}");
    }

    // One that sends every push twice loses none.
    stage.hook("atlas", "citation").await.unwrap();
    let check = doctor(&stage, &[]).await;
    assert_eq!((check["level"].as_str(), ensure(&stage, &[]).await.0), (Some("warn"), 0), "{check}");

    // The same address, written in another way.
    let set = format!("receiver.public_url={}", stage.hook_url().replacen("http:", "HTTP:", 1));
    assert_eq!(ensure(&stage, &["--set", &set]).await, (0, both("present")));
    assert_eq!(doctor(&stage, &["--set", &set]).await["level"], "ok");
}
