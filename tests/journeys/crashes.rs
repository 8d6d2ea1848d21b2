//! Workers that die or freeze at every step of a build, and others that take over.
//!
//! Whatever the step: in the end there is one automatic commit, and it carries the digest that the registry
//! serves.

use std::time::{Duration, Instant};

use fabrique_bed::{Buildkit, wait_until};
use fabrique_stage::{AppOptions, Fabrique, Gate, Moment, SampleApp, Stage};

use crate::LONG;
use crate::scene::{DIFFERS, key_of};

/// A line that every started build leaves in its worker's log.
const BUILDING: &[&str] = &["phase=Building"];

/// A worker, the receiver that wakes it, and an app whose first build has a gate.
struct Scene {
    worker: Fabrique,
    _receiver: Fabrique,
    app: SampleApp,
    gate: Gate,
    stage: Stage,
}

impl Scene {
    async fn set() -> Self {
        let stage = crate::stage().await;
        let worker = stage.worker().await.unwrap();
        let receiver = stage.receiver().await.unwrap();
        let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
        Self { worker, _receiver: receiver, app, gate: Gate::new(), stage }
    }

    /// Pushes the gated source.
    async fn push(&self) -> String {
        self.app.push_steps(&self.gate.steps()).await.unwrap()
    }

    /// Pushes it and waits until its build stands at the gate, with everything said that is said on the way.
    async fn push_to_the_gate(&self) -> String {
        let revision = self.push().await;
        self.gate.reached().await.unwrap();
        self.stage.status_becomes(&self.app, &revision, "pending").await.unwrap();
        revision
    }

    /// Opens the gate with the forge frozen and waits until the image is recorded, which its tag shows.
    async fn push_and_record(&self) -> String {
        let revision = self.push_to_the_gate().await;
        self.stage.bed.gitea().peer().pause().unwrap();
        self.gate.open();
        let tag = &revision[..12];
        wait_until("the recorded image to be tagged", LONG, || async {
            self.stage.bed.registry().digest("citation", tag).await.ok().flatten()
        })
        .await
        .unwrap();
        revision
    }

    /// Starts a second worker and waits for the outcome.
    async fn taken_over(&self, revision: &str) -> Fabrique {
        let second = self.stage.worker().await.unwrap();
        let committed = self.gate.open_until(self.stage.committed_once(&self.app, revision)).await;
        committed.unwrap_or_else(|error| panic!("{error:#}\n{}", second.log()));
        second
    }
}

/// Waits until a worker that goes on after a freeze has found that the app is not its own any more, or that
/// what it was waiting for is long over.
async fn noticed(worker: &Fabrique) {
    wait_until("the frozen worker to notice", LONG, || async {
        let lost = worker.logged(&["taken over by another worker"]);
        let in_vain = worker.logged(&["looked in vain"]);
        (lost + in_vain > 0).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_before_the_solve_is_replaced() {
    let scene = Scene::set().await;
    let daemon = scene.stage.bed.buildkit(0).peer();
    daemon.pause().unwrap();
    let revision = scene.push().await;
    scene.worker.logs(1, BUILDING).await.unwrap();
    scene.worker.peer.kill9().await.unwrap();
    daemon.resume().unwrap();
    let second = scene.taken_over(&revision).await;
    assert_eq!(second.logged(BUILDING), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_while_building_is_replaced() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    scene.worker.peer.kill9().await.unwrap();
    let second = scene.taken_over(&revision).await;
    assert_eq!(second.logged(BUILDING), 1);
    let left = scene.stage.build_becomes("citation", &revision, "failed").await.unwrap();
    assert_eq!(left.message, "its worker went away");
    assert!(left.ended.is_some(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_the_image_push_and_its_record_is_replaced() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    // Killed and not frozen: a frozen bus would find the record in its socket.
    let nats = scene.stage.bed.nats().peer();
    nats.kill9().await.unwrap();
    scene.gate.open();
    scene.stage.image_stored("citation").await.unwrap();
    scene.worker.peer.kill9().await.unwrap();
    nats.start_again().await.unwrap();
    let second = scene.taken_over(&revision).await;
    assert_eq!(second.logged(BUILDING), 1, "an image that nobody recorded is not trusted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_the_record_and_the_commit_leaves_an_image_that_is_adopted() {
    let scene = Scene::set().await;
    let revision = scene.push_and_record().await;
    scene.worker.peer.kill9().await.unwrap();
    scene.stage.bed.gitea().peer().resume().unwrap();
    let second = scene.taken_over(&revision).await;
    assert_eq!(second.logged(BUILDING), 0, "the record is adopted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_replayed_three_times_after_a_kill_is_one_build_and_one_commit() {
    let scene = Scene::set().await;
    let revision = scene.push_and_record().await;
    scene.worker.peer.kill9().await.unwrap();
    scene.stage.bed.gitea().peer().resume().unwrap();
    for _ in 0..3 {
        let (status, answer) =
            scene.stage.deliver_push("atlas/citation", &"0".repeat(40), &revision).await.unwrap();
        assert_eq!(status, 202, "{answer}");
    }
    let second = scene.taken_over(&revision).await;
    scene.stage.settled("citation", 0).await.unwrap();
    assert_eq!(second.logged(BUILDING), 0, "the recorded image is adopted");
    assert_eq!(scene.stage.builds("citation").await.unwrap().len(), 1);
    assert_eq!(scene.stage.image_commits("citation").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_build_of_a_dead_worker_whose_app_was_unregistered_is_ended_by_a_sweep() {
    let scene = Scene::set().await;
    scene.stage.hook("cluster", "apps").await.unwrap();
    let revision = scene.push_to_the_gate().await;
    scene.worker.peer.kill9().await.unwrap();
    scene.stage.allow_statuses("citation", false).await.unwrap();
    let apps = scene.stage.clone_apps().await.unwrap();
    apps.git(&["rm", "-q", "apps/citation/app.yaml"]).await.unwrap();
    apps.commit("Unregister citation").await.unwrap();
    apps.push().await.unwrap();
    let second = scene.stage.worker().await.unwrap();
    second.logs(1, &["app=citation", "not registered"]).await.unwrap();
    second.logs(1, &["app=citation", "the commit status was not set"]).await.unwrap();
    scene.stage.settled("citation", 0).await.unwrap();
    // Nothing claims it again.
    let left = scene.stage.build_becomes("citation", &revision, "building").await.unwrap();

    scene.stage.allow_statuses("citation", true).await.unwrap();
    let ended = wait_until("a sweep to end the build", LONG, || async {
        let sweep = scene.stage.json(&["reconcile", "--once"]).await.ok()?;
        sweep["closed"].as_array()?.first().cloned()
    });
    let ended = ended.await.unwrap();
    assert_eq!((&ended["build"], &ended["phase"]), (&left.id.as_str().into(), &"failed".into()));
    let shown = scene.stage.build_becomes("citation", &revision, "failed").await.unwrap();
    assert_eq!(shown.message, "its worker went away");
    // The same sweep woke the app for it.
    let status = scene.stage.status_becomes(&scene.app, &revision, "error").await.unwrap();
    assert_eq!(status.description, "not built: the app is not registered any more");
    scene.gate.open();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_with_its_commit_in_flight_is_replaced() {
    let scene = Scene::set().await;
    let trap = scene.stage.trap(Moment::BeforeTheUpdate).unwrap();
    let revision = scene.push_to_the_gate().await;
    scene.gate.open();
    trap.sprung().await.unwrap();
    scene.worker.peer.kill9().await.unwrap();
    trap.open().unwrap();
    let second = scene.taken_over(&revision).await;
    assert_eq!(second.logged(BUILDING), 0, "the record is adopted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_outlives_its_worker_at_the_forge_comes_too_late() {
    let scene = Scene::set().await;
    let trap = scene.stage.trap(Moment::BeforeTheUpdate).unwrap();
    let revision = scene.push_to_the_gate().await;
    scene.gate.open();
    trap.sprung().await.unwrap();
    scene.worker.peer.kill9().await.unwrap();
    // The forge's hook still waits for the trap.
    let _second = scene.taken_over(&revision).await;
    trap.open().unwrap();
    let next = scene.app.push("after").await.unwrap();
    scene.stage.committed_once(&scene.app, &next).await.unwrap();
    assert_eq!(scene.stage.image_commits("citation").await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_the_commit_and_its_acknowledgement_is_replaced() {
    let scene = Scene::set().await;
    let trap = scene.stage.trap(Moment::AfterTheUpdate).unwrap();
    let revision = scene.push_to_the_gate().await;
    scene.gate.open();
    trap.sprung().await.unwrap();
    scene.worker.peer.kill9().await.unwrap();
    let second = scene.taken_over(&revision).await;
    assert_eq!(second.logged(BUILDING), 0, "the commit is there");
    trap.open().unwrap();
    for _ in 0..3 {
        let (status, answer) =
            scene.stage.deliver_push("atlas/citation", &"0".repeat(40), &revision).await.unwrap();
        assert_eq!(status, 202, "{answer}");
    }
    scene.stage.settled("citation", 0).await.unwrap();
    assert_eq!(scene.stage.image_commits("citation").await.unwrap().len(), 1);
    assert_eq!(scene.stage.builds("citation").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_frozen_for_a_whole_build_finds_that_another_did_it() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    scene.worker.peer.pause().unwrap();
    let second = scene.taken_over(&revision).await;
    assert_eq!(second.logged(BUILDING), 1);
    scene.worker.peer.resume().unwrap();
    noticed(&scene.worker).await;
    let next = scene.gate.open_until(scene.app.push("after")).await.unwrap();
    scene.gate.open_until(scene.stage.committed_once(&scene.app, &next)).await.unwrap();
    assert_eq!(scene.stage.image_commits("citation").await.unwrap().len(), 2);
}

/// Has the build daemon forget every step, once nothing is in use any more.
async fn forgets_its_steps(daemon: &Buildkit) {
    wait_until("the daemon's cache to be empty", LONG, || async {
        daemon.buildctl().args(["prune", "--all"]).output().await.ok()?;
        let left =
            daemon.buildctl().args(["du", "--format", "{{range .}}{{.ID}}{{end}}"]).output().await.ok()?;
        (left.status.success() && left.stdout.trim_ascii().is_empty()).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_frozen_between_the_solve_and_the_record_does_not_replace_what_another_recorded() {
    let scene = Scene::set().await;
    let revision = scene.app.push_steps(&format!("{}\n{DIFFERS}", scene.gate.steps())).await.unwrap();
    scene.gate.reached().await.unwrap();
    scene.worker.peer.pause().unwrap();
    scene.gate.open();
    scene.stage.image_stored("citation").await.unwrap();
    forgets_its_steps(scene.stage.bed.buildkit(0)).await;
    let second = scene.taken_over(&revision).await;
    assert_eq!(second.logged(BUILDING), 1, "an image that nobody recorded is not trusted");
    let deployed = scene.stage.composition("citation").await.unwrap().unwrap().digest;
    assert_eq!(scene.stage.stored_manifests("citation"), 2, "the frozen worker has another image");

    scene.worker.peer.resume().unwrap();
    noticed(&scene.worker).await;
    scene.worker.logs(1, &["looked in vain"]).await.unwrap();
    let key = key_of(&scene.app, &revision);
    assert_eq!(scene.stage.recorded_digest(key.as_str()).await.unwrap(), Some(deployed.clone()));
    let kept = scene.stage.bed.registry().digest("citation", &key.keep_tag()).await.unwrap();
    assert_eq!(kept, Some(deployed), "and it keeps its tag");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_frozen_before_its_pending_status_leaves_the_final_one_of_another() {
    const PENDING_AFTER: Duration = Duration::from_secs(8);
    let stage = crate::stage().await;
    let worker = stage.worker_with(&[("FABRIQUE_WORKER__PENDING_AFTER", "8s")]).await.unwrap();
    let receiver = stage.receiver().await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let scene = Scene { worker, _receiver: receiver, app, gate: Gate::new(), stage };
    let revision = scene.push().await;
    scene.worker.logs(1, BUILDING).await.unwrap();
    let building = Instant::now();
    scene.worker.peer.pause().unwrap();
    let _second = scene.taken_over(&revision).await;
    scene.stage.status_becomes(&scene.app, &revision, "success").await.unwrap();
    // Its pending status is due when it goes on.
    tokio::time::sleep_until((building + PENDING_AFTER).into()).await;
    scene.worker.peer.resume().unwrap();
    noticed(&scene.worker).await;
    // By the next commit whatever it had on its way has arrived.
    let next = scene.gate.open_until(scene.app.push("after")).await.unwrap();
    scene.gate.open_until(scene.stage.committed_once(&scene.app, &next)).await.unwrap();
    scene.stage.status_becomes(&scene.app, &revision, "success").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_frozen_before_its_commit_writes_nothing_stale() {
    let scene = Scene::set().await;
    let revision = scene.push_and_record().await;
    scene.worker.peer.pause().unwrap();
    scene.stage.bed.gitea().peer().resume().unwrap();
    let _second = scene.taken_over(&revision).await;
    // The newer build is the other worker's too, so that what the frozen one has in hand is old.
    let newer = scene.app.push("newer").await.unwrap();
    scene.gate.open_until(scene.stage.committed_once(&scene.app, &newer)).await.unwrap();
    scene.worker.peer.resume().unwrap();
    noticed(&scene.worker).await;
    scene.stage.committed_once(&scene.app, &newer).await.unwrap();
    let commits = scene.stage.image_commits("citation").await.unwrap();
    let revisions: Vec<&str> = commits.iter().map(|commit| commit.revision.as_str()).collect();
    assert_eq!(revisions, [newer.as_str(), &revision]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_frozen_with_its_commit_in_flight_loses_the_race_for_the_branch() {
    let scene = Scene::set().await;
    let trap = scene.stage.trap(Moment::BeforeTheUpdate).unwrap();
    let revision = scene.push_to_the_gate().await;
    scene.gate.open();
    trap.sprung().await.unwrap();
    scene.worker.peer.pause().unwrap();
    let _second = scene.taken_over(&revision).await;
    trap.open().unwrap();
    scene.worker.peer.resume().unwrap();
    noticed(&scene.worker).await;
    let next = scene.app.push("after").await.unwrap();
    scene.gate.open_until(scene.stage.committed_once(&scene.app, &next)).await.unwrap();
    assert_eq!(scene.stage.image_commits("citation").await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_told_to_stop_gives_its_app_back_at_once() {
    let settings = fabrique_stage::Settings { lease: "10m".to_owned(), ..Default::default() };
    let stage = crate::started(Stage::builder().settings(settings)).await;
    let worker = stage.worker().await.unwrap();
    let receiver = stage.receiver().await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let scene = Scene { worker, _receiver: receiver, app, gate: Gate::new(), stage };
    let revision = scene.push_to_the_gate().await;
    let second = scene.stage.worker().await.unwrap();
    scene.worker.peer.stop().await.unwrap();
    assert_eq!(scene.worker.logged(&["were not given back"]), 0, "it ended within its grace");
    scene.gate.open_until(scene.stage.committed_once(&scene.app, &revision)).await.unwrap();
    assert_eq!(second.logged(BUILDING), 1, "long before the lease could expire");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: kills everything at random for minutes"]
async fn a_fabrique_killed_again_and_again_commits_every_newest_revision_once() {
    const PUSHES: usize = 25;
    let stage = crate::started(
        Stage::builder()
            .settings(fabrique_stage::Settings { sweep_every: "2s".to_owned(), ..Default::default() }),
    )
    .await;
    let fabrique = stage.all().await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let mut newest = String::new();
    for number in 0..PUSHES {
        newest = app.push(&format!("push {number}")).await.unwrap();
        // From the delivery to well behind the commit, in steps that meet every moment between.
        let life = Duration::from_millis(60 + 110 * number as u64);
        tokio::time::sleep(life).await;
        fabrique.peer.kill9().await.unwrap();
        fabrique.peer.start_again().await.unwrap();
    }
    stage.committed_once(&app, &newest).await.unwrap();
    let commits = stage.image_commits("citation").await.unwrap();
    let mut revisions: Vec<&str> = commits.iter().map(|commit| commit.revision.as_str()).collect();
    let all = revisions.len();
    revisions.sort_unstable();
    revisions.dedup();
    assert_eq!(revisions.len(), all, "no revision is committed twice: {commits:#?}");
}
