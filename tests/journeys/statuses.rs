//! Commit statuses that could not be set, or were left behind.

use fabrique_bed::wait_until;
use fabrique_stage::{AppOptions, Gate, SampleApp};

use crate::LONG;
use crate::scene::{Scene, person_rewrites, watching_the_message};

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_could_not_be_set_is_set_after_the_next_sweep() {
    let scene = Scene::open(watching_the_message()).await;
    let (stage, app) = (&scene.stage, &scene.app);
    stage.allow_statuses("citation", false).await.unwrap();
    app.source.write("notes.md", "nothing that matters").await.unwrap();
    let head = app.source.commit("Take notes").await.unwrap();
    scene.settles_after(async { app.source.push().await.unwrap() }).await;
    scene.fabrique.logs(1, &["app=citation", "the commit status was not set"]).await.unwrap();
    assert_eq!(stage.status("citation", &head, "citation").await.unwrap(), None);

    stage.allow_statuses("citation", true).await.unwrap();
    let sweep = stage.json(&["reconcile", "--once"]).await.unwrap();
    assert!(sweep.to_string().contains("is not final yet"), "{sweep:#}");
    let status = stage.status_becomes(app, &head, "success").await.unwrap();
    assert_eq!(status.description, format!("no watched path changed since {}", &scene.first[..12]));
    // It was the last of it.
    let quiet = || async {
        let sweep = stage.json(&["reconcile", "--once"]).await.ok()?;
        sweep["woken"].as_array()?.is_empty().then_some(())
    };
    wait_until("a sweep that finds nothing to do", LONG, quiet).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_tells_which_environments_moved_and_which_did_not() {
    let unbound = AppOptions { overlay: false, bindings: false, ..AppOptions::named("citation") };
    let scene = Scene::open(unbound).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let others = "    - name: staging\n      image: { from: build }\n    - name: bench\n      image: { from: staging }\n";
    let registered = |text: String| format!("{text}{others}");
    scene.settles_after(person_rewrites(stage, "apps/citation/app.yaml", registered)).await;
    let moved = |environment: &str, revision: &str| {
        let (path, revision) = (format!("apps/citation/{environment}/composition.yaml"), revision.to_owned());
        async move { stage.apps_file(&path).await.unwrap().is_some_and(|text| text.contains(&revision)) }
    };
    assert!(moved("staging", &scene.first).await);
    let digest = stage.composition("citation").await.unwrap().unwrap().digest;
    let described = |text: &'static str, digest: String, revision: String| async move {
        let expected = format!("{text}: built {digest}");
        let told = || async {
            let status = stage.status("citation", &revision, "citation").await.ok()??;
            (status.state == "success" && status.description == expected).then_some(())
        };
        wait_until(&format!("the status {expected:?}"), LONG, told).await
    };
    let promoted = "deployed to prod, staging, not to bench (moved by people only)";
    described(promoted, digest, scene.first.clone()).await.unwrap();

    let held = |text: String| {
        text.replacen("hold: null", "hold: { by: Ada, reason: audit, since: null, until: null }", 1)
    };
    scene.settles_after(person_rewrites(stage, "apps/citation/prod/composition.yaml", held)).await;
    let second = scene.settles_after(app.push("second")).await.unwrap();
    let digest = stage.bed.registry().digest("citation", &second[..12]).await.unwrap().unwrap();
    let partly = "deployed to staging, not to prod (held by Ada: audit), bench (moved by people only)";
    described(partly, digest.clone(), second.clone()).await.unwrap();
    assert!(moved("staging", &second).await && !moved("prod", &second).await);

    stage.command(&["release", "citation"]).await.unwrap();
    described(promoted, digest, second.clone()).await.unwrap();
    assert!(moved("prod", &second).await && !moved("bench", &second).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_left_pending_where_the_app_is_built_from_no_more_is_closed_there() {
    let stage = crate::stage().await;
    let worker = stage.worker().await.unwrap();
    let receiver = stage.receiver().await.unwrap();
    stage.hook("cluster", "apps").await.unwrap();
    let gate = Gate::new();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let left = app.push_steps(&gate.steps()).await.unwrap();
    gate.reached().await.unwrap();
    stage.status_becomes(&app, &left, "pending").await.unwrap();
    worker.peer.kill9().await.unwrap();

    let source = stage.create_source("atlas", "moved", false).await.unwrap();
    let moved = SampleApp::over(
        &stage,
        AppOptions { repo: "moved".to_owned(), ..AppOptions::named("citation") },
        source,
    );
    moved.write_source("moved").await.unwrap();
    let next = moved.push("from its new home").await.unwrap();
    person_rewrites(&stage, "apps/citation/app.yaml", |text| text.replace("atlas/citation", "atlas/moved"))
        .await;
    let _second = stage.worker().await.unwrap();
    stage.committed_once(&moved, &next).await.unwrap();
    let status = stage.status_becomes(&app, &left, "error").await.unwrap();
    assert_eq!(status.description, "not built: citation is built from atlas/moved now");
    gate.open();
    drop(receiver);
}
