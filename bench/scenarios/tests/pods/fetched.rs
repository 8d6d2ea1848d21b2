//! What a build in a pod asked its way out for, as people are told it.

use std::process::Stdio;
use std::time::Duration;

use fabrique_scenarios::until;
use serde_json::{Value, json};

use crate::ground::Ground;
use crate::scene::{APP, Scene};

/// Of the world's address that stands for a listed host.
const PORT: u16 = 8010;

#[tokio::test(flavor = "multi_thread")]
async fn builds_egress_tells_what_a_step_asked_for_and_what_it_was_answered() {
    let list = json!({ "version": 1, "hosts": [{
        "host": "permitted.example", "port": PORT, "purpose": "packages", "cidrs": ["198.19.255.10/32"],
    }] });
    let Some(mut ground) = Ground::with_list(serde_json::from_value(list).unwrap()).await else { return };
    // Elsewhere the way out is not BuildKit's own, and what a step asked for is the proxy's to tell.
    ground.settings["isolation"] = "userns".into();
    let empty = tempfile::tempdir().unwrap();
    let mut server = ground.cluster.outside_command().unwrap();
    server.args(["python3", "-m", "http.server", "--bind", "198.19.255.10", &PORT.to_string()]);
    server.current_dir(empty.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = server.spawn().unwrap();
    let answers = until("the world to answer", Duration::from_secs(30), async || {
        let mut probe = ground.cluster.outside_command()?;
        probe.args(["bash", "-c", &format!("exec 3<>/dev/tcp/198.19.255.10/{PORT}")]);
        anyhow::ensure!(probe.stderr(Stdio::null()).status().await?.success(), "it does not yet");
        Ok(())
    });
    answers.await.unwrap();

    let scene = Scene::set(ground).await;
    let [listed, unlisted] = ["permitted", "forbidden"].map(|name| format!("http://{name}.example:{PORT}/"));
    let ask = format!("RUN wget -q -O /dev/null {listed}; wget -q -O /dev/null {unlisted} || true");
    let revision = scene.push(&ask).await;
    scene.ends_in_one_commit(&revision, &scene.worker).await;

    let stage = &scene.ground.stage;
    let told = stage.json(&["builds", APP, "--egress"]).await.unwrap();
    let fetches = told["egress"]["fetches"].as_array().unwrap_or_else(|| panic!("{told:#}"));
    let fetch = |what: &str, location: &str| -> &Value {
        let found = fetches.iter().find(|fetch| fetch["what"] == what && fetch["location"] == location);
        found.unwrap_or_else(|| panic!("no {what} {location}: {told:#}"))
    };
    let had = fetch("request", &listed);
    assert_eq!((&had["answer"], &had["method"]), (&json!({ "status": 200 }), &json!("GET")), "{had:#}");
    assert!(had["step"].as_str().is_some_and(|step| step.contains("wget")), "{had:#}");
    assert_eq!(fetch("request", &unlisted)["answer"], "refused");
    let of = |what: &str| fetches.iter().find(|fetch| fetch["what"] == what);
    for (what, host) in [("source", stage.bed.gitea().base_url()), ("image", stage.bed.registry().host())] {
        let place = of(what).map(|fetch| &fetch["place"]);
        assert_eq!(place, Some(&json!(host.trim_start_matches("http://"))), "{told:#}");
    }

    let (code, table, remarks) = stage.try_command(&["builds", APP, "--egress"]).await.unwrap();
    assert_eq!(code, 0, "{table}{remarks}");
    for words in [listed.as_str(), &unlisted, "refused", "200"] {
        assert!(table.contains(words), "no {words}:\n{table}");
    }

    let kubeconfig = stage.settings.pods.as_ref().unwrap().kubeconfig.display().to_string();
    let env = [("KUBECONFIG", kubeconfig.as_str())];
    let (_, report, remarks) = stage.try_command_with(&env, &["doctor", "--output=json"]).await.unwrap();
    let report: Value = serde_json::from_str(&report).unwrap_or_else(|_| panic!("{report}{remarks}"));
    let checks = report["checks"].as_array().unwrap();
    let isolation = checks.iter().find(|check| check["name"] == "builders isolation");
    let what = isolation.and_then(|check| check["what"].as_str());
    assert!(what.is_some_and(|what| what.starts_with("userns: ")), "{report:#}");
}
