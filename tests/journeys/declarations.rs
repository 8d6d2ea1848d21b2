//! What an app declares decides whether it is changed, and to which revision.

use fabrique_bed::wait_until;
use fabrique_stage::{AppOptions, CONTRACT, MANIFEST, SampleApp, Stage};

use crate::LONG;
use crate::applications::tell;
use crate::scene::{Scene, person_rewrites, rewrite_in, running};

const DEPLOYMENT: &str = "deploy/overlays/prod/deployment.yaml";

/// Writes a contract, and has the registration of each app name a declaration.
pub(crate) async fn declare(stage: &Stage, apps: &[&str]) {
    let clone = stage.clone_apps().await.unwrap();
    clone.write("contract.yaml", CONTRACT).await.unwrap();
    for app in apps {
        rewrite_in(&clone, &format!("apps/{app}/app.yaml"), |text| {
            text.replace("branch: main }", &format!("branch: main, declaration: {MANIFEST} }}"))
        })
        .await;
    }
    clone.commit("Declare").await.unwrap();
    clone.push().await.unwrap();
}

/// Commits a declaration of contract version 3 with these lines besides, and does not push it.
async fn commit_manifest(app: &SampleApp, lines: &str) -> String {
    let name = &app.options.name;
    let manifest = format!("codeLocation: {name}\ncontractVersion: 3\n{lines}\n");
    app.source.write(MANIFEST, manifest).await.unwrap();
    app.source.commit(&format!("Declare {lines:?}")).await.unwrap()
}

pub(crate) async fn push_manifest(app: &SampleApp, lines: &str) -> String {
    let revision = commit_manifest(app, lines).await;
    app.source.push().await.unwrap();
    revision
}

/// The revisions that a build of the app was started for.
async fn built(stage: &Stage, app: &SampleApp) -> Vec<String> {
    let builds = stage.builds(&app.options.name).await.unwrap();
    builds.into_iter().map(|build| build.revision).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_that_is_not_ready_waits_and_goes_on_when_it_is() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    declare(stage, &["citation"]).await;

    let waiting = scene.settles_after(push_manifest(app, "ready: false")).await;
    let reason = stage.decided("citation", "ready: false").await.unwrap();
    assert!(reason.starts_with("waits: "), "{reason}");
    let status = stage.declaration_status(app, &waiting).await.unwrap();
    assert_eq!(status.state, "success", "nothing is wrong: {status:?}");
    assert!(status.description.contains("ready: false"), "{status:?}");
    let (_, why, _) = stage.try_command(&["why", "citation"]).await.unwrap();
    assert!(why.contains("ready: false"), "{why}");
    assert_eq!(scene.deployed_revision().await, scene.first, "nothing is taken back");
    assert_eq!(built(stage, app).await, std::slice::from_ref(&scene.first));

    let ready = push_manifest(app, "ready: true").await;
    stage.committed_once(app, &ready).await.unwrap();
    let status = stage.declaration_status(app, &ready).await.unwrap();
    assert_eq!((status.state.as_str(), status.description.as_str()), ("success", "ready"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_declared_wrongly_is_told_and_no_build_is_spent_on_it() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    declare(stage, &["citation"]).await;

    let broken = scene.settles_after(push_manifest(app, "rady: true\nready: true")).await;
    let status = stage.declaration_status(app, &broken).await.unwrap();
    assert_eq!(status.state, "failure", "{status:?}");
    let place = format!("atlas/citation:{MANIFEST}:3:1");
    assert!(
        status.description.contains(&place) && status.description.contains("did you mean ready"),
        "{status:?}"
    );
    stage.decided("citation", "did you mean ready").await.unwrap();

    // Right by itself, and written against a contract that this cluster does not have.
    let text = "codeLocation: citation\nready: true\ncontractVersion: 4\n";
    app.source.write(MANIFEST, text).await.unwrap();
    let newer = app.source.commit("Ask for a newer contract").await.unwrap();
    scene.settles_after(async { app.source.push().await.unwrap() }).await;
    let status = stage.declaration_status(app, &newer).await.unwrap();
    assert_eq!(status.state, "failure", "{status:?}");
    assert!(status.description.contains("the contract accepts 3"), "{status:?}");
    assert_eq!(stage.status("citation", &newer, "citation").await.unwrap(), None, "there was no build");
    assert_eq!(built(stage, app).await, std::slice::from_ref(&scene.first));

    // The contract follows, and the app goes on without another push of its own.
    person_rewrites(stage, "contract.yaml", |text| {
        text.replace("version: 3", "version: 4").replace("accepts: [3]", "accepts: [3, 4]")
    })
    .await;
    stage.committed_once(app, &newer).await.unwrap();

    // A link is not followed, whatever it leads to, and whoever asks is told the same.
    let link = app.source.path().join(MANIFEST);
    std::fs::rename(&link, app.source.path().join("elsewhere.yaml")).unwrap();
    std::os::unix::fs::symlink("elsewhere.yaml", &link).unwrap();
    let linked = app.source.commit("Link the declaration").await.unwrap();
    scene.settles_after(async { app.source.push().await.unwrap() }).await;
    let status = stage.declaration_status(app, &linked).await.unwrap();
    let words = format!("atlas/citation:{MANIFEST}: is a symlink or a submodule");
    assert_eq!(status.state, "failure", "{status:?}");
    assert!(status.description.contains(&words), "{status:?}");
    let (_, told, _) = stage.try_command(&["validate", "citation"]).await.unwrap();
    assert!(told.contains("is a symlink or a submodule"), "{told}");
    assert_eq!(scene.deployed_revision().await, newer);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_overlay_that_could_not_be_filled_is_told_before_a_build_is_spent_on_it() {
    let (stage, _fabrique) = running(Stage::builder()).await;
    let options = AppOptions { hook: false, bindings: false, ..AppOptions::named("citation") };
    let app = SampleApp::create(&stage, options).await.unwrap();
    declare(&stage, &["citation"]).await;
    let doubled = "          env: [{ name: DAGSTER_CURRENT_IMAGE, value: __CITATION_IMAGE__ }]\n";
    rewrite_in(&app.source, DEPLOYMENT, |text| text + doubled).await;
    let first = push_manifest(&app, "ready: true").await;
    tell(&stage, &app, &first).await;
    stage.decided("citation", "__CITATION_IMAGE__ is doubled").await.unwrap();
    stage.settled("citation", 0).await.unwrap();
    let status = stage.declaration_status(&app, &first).await.unwrap();
    assert_eq!(status.state, "failure", "{status:?}");
    assert!(status.description.contains("deploy/overlays/prod/patch-s3-envfrom.yaml:11:"), "{status:?}");
    assert_eq!(built(&stage, &app).await, Vec::<String>::new());
    assert!(stage.composition("citation").await.unwrap().is_none(), "nothing is written");

    rewrite_in(&app.source, DEPLOYMENT, |text| text.replace(doubled, "")).await;
    let well = app.source.commit("Name the image once").await.unwrap();
    app.source.push().await.unwrap();
    tell(&stage, &app, &well).await;
    stage.committed_once(&app, &well).await.unwrap();
    assert_eq!(stage.declaration_status(&app, &well).await.unwrap().state, "success");

    // Once there is a copy, an overlay waits alone: the image goes on.
    rewrite_in(&app.source, DEPLOYMENT, |text| text + doubled).await;
    let third = app.push("third").await.unwrap();
    tell(&stage, &app, &third).await;
    stage.committed_once(&app, &third).await.unwrap();
    stage.decided("citation", "__CITATION_IMAGE__ is doubled").await.unwrap();
    assert_eq!(built(&stage, &app).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_builds_the_ancestor_and_never_leads_back() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    declare(stage, &["citation"]).await;

    let commit = async |message: &str| {
        app.source.write("message", message).await.unwrap();
        rewrite_in(&app.source, DEPLOYMENT, |text| format!("{text}# {message}\n")).await;
        app.source.commit(message).await.unwrap()
    };
    let (second, third) = (commit("second").await, commit("third").await);
    let pinning = push_manifest(app, &format!("ready: true\nrevision: {}", &second[..9])).await;
    stage.committed_once(app, &second).await.unwrap();
    wait_until("the manifests of the pinned revision", LONG, || async {
        let infra = stage.composition("citation").await.ok()??.infra?;
        (infra == second).then_some(())
    })
    .await
    .unwrap();
    let status = stage.declaration_status(app, &pinning).await.unwrap();
    assert_eq!(status.description, format!("ready, and pins {}", &second[..12]));

    // Newer heads with the same pin change nothing.
    scene.settles_after(app.push("fourth")).await.unwrap();
    assert_eq!(scene.deployed_revision().await, second);

    let back = push_manifest(app, &format!("ready: true\nrevision: {}", scene.first)).await;
    let reason = stage.decided("citation", "roll back by hand").await.unwrap();
    assert!(reason.contains(&scene.first[..12]) && reason.contains(&second[..12]), "{reason}");
    assert_eq!(stage.declaration_status(app, &back).await.unwrap().state, "failure");
    let nowhere = push_manifest(app, "ready: true\nrevision: abcdef0123").await;
    stage.decided("citation", "revision abcdef0123 is no ancestor").await.unwrap();
    assert_eq!(stage.declaration_status(app, &nowhere).await.unwrap().state, "failure");
    assert_eq!(scene.deployed_revision().await, second);

    let unpinned = push_manifest(app, "ready: true").await;
    stage.committed_once(app, &unpinned).await.unwrap();
    let built = built(stage, app).await;
    assert_eq!(built, [scene.first.clone(), second, unpinned], "{third} was never wanted");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_waits_for_the_one_that_it_needs_and_is_woken_when_that_is_ready() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let needed = SampleApp::create(stage, AppOptions::named("mediawatch")).await.unwrap();
    let first = needed.push("first").await.unwrap();
    stage.deployed(&needed, &first).await.unwrap();
    stage.settled("mediawatch", 0).await.unwrap();
    declare(stage, &["citation", "mediawatch"]).await;
    let unready = push_manifest(&needed, "ready: false").await;
    stage.declaration_status(&needed, &unready).await.unwrap();

    let depends = "ready: true\ndependsOn: { codeLocations: [mediawatch] }";
    let waiting = scene.settles_after(push_manifest(app, depends)).await;
    let reason =
        stage.decided("citation", "mediawatch, which it depends on, says ready: false").await.unwrap();
    assert!(reason.starts_with("waits: "), "{reason}");
    let status = stage.declaration_status(app, &waiting).await.unwrap();
    assert!(status.description.contains("mediawatch"), "{status:?}");
    assert_eq!(scene.deployed_revision().await, scene.first);
    assert!(stage.composition("mediawatch").await.unwrap().is_some(), "nothing is deleted");
    assert_eq!(built(stage, app).await, std::slice::from_ref(&scene.first));

    // No push of its own, and no sweep in this hour.
    push_manifest(&needed, "ready: true").await;
    stage.committed_once(app, &waiting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn three_apps_that_need_each_other_in_a_circle_are_told_so_and_no_build_is_spent() {
    let scene = Scene::open(AppOptions::named("citation")).await;
    let stage = &scene.stage;
    let mut others = Vec::new();
    for name in ["mediawatch", "archive"] {
        let app = SampleApp::create(stage, AppOptions::named(name)).await.unwrap();
        let first = app.push("first").await.unwrap();
        stage.deployed(&app, &first).await.unwrap();
        stage.settled(name, 0).await.unwrap();
        others.push((app, first));
    }
    let [(mediawatch, second), (archive, third)] = &others[..] else { panic!("two others") };
    let circle = [
        (&scene.app, "mediawatch", &scene.first),
        (mediawatch, "archive", second),
        (archive, "citation", third),
    ];
    declare(stage, &["citation", "mediawatch", "archive"]).await;
    let lines = |ready, needed| format!("ready: {ready}\ndependsOn: {{ codeLocations: [{needed}] }}");
    for (app, needed, _) in circle {
        let unready = push_manifest(app, &lines(false, needed)).await;
        let status = stage.declaration_status(app, &unready).await.unwrap();
        assert_eq!(status.state, "success", "its own word comes first: {status:?}");
    }
    let mut spent = Vec::new();
    for (app, ..) in circle {
        spent.push(built(stage, app).await);
    }
    // Each sees the whole circle, also the one that it does not depend on itself.
    for (app, needed, _) in circle {
        let ready = push_manifest(app, &lines(true, needed)).await;
        let status = stage.declaration_status(app, &ready).await.unwrap();
        assert_eq!(status.state, "failure", "{status:?}");
        let around = "closes the circle archive → citation → mediawatch → archive";
        assert!(status.description.contains(around), "{status:?}");
        stage.decided(&app.options.name, around).await.unwrap();
    }
    for ((app, _, first), spent) in circle.into_iter().zip(spent) {
        assert_eq!(&stage.composition(&app.options.name).await.unwrap().unwrap().revision, first);
        assert_eq!(built(stage, app).await, spent);
    }
}
