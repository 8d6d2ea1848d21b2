//! What a person changes in `cluster/apps` while its webhooks are lost: a sweep finds it, and the worker follows it by one
//! commit, as if it had been told.

use fabrique_stage::Stage;
use serde_json::Value;

use crate::applications::{COMPOSITION, DeployedTwice};
use crate::scene::person_rewrites;

/// One sweep; the apps that it woke, each with the reason, once they have settled.
pub(crate) async fn sweep(stage: &Stage) -> Vec<(String, String)> {
    let since = stage.wanted("citation").await.unwrap();
    // Its exit code tells of what a person should look at, too.
    let (_, swept, told) = stage.try_command(&["reconcile", "--once", "-o", "json"]).await.unwrap();
    let swept: Value = serde_json::from_str(&swept).unwrap_or_else(|error| panic!("{error}: {swept}{told}"));
    assert_eq!(swept["failed"], serde_json::json!([]), "{swept}");
    let text = |woken: &Value, key: &str| woken[key].as_str().unwrap().to_owned();
    let woken = swept["woken"].as_array().unwrap().iter();
    let woken: Vec<_> = woken.map(|woken| (text(woken, "app"), text(woken, "reason"))).collect();
    if !woken.is_empty() {
        stage.settled("citation", since).await.unwrap();
    }
    woken
}

/// What the newest commit of `cluster/apps` says, and the files that it changed.
pub(crate) async fn newest(stage: &Stage) -> (String, Vec<String>) {
    let apps = stage.clone_apps().await.unwrap();
    let said = apps.git(&["log", "-1", "--format=%an %s"]).await.unwrap();
    let files = apps.git(&["show", "--name-only", "--format=", "HEAD"]).await.unwrap();
    (said.trim().to_owned(), files.lines().map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_nobody_was_told_of_is_found_by_a_sweep_and_followed_by_one_commit() {
    let twice = DeployedTwice::unheard().await;
    let (stage, [first, second], [old, new]) = (&twice.stage, &twice.revisions, &twice.digests);
    assert_eq!(sweep(stage).await, [], "nobody edited anything");

    person_rewrites(stage, COMPOSITION, |text| text.replace(new, old).replace(second, first)).await;
    let found = "its files in cluster/apps changed since a worker looked";
    assert_eq!(sweep(stage).await, [("citation".to_owned(), found.to_owned())]);
    let (said, files) = newest(stage).await;
    assert_eq!(said, "fabrique Follow the composition of citation in prod");
    assert!(files.iter().any(|file| file == "apps/citation/prod/kustomization.yaml"), "{files:?}");
    let application = twice.application().await;
    let pinned = format!("targetRevision: {first}");
    assert!(application.contains(&pinned) && application.contains(old), "{application}");
    assert_eq!(sweep(stage).await, [], "it is followed once");

    // A slip is told, and not at every sweep.
    let nobodys = format!("sha256:{}", "e".repeat(64));
    person_rewrites(stage, COMPOSITION, |text| text.replace(old, &nobodys)).await;
    assert_eq!(sweep(stage).await.len(), 1);
    stage.decided("citation", &nobodys).await.unwrap();
    assert_eq!(sweep(stage).await, [], "it waits for a person");
    person_rewrites(stage, COMPOSITION, |text| text.replace(&nobodys, old)).await;
    assert_eq!(sweep(stage).await.len(), 1);

    // What is rendered follows its registration.
    let place = "      image: { from: build }";
    person_rewrites(stage, "apps/citation/app.yaml", |text| {
        text.replace(place, &format!("      application: {{ namespace: dagster }}\n{place}"))
    })
    .await;
    assert_eq!(sweep(stage).await, [("citation".to_owned(), found.to_owned())]);
    let (said, files) = newest(stage).await;
    assert_eq!(said, "fabrique Bring what is rendered for citation in prod into line");
    assert_eq!(files, ["applications/citation-prod.yaml"]);
    let application = twice.application().await;
    assert!(application.contains("namespace: dagster\n  syncPolicy"), "{application}");
    assert!(application.contains(&pinned) && application.contains(old), "{application}");
    assert_eq!(sweep(stage).await, []);
}
