//! What commands say when something they need is not there.

use fabrique_bed::{Bed, NatsOptions, Peer};
use fabrique_stage::{AppOptions, SampleApp, Stage};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::support::{FABRIQUE, scene};

/// What the doctor objects to: names, findings and remedies of failed checks.
async fn failures(stage: &Stage) -> Vec<(String, String, String)> {
    failures_with(stage, &[]).await
}

/// The same with more environment.
async fn failures_with(stage: &Stage, env: &[(&str, &str)]) -> Vec<(String, String, String)> {
    let (code, out, err) = stage.try_command_with(env, &["doctor", "-o", "json"]).await.unwrap();
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let text = |check: &Value, field: &str| check[field].as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap();
    let failed = checks.iter().filter(|check| check["level"] == "fail");
    let failed: Vec<_> =
        failed.map(|check| (text(check, "name"), text(check, "what"), text(check, "remedy"))).collect();
    assert_eq!(code, i32::from(!failed.is_empty()), "{report:#}");
    failed
}

/// The doctor names a peer that was stopped, with a remedy, and still tells about the others.
async fn missed(stage: &Stage, peer: &Peer, name: &str) {
    peer.stop().await.unwrap();
    let failed = failures(stage).await;
    let check = failed.iter().find(|(check, _, _)| check.starts_with(name));
    let (_, what, remedy) = check.unwrap_or_else(|| panic!("{name} is not named: {failed:#?}"));
    assert!(!what.is_empty() && !remedy.is_empty(), "{failed:#?}");
    peer.start_again().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_every_peer_that_is_down_and_what_to_do() {
    let stage = Box::pin(Stage::builder().start(FABRIQUE)).await.unwrap();
    let _receiver = stage.receiver().await.unwrap();
    let unhooked = AppOptions { hook: false, ..AppOptions::named("citation") };
    SampleApp::create(&stage, unhooked).await.unwrap();
    let failed = failures(&stage).await;
    let (_, out, _) = stage.try_command(&["doctor"]).await.unwrap();
    assert!(out.contains("fail  ") && out.contains("→ ") && out.contains("ok    "), "{out}");
    let missing = failed.iter().find(|(name, _, _)| name == "webhooks").unwrap();
    assert!(missing.1.contains("atlas/citation") && missing.2.contains("hooks ensure"), "{failed:#?}");
    stage.command(&["hooks", "ensure"]).await.unwrap();

    missed(&stage, stage.bed.nats().peer(), "nats").await;
    missed(&stage, stage.bed.registry().peer(), "registry ").await;
    missed(&stage, stage.bed.builders()[0].peer(), "buildkitd daemon-0").await;
    missed(&stage, stage.bed.gitea().peer(), "token read").await;
    // NATS is back, and with it everything that only the bus was missing for.
    let failed = failures(&stage).await;
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_somebody_changed_keeps_a_worker_from_starting_and_stays_as_it_is() {
    const FINDING: &str = "FABRIQUE_WAKE: max_msgs_per_subject is 10, wanted 1";
    let stage = Box::pin(Stage::builder().start(FABRIQUE)).await.unwrap();
    stage.keep_wakes(10).await.unwrap();
    for role in ["worker", "all"] {
        let (code, out, err) = stage.try_command(&[role]).await.unwrap();
        assert_eq!(code, 1, "{out}{err}");
        assert!(err.contains(FINDING) && err.contains("nats stream edit FABRIQUE_WAKE"), "{out}{err}");
    }
    let failed = failures(&stage).await;
    assert!(failed.iter().any(|(_, what, _)| what.contains(FINDING)), "{failed:#?}");
    assert_eq!(stage.kept_wakes().await.unwrap(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_objects_to_a_bus_that_lets_anyone_do_anything() {
    let stage = &scene().await.stage;
    let open = NatsOptions { open: true, ..NatsOptions::default() };
    let bed = Bed::builder().nats_with(open).start().await.unwrap();
    let servers = format!("[{:?}]", bed.nats().address());
    let monitoring = bed.nats().monitor_url();
    let env = [("FABRIQUE_NATS__SERVERS", servers.as_str()), ("FABRIQUE_NATS__MONITORING", &monitoring)];
    let (code, out, err) = stage.try_command_with(&env, &["init"]).await.unwrap();
    assert_eq!(code, 0, "{out}{err}");
    let failed = failures_with(stage, &env).await;
    for (name, part) in [
        ("nats", "lets anyone in"),
        ("nats user receiver", "must not"),
        ("nats user worker", "must not"),
        ("nats user observer", "must not"),
    ] {
        let named = failed
            .iter()
            .any(|(check, what, remedy)| check == name && what.contains(part) && !remedy.is_empty());
        assert!(named, "{name}: {failed:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_address_is_taken_is_for_the_configuration_to_mend() {
    let stage = &scene().await.stage;
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = taken.local_addr().unwrap().to_string();
    let relayed = [("FABRIQUE_GITHUB__RELAY", relay.as_str())];
    let (code, out, err) = stage.try_command_with(&relayed, &["mirror", "ensure"]).await.unwrap();
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("github.relay: ") && err.contains(&relay), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_end_with_4_and_the_doctor_names_them() {
    let stage = Box::pin(Stage::builder().start(FABRIQUE)).await.unwrap();
    let unhooked = AppOptions { hook: false, ..AppOptions::named("citation") };
    SampleApp::create(&stage, unhooked).await.unwrap();
    let (code, out, err) = stage.try_command(&["retry", "citation"]).await.unwrap();
    assert_eq!((code, out.as_str()), (3, ""), "no worker runs: {err}");
    assert!(err.contains("no worker answered") && err.lines().count() == 1, "{err}");

    let folder = stage.config().parent().unwrap();
    std::fs::write(folder.join("wrong-token"), "0".repeat(40)).unwrap();
    let file = folder.join("wrong-token").display().to_string();
    let wrong = [("FABRIQUE_GITEA__HOOKS_TOKEN_FILE", file.as_str())];
    let sure = ["seed", "citation", "--yes", "--environment", "prod", "--confirm", "prod"];
    let (code, out, err) = stage.try_command_with(&wrong, &sure).await.unwrap();
    assert_eq!(code, 4, "{out}{err}");
    assert!(out.contains("`hooks` token") && out.ends_with("nothing was changed\n"), "{out}{err}");
    std::fs::write(folder.join("nats-operator"), "wrong").unwrap();
    std::fs::write(folder.join("status-token"), "0".repeat(40)).unwrap();
    let (code, out, err) = stage.try_command(&["status"]).await.unwrap();
    assert_eq!((code, out.as_str()), (4, ""), "{err}");
    assert!(err.contains("\"operator\" were refused") && err.lines().count() == 1, "{err}");
    let failed = failures(&stage).await;
    for (name, part) in [("nats", "refused"), ("token status", "")] {
        let named = failed
            .iter()
            .any(|(check, what, remedy)| check == name && what.contains(part) && !remedy.is_empty());
        assert!(named, "{name}: {failed:#?}");
    }
}
