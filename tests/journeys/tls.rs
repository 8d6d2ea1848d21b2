//! Build daemons that are reached with TLS.

use std::path::Path;

use fabrique_bed::MutualTls;
use fabrique_stage::{AppOptions, SampleApp, Stage};
use serde_json::Value;

use crate::LONG;

const CA_FILE: &str = "FABRIQUE_BUILDKIT__TLS__CA_FILE";
const CA_KEY: &str = "`buildkit.tls.ca_file`";
const DAEMONS: &str = "FABRIQUE_BUILDKIT__DAEMONS";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What the doctor says of the only daemon.
async fn examined(stage: &Stage, env: &[(&str, &str)]) -> (String, String, String) {
    let (_, out, err) = stage.try_command_with(env, &["doctor", "-o", "json"]).await.unwrap();
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"].as_str().unwrap().starts_with("buildkitd "));
    let field = |name: &str| check.unwrap()[name].as_str().unwrap().to_owned();
    (field("level"), field("what"), field("remedy"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_with_a_certificate_of_a_private_authority_is_examined_and_built_on() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = MutualTls::create(folder.path()).unwrap();
    let stage = crate::started(Stage::builder().tls(certificates.one_way())).await;
    let trusting = [(CA_FILE, text(&certificates.ca))];
    let fabrique = stage.all_with(&trusting).await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let revision = app.push("over TLS").await.unwrap();
    stage.committed_once(&app, &revision).await.unwrap();
    assert_eq!(fabrique.logged(&["phase=Building"]), 1);
    let (level, what, _) = examined(&stage, &trusting).await;
    assert_eq!(level, "ok", "{what}");

    let address = stage.bed.buildkit(0).address().replace("127.0.0.1", "localhost");
    let unnamed = format!("[{{name=\"here\",address=\"{address}\"}}]");
    let (level, what, remedy) = examined(&stage, &[trusting[0], (DAEMONS, &unnamed)]).await;
    assert_eq!(level, "fail", "{what}");
    assert!(what.contains("no TLS with here") && what.contains("not valid for name \"localhost\""), "{what}");
    assert!(remedy.contains("tls_name"), "{remedy}");
    let named = format!("[{{name=\"here\",address=\"{address}\",tls_name=\"127.0.0.1\"}}]");
    let (level, what, _) = examined(&stage, &[trusting[0], (DAEMONS, &named)]).await;
    assert_eq!(level, "ok", "{what}");

    let (level, what, remedy) = examined(&stage, &[]).await;
    assert_eq!(level, "fail", "{what}");
    assert!(remedy.contains("`buildkit.tls`"), "{what}: {remedy}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_of_an_authority_that_nobody_trusts_gets_no_build_and_the_app_waits_for_it() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let certificates = MutualTls::create(ours.path()).unwrap();
    let strangers = MutualTls::create(theirs.path()).unwrap();
    let stage = crate::started(Stage::builder().tls(certificates.one_way())).await;
    let misled = [(CA_FILE, text(&strangers.ca))];
    let fabrique = stage.all_with(&misled).await.unwrap();
    fabrique.logs(1, &["does not answer yet", "invalid peer certificate"]).await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let revision = app.push("to nobody that is known").await.unwrap();
    fabrique.logs(1, &["phase=Failed", "Infrastructure", "invalid peer certificate"]).await.unwrap();
    let why = fabrique_bed::wait_until("why to name the setting", LONG, || async {
        let (_, why, _) = stage.try_command(&["why", "citation"]).await.ok()?;
        why.contains(CA_KEY).then_some(why)
    });
    why.await.unwrap();
    assert_eq!(stage.stored_manifests("citation"), 0, "nothing was built");
    let (level, what, remedy) = examined(&stage, &misled).await;
    assert_eq!(level, "fail", "{what}");
    assert!(what.contains("no TLS with daemon-0") && remedy.contains(CA_KEY), "{what}: {remedy}");

    fabrique.peer.stop().await.unwrap();
    let _trusting = stage.all_with(&[(CA_FILE, text(&certificates.ca))]).await.unwrap();
    stage.committed_once(&app, &revision).await.unwrap();
}
