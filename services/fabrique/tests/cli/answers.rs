//! Every command on a fabrique that works.

use fabrique_bed::wait_until;
use fabrique_stage::Gate;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::support::{self, LONG, scene};

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_every_app_with_its_revision_and_a_word() {
    let scene = scene().await;
    let said = scene.say(&["status"]).await.ok();
    let line = said.line("citation");
    assert_eq!(line.matches(&scene.revision[..12]).count(), 2, "target and deployed: {line}");
    assert!(line.contains(" ok "), "{line}");
    assert!(said.line("later").contains(" idle "), "nothing to build: {}", said.out);
    assert!(said.line("broken").contains(" failed "), "{}", said.out);

    let json = scene.say(&["status", "-o", "json"]).await.ok().json();
    let apps = json["apps"].as_array().unwrap();
    let names: Vec<_> = apps.iter().map(|app| app["app"].as_str().unwrap()).collect();
    assert_eq!(names, ["broken", "citation", "later", "slow"]);
    assert_eq!((&apps[0]["needs_person"], &apps[0]["failure"]["kind"]), (&true.into(), &"source".into()));
    assert_eq!(apps[1]["target"], scene.revision.as_str());
    assert_eq!(apps[1]["environments"][0]["digest"], scene.digest.as_str());
    assert_eq!((&apps[1]["action"], &apps[1]["needs_person"]), (&"nothing".into(), &false.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn why_tells_the_decision_and_what_happens_next() {
    let scene = scene().await;
    let said = scene.say(&["why", "citation"]).await.ok();
    for fact in ["decision", "next", &scene.digest, &scene.revision[..12], " on daemon-", "in the registry"] {
        assert!(said.out.contains(fact), "{fact}:\n{}", said.out);
    }

    let json = scene.say(&["why", "citation", "-o", "json"]).await.ok().json();
    assert_eq!(json["app"], "citation");
    assert_eq!(json["record"]["record"]["digest"], scene.digest.as_str());
    assert_eq!(json["record"]["in_registry"], true);
    assert!(
        json["record"]["built_on"].as_str().is_some_and(|daemon| daemon.starts_with("daemon-")),
        "{json}"
    );
    assert_eq!(json["next"], "nothing to do");
}

#[tokio::test(flavor = "multi_thread")]
async fn builds_are_listed_and_their_logs_are_read_by_build_or_by_app() {
    let scene = scene().await;
    let json = scene.say(&["builds", "citation", "-o", "json"]).await.ok().json();
    let build = json[0]["build"].as_str().unwrap();
    assert_eq!(json[0]["revision"], scene.revision.as_str());
    assert_eq!(json[0]["phase"]["phase"], "committed");
    let line = scene.say(&["builds"]).await.ok().line(build);
    assert!(line.contains("committed") && line.contains(&scene.digest), "{line}");
    assert!(scene.say(&["builds", "later"]).await.ok().out.contains("nothing was built yet"));

    let by_build = scene.say(&["logs", build]).await.ok().out;
    assert!(by_build.contains("RUN echo built"), "{by_build}");
    assert_eq!(scene.say(&["logs", "citation"]).await.ok().out, by_build);
    let followed = scene.say(&["logs", "citation", "--follow"]).await.ok().out;
    assert_eq!(followed, by_build, "a build that has ended is not followed for ever");
    let lines = scene.say(&["logs", "citation", "-o", "json"]).await.ok().json_lines();
    let lines: Vec<_> = lines.iter().map(|line| line["line"].as_str().unwrap()).collect();
    assert_eq!(lines, by_build.lines().collect::<Vec<_>>());

    scene.say(&["logs", "later"]).await.refused(2, "has no build yet");
    let gone = format!("citation-{}", "0".repeat(26));
    scene.say(&["logs", &gone]).await.refused(2, "there is no build");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_build_is_the_answer_of_who_follows_it() {
    let scene = scene().await;
    let followed = scene.say(&["logs", "broken", "-f"]).await;
    assert_eq!((followed.code, followed.err.as_str()), (1, ""), "{followed:?}");
    let line = scene.say(&["builds", "broken"]).await.ok().out;
    assert!(line.contains("failed") && line.contains("source: "), "{line}");
    let timeline = scene.say(&["timeline", "broken"]).await;
    assert_eq!((timeline.code, timeline.err.as_str()), (1, ""), "{timeline:?}");
    assert!(timeline.out.lines().last().unwrap().starts_with("not committed broken "), "{timeline:?}");
    let why = scene.say(&["why", "broken"]).await.ok().out;
    assert!(why.contains("failure") && why.contains("push a fix"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_build_is_followed_until_somebody_cancels_it_and_built_again_when_it_is_retried() {
    let scene = scene().await;
    let gate = Gate::new();
    scene.slow.write_source("slow").await.unwrap();
    let steps = gate.steps().replacen("RUN ", "RUN echo begun && ", 1);
    let revision = scene.slow.push_steps(&steps).await.unwrap();
    let begun = wait_until("the build to begin", LONG, || async {
        let builds = scene.say(&["builds", "slow", "-o", "json"]).await.json();
        (builds[0]["phase"]["phase"] == "building").then_some(())
    });
    begun.await.unwrap();
    let mut follower = scene.spawn(&["logs", "slow", "-f"]);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let live = async { while !lines.next_line().await.unwrap().unwrap().ends_with("begun") {} };
    tokio::time::timeout(LONG, live).await.unwrap();
    let line = scene.say(&["status"]).await.ok().line("slow");
    assert!(line.contains(" building "), "{line}");
    let why = scene.say(&["why", "slow"]).await.ok();
    let building = why.line("building");
    assert!(building.contains(" on daemon-") && building.contains("started"), "{why:?}");

    let cancelled = scene.say(&["cancel", "slow"]).await.ok();
    assert!(cancelled.out.starts_with("slow: "), "{cancelled:?}");
    let ended = tokio::time::timeout(LONG, follower.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(
        (ended.status.code(), ended.stderr.as_slice()),
        (Some(1), &b""[..]),
        "its failure is the answer"
    );

    // It stays so until a person asks for it again.
    scene.stage.settled("slow", 0).await.unwrap();
    let by = format!("cancelled by {}", scene.caller);
    let status = scene.stage.status_becomes(&scene.slow, &revision, "error").await.unwrap();
    assert!(status.description.contains(&by), "{status:?}");
    let mut built = scene.stage.builds("slow").await.unwrap();
    built.retain(|build| build.revision == revision);
    assert!(matches!(&built[..], [build] if build.message == by), "{built:?}");
    scene.say(&["retry", "slow"]).await.ok();
    gate.open_until(scene.stage.committed_once(&scene.slow, &revision)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeline_goes_from_the_delivery_to_the_commit() {
    let scene = scene().await;
    let said = scene.say(&["timeline", "citation"]).await.ok();
    let at = |word: &str| said.out.find(word).unwrap_or_else(|| panic!("no {word}:\n{}", said.out));
    assert!(at(" delivery ") < at(" decision ") && at(" decision ") < at(" commit "), "{}", said.out);
    let last = said.out.lines().last().unwrap();
    let wanted = format!("committed citation {} {} in ", &scene.revision[..12], scene.digest);
    assert!(last.starts_with(&wanted), "{last}");

    let args = ["timeline", "citation", "--revision", &scene.revision, "--since", "1h", "-o", "json"];
    let json = scene.say(&args).await.ok().json();
    assert_eq!(json["end"]["end"], "committed");
    assert_eq!(json["end"]["digest"], scene.digest.as_str());
    let offsets: Vec<_> = json["rows"].as_array().unwrap().iter().map(|r| r["offset_ms"].as_i64()).collect();
    assert!(offsets.is_sorted(), "{json}");
    scene.say(&["timeline", "later"]).await.refused(2, "nothing of later was built yet");
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_tells_the_past_and_ends_quietly_on_ctrl_c() {
    let scene = scene().await;
    for format in ["table", "json"] {
        let mut tail = scene.spawn(&["tail", "citation", "--since", "1h", "-o", format]);
        let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines();
        let committed = async {
            loop {
                let line = lines.next_line().await.unwrap().unwrap();
                let commit = match format {
                    "json" => serde_json::from_str::<Value>(&line).unwrap()["kind"] == "commit",
                    _ => line.contains(" commit "),
                };
                if commit && line.contains(&scene.digest) {
                    return;
                }
            }
        };
        tokio::time::timeout(LONG, committed).await.unwrap();
        support::signal(tail.id().unwrap(), "INT").await;
        let ended = tokio::time::timeout(LONG, tail.wait_with_output()).await.unwrap().unwrap();
        assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), &b""[..]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_say_what_came_of_them_and_are_recorded_with_their_caller() {
    let scene = scene().await;
    let cancelled = scene.say(&["cancel", "later"]).await;
    assert_eq!(cancelled.code, 1, "nothing runs: {cancelled:?}");
    assert!(cancelled.out.starts_with("later: refused: "), "{cancelled:?}");
    for args in [&["retry"][..], &["rebuild", "--no-cache"], &["release"], &["repair"], &["dlq", "replay"]] {
        let json = scene.say(&[args, &["later", "-o", "json"]].concat()).await;
        let (code, json) = (json.code, json.json());
        let done = json["done"].as_bool().unwrap();
        assert_eq!((&json["app"], code), (&"later".into(), i32::from(!done)), "{args:?}: {json}");
        assert!(!json["message"].as_str().unwrap().is_empty(), "{args:?}: {json}");
    }
    let caller = format!("retry by {}", scene.caller);
    let recorded = scene.tail_until(&["tail", "later", "--since", "1h"], &caller).await;
    assert!(recorded.contains(" operator "), "{recorded}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_stuck_and_a_sweep_wakes_nobody() {
    let scene = scene().await;
    assert_eq!(scene.say(&["dlq"]).await.ok().out, "no app is stuck\n");
    assert_eq!(scene.say(&["dlq", "list", "-o", "json"]).await.ok().json(), Value::Array(vec![]));
    assert_eq!(
        scene.say(&["dlq", "show", "citation"]).await.ok().out,
        "citation is not stuck; `fabrique why citation` says how it stands\n"
    );

    let swept = scene.say(&["reconcile", "--once", "-o", "json"]).await.ok().json();
    assert_eq!((&swept["looked"], &swept["failed"]), (&4.into(), &Value::Array(vec![])), "{swept}");
    let woken = |app: &Value| app["app"] == "citation";
    assert!(!swept["woken"].as_array().unwrap().iter().any(woken), "{swept}");
    assert!(scene.say(&["reconcile", "--once"]).await.ok().out.contains("looked at 4 apps"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_app_is_answered_with_the_name_that_was_meant() {
    let scene = scene().await;
    for args in [
        &["why"][..],
        &["builds"],
        &["logs"],
        &["tail"],
        &["timeline"],
        &["retry"],
        &["rebuild"],
        &["cancel"],
        &["release"],
        &["repair"],
        &["dlq", "show"],
        &["dlq", "replay"],
    ] {
        let said = scene.say(&[args, &["citatoin"]].concat()).await;
        said.refused(2, "fabrique: citatoin is not a registered app; did you mean citation?");
    }
    scene.say(&["why", "../etc"]).await.refused_by_clap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_stage_has_a_happy_doctor_who_measured_the_webhook() {
    let scene = scene().await;
    let said = scene.say(&["doctor"]).await.ok();
    for check in
        ["gitea", "cluster/apps", "token read", "nats", "registry ", "buildkitd daemon-0", "webhooks"]
    {
        assert!(said.out.contains(check), "{check}:\n{}", said.out);
    }
    let json = scene.say(&["doctor", "-o", "json"]).await.ok().json();
    let checks = json["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["level"] != "fail"), "{json}");
    let delays: Vec<_> = checks
        .iter()
        .filter(|check| check["name"].as_str().unwrap().starts_with("webhook delay"))
        .map(|check| check["what"].as_str().unwrap())
        .collect();
    assert!(!delays.is_empty() && delays.iter().any(|what| what.contains("takes 0.")), "{json}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registrations_are_valid() {
    let scene = scene().await;
    let said = scene.say(&["validate"]).await.ok();
    assert!(
        said.out.starts_with("4 apps registered at ") && said.out.ends_with(", 0 findings\n"),
        "{said:?}"
    );
    let json = scene.say(&["validate", "-o", "json"]).await.ok().json();
    assert_eq!((&json["apps"], &json["findings"]), (&4.into(), &Value::Array(vec![])), "{json}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_goes_away_is_no_error() {
    let scene = scene().await;
    for args in [&["status"][..], &["builds", "-o", "json"], &["completion", "bash"], &["--help"]] {
        let mut child = scene.spawn(args);
        drop(child.stdout.take());
        let ended = tokio::time::timeout(LONG, child.wait_with_output()).await.unwrap().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!((ended.status.code(), stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_output_and_no_process_shows_a_secret_and_no_pipe_gets_a_colour() {
    let scene = scene().await;
    let secrets = scene.secrets();
    assert!(secrets.len() >= 11, "tokens, passwords and the webhook's secret: {}", secrets.len());
    let tail = scene.spawn(&["tail", "--since", "1h"]);
    for args in [
        &["status"][..],
        &["why", "citation"],
        &["builds"],
        &["logs", "citation"],
        &["timeline", "citation"],
        &["retry", "later"],
        &["dlq"],
        &["hooks", "ensure"],
        &["hooks", "ensure", "--dry-run"],
        &["validate"],
        &["doctor"],
        &["init"],
        &["reconcile", "--once"],
        &["why", "nobody"],
        &["--help"],
    ] {
        for format in ["table", "json"] {
            let said = scene.say(&[args, &["-o", format]].concat()).await;
            let all = format!("{}{}", said.out, said.err);
            let shown: Vec<_> = secrets.iter().filter(|(_, secret)| all.contains(secret.as_str())).collect();
            assert!(
                shown.is_empty(),
                "{args:?} shows {:?}",
                shown.iter().map(|(name, _)| name).collect::<Vec<_>>()
            );
            assert!(!all.contains('\u{1b}'), "{args:?} colours a pipe: {all:?}");
        }
    }
    let processes = support::processes();
    assert!(processes.contains("tail"), "the listing sees this test's own processes: {processes}");
    let shown: Vec<_> = secrets.iter().filter(|(_, secret)| processes.contains(secret.as_str())).collect();
    assert!(shown.is_empty(), "visible in ps: {:?}", shown.iter().map(|(name, _)| name).collect::<Vec<_>>());
    let servers = scene.server_logs();
    assert!(servers.contains("working"), "the log of fabrique itself: {servers}");
    assert!(!secrets.iter().any(|(_, secret)| servers.contains(secret.as_str())), "a secret is logged");
    drop(tail);
}
