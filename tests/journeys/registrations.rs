//! Registrations that a person broke: bad input loses nothing that was good.

use fabrique_bed::wait_until;
use fabrique_stage::{AppOptions, Gate, SampleApp, Stage};
use serde_json::Value;

use crate::LONG;
use crate::declarations::{declare, push_manifest};
use crate::scene::{Scene, person_rewrites, watching_the_message};

const REGISTRATION: &str = "apps/citation/app.yaml";
/// What the slip is told as: where, what, and what to do.
const FINDING: &str = "apps/citation/app.yaml:5:3: spec has no field \"colour\"; remove it";

/// A person's slip in the registration; the commit.
async fn broken(stage: &Stage) -> String {
    person_rewrites(stage, REGISTRATION, |text| text.replace("spec:\n", "spec:\n  colour: blue\n")).await
}

async fn corrected(stage: &Stage) -> String {
    person_rewrites(stage, REGISTRATION, |text| text.replace("  colour: blue\n", "")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slip_in_a_registration_stops_no_build_and_once_corrected_its_image_is_deployed_without_another() {
    let stage = crate::stage().await;
    let fabrique = stage.all().await.unwrap();
    stage.hook("cluster", "apps").await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let gate = Gate::new();
    let revision = app.push_steps(&gate.steps()).await.unwrap();
    gate.reached().await.unwrap();
    stage.status_becomes(&app, &revision, "pending").await.unwrap();
    let builds = fabrique.logged(&["phase=Building"]);

    let slip = broken(&stage).await;
    stage.delivered("cluster", "apps", &slip).await.unwrap();
    gate.open();
    let status = stage.status_becomes(&app, &revision, "error").await.unwrap();
    let expected = format!("built, not deployed: the registration is wrong: {FINDING}");
    assert!(status.description.starts_with(&expected), "{status:?}");
    let build = stage.build_becomes("citation", &revision, "not-committed").await.unwrap();
    assert!(build.message.contains(FINDING), "{build:?}");
    stage.settled("citation", 0).await.unwrap();
    assert_eq!(stage.image_commits("citation").await.unwrap().len(), 0);
    // Whoever asks is told the same.
    let (code, _, why) = stage.try_command(&["why", "citation"]).await.unwrap();
    assert!(code == 1 && why.contains(FINDING), "{code} {why}");
    let (code, said, why) = stage.try_command(&["retry", "citation"]).await.unwrap();
    assert!(code == 1 && format!("{said}{why}").contains(FINDING), "{code} {said} {why}");

    corrected(&stage).await;
    stage.committed_once(&app, &revision).await.unwrap();
    assert_eq!(fabrique.logged(&["phase=Building"]), builds, "its image is recorded, and adopted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_is_cancelled_by_a_person_although_its_registration_is_wrong() {
    let stage = crate::stage().await;
    let _fabrique = stage.all().await.unwrap();
    stage.hook("cluster", "apps").await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let gate = Gate::new();
    let revision = app.push_steps(&gate.steps()).await.unwrap();
    gate.reached().await.unwrap();
    let slip = broken(&stage).await;
    stage.delivered("cluster", "apps", &slip).await.unwrap();

    stage.command(&["cancel", "citation"]).await.unwrap();
    let build = stage.build_becomes("citation", &revision, "failed").await.unwrap();
    assert!(build.message.contains("cancelled by"), "{build:?}");
    stage.settled("citation", 0).await.unwrap();
    let (code, said, why) = stage.try_command(&["cancel", "citation"]).await.unwrap();
    assert!(code == 1 && format!("{said}{why}").contains("no build is running"), "{code} {said} {why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slip_in_a_registration_stops_no_build_of_an_app_that_depends_on_it_which_goes_on_once_it_is_right()
{
    let scene = Scene::open(AppOptions::named("citation")).await;
    let (stage, app) = (&scene.stage, &scene.app);
    let needed = SampleApp::create(stage, AppOptions::named("mediawatch")).await.unwrap();
    declare(stage, &["citation", "mediawatch"]).await;
    let ready = push_manifest(&needed, "ready: true").await;
    stage.committed_once(&needed, &ready).await.unwrap();
    let depends = push_manifest(app, "ready: true\ndependsOn: { codeLocations: [mediawatch] }").await;
    stage.committed_once(app, &depends).await.unwrap();
    stage.settled("citation", 0).await.unwrap();

    let gate = Gate::new();
    let revision = app.push_steps(&gate.steps()).await.unwrap();
    gate.reached().await.unwrap();
    let registration = "apps/mediawatch/app.yaml";
    let slip = |text: String| text.replace("spec:\n", "spec:\n  colour: blue\n");
    person_rewrites(stage, registration, slip).await;
    // A newer wake is looked at while the build runs.
    let looked = ["action=\"continue\"", &revision[..12]];
    let before = scene.fabrique.logged(&looked);
    let (code, answer) = stage.deliver_push("atlas/citation", &"0".repeat(40), &revision).await.unwrap();
    assert_eq!(code, 202, "{answer}");
    scene.fabrique.logs(before + 1, &looked).await.unwrap();
    gate.open();
    let told =
        format!("mediawatch, which it depends on, waits until its registration {registration} is right");
    let build = stage.build_becomes("citation", &revision, "not-committed").await.unwrap();
    assert!(build.message.contains(&told), "{build:?}");
    stage.settled("citation", 0).await.unwrap();
    let status = stage.declaration_status(app, &revision).await.unwrap();
    assert_eq!(status.state, "success", "a slip of others is no failure: {status:?}");
    assert!(status.description.contains(&told), "{status:?}");

    // No push of its own.
    person_rewrites(stage, registration, |text| text.replace("  colour: blue\n", "")).await;
    stage.committed_once(app, &revision).await.unwrap();
    let builds = stage.builds("citation").await.unwrap();
    assert_eq!(builds.iter().filter(|build| build.revision == revision).count(), 1, "its image is adopted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_for_an_app_with_a_wrong_registration_is_answered_with_the_finding_and_built_once_it_is_right()
{
    let scene = Scene::open(watching_the_message()).await;
    let stage = &scene.stage;
    scene.settles_after(broken(stage)).await;
    let first = stage.status("citation", &scene.first, "citation").await.unwrap().unwrap();
    assert_eq!(first.state, "success", "what is deployed stays so, and is told so: {first:?}");

    let second = scene.app.push("second").await.unwrap();
    let (status, answer) = stage.deliver_push("atlas/citation", &scene.first, &second).await.unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer["woken"]), (202, &serde_json::json!(["citation"])), "{answer}");
    let reason = answer["reason"].as_str().unwrap();
    assert!(reason.starts_with(&format!("citation waits: {FINDING}")), "{answer}");
    let told = stage.status_becomes(&scene.app, &second, "error").await.unwrap();
    let expected = format!("not built: the registration is wrong: {FINDING}");
    assert!(told.description.starts_with(&expected), "{told:?}");
    // A sweep tells it too, with its app, and wakes nobody for it.
    stage.settled("citation", 0).await.unwrap();
    let (code, sweep, _) = stage.try_command(&["reconcile", "--once", "-o", "json"]).await.unwrap();
    assert_eq!(code, 1, "{sweep}");
    let sweep: Value = serde_json::from_str(&sweep).unwrap();
    let finding = &sweep["findings"][0];
    assert_eq!((&finding["app"], &sweep["woken"]), (&"citation".into(), &serde_json::json!([])), "{sweep:#}");

    corrected(stage).await;
    stage.committed_once(&scene.app, &second).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_starts_with_a_registration_nobody_can_read_says_so_to_pushes() {
    let scene = Scene::open(watching_the_message()).await;
    let stage = &scene.stage;
    let slip = |text: String| text.replace("spec:\n", "spec: [\n");
    scene.settles_after(person_rewrites(stage, REGISTRATION, slip)).await;
    // One that has read it before knows where it was built from.
    let (status, answer) = stage.deliver_push("atlas/citation", &"0".repeat(40), &scene.first).await.unwrap();
    assert!(status == 202 && answer.contains("citation waits: apps/citation/app.yaml:"), "{status} {answer}");

    let (_other, address) = stage.another_receiver(&[]).await.unwrap();
    let answer = wait_until("the other receiver to read", LONG, || async {
        let delivered = stage.deliver_push_to(&address, "atlas/citation", "main", &scene.first).await;
        let (status, answer) = delivered.ok()?;
        (status == 200).then_some(answer)
    });
    let answer = answer.await.unwrap();
    let expected = "no app is registered for atlas/citation, or by a registration that cannot be read: \
                    apps/citation/app.yaml:";
    assert!(answer.contains(expected), "{answer}");
}
