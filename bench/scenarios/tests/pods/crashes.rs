//! A worker that is killed at each effect of a build in a pod, and another that takes over: one commit in the end, and
//! no pod and no certificate that is nobody's. The same on listed daemons is in `tests/journeys/crashes.rs`; with
//! fabrique from its own image in gate 4.

use std::time::Duration;

use fabrique_scenarios::{kill, until};
use fabrique_stage::{Fabrique, Moment};

use crate::ground::{Ground, is_claimed, uid};
use crate::scene::{APP, BUILDING, Scene};

const LONG: Duration = Duration::from_mins(2);
/// What the history says of the attempt of a worker that was killed.
const LEFT: &str = "its worker went away";

impl Scene {
    async fn kill(&self) {
        self.worker.peer.kill9().await.unwrap();
    }

    /// Starts a second worker and waits for the outcome.
    async fn taken_over(&self, revision: &str) -> Fabrique {
        let second = self.ground.stage.worker().await.unwrap();
        self.ends_in_one_commit(revision, &second).await;
        second
    }

    /// How the attempts ended, oldest first.
    async fn attempts(&self) -> Vec<(String, String)> {
        let builds = self.ground.stage.builds(APP).await.unwrap();
        builds.into_iter().map(|build| (build.phase, build.message)).collect()
    }

    /// The killed worker's attempt was ended by the other, who made one of its own.
    async fn is_built_again(&self, second: &Fabrique) {
        assert_eq!(second.logged(BUILDING), 1, "{}", second.log());
        let attempts = self.attempts().await;
        let [(phase, message), (last, _)] = attempts.as_slice() else { panic!("{attempts:?}") };
        assert_eq!((phase.as_str(), message.as_str(), last.as_str()), ("failed", LEFT, "committed"));
    }

    /// The other had nothing to build.
    async fn is_adopted(&self, second: &Fabrique) {
        assert_eq!(second.logged(BUILDING), 0, "{}", second.log());
        let attempts = self.attempts().await;
        assert!(matches!(attempts.as_slice(), [(phase, _)] if phase == "committed"), "{attempts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: one of each class is in every run, and all of them in `./just scenarios`"]
async fn a_worker_killed_with_nothing_but_its_claim_leaves_no_pod() {
    let Some(ground) = Ground::new().await else { return };
    let scene = Scene::set(ground).await;
    let forge = scene.ground.stage.bed.gitea().peer();
    scene.worker.peer.pause().unwrap();
    let revision = scene.push(&scene.gate.steps()).await;
    forge.pause().unwrap();
    scene.worker.peer.resume().unwrap();
    let held = until("the app to be claimed", LONG, async || {
        let holder = scene.ground.stage.holder(APP).await?;
        anyhow::ensure!(holder.is_some(), "nobody has it");
        Ok(())
    });
    held.await.unwrap();
    scene.kill().await;
    forge.resume().unwrap();
    assert_eq!(scene.ground.pods().await.len(), 0);
    assert_eq!(scene.attempts().await, []);
    let second = scene.taken_over(&revision).await;
    assert_eq!(second.logged(BUILDING), 1);
    assert_eq!(scene.attempts().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: one of each class is in every run, and all of them in `./just scenarios`"]
async fn a_worker_killed_before_its_pod_is_made_is_replaced() {
    let Some(ground) = Ground::new().await else { return };
    let scene = Scene::set(ground).await;
    scene.ground.forbid("pods").await;
    let revision = scene.push(&scene.gate.steps()).await;
    scene.worker.logs(1, &["the API server did not do what was asked"]).await.unwrap();
    scene.kill().await;
    assert_eq!(scene.ground.pods().await.len(), 0);
    scene.ground.permit().await;
    let second = scene.taken_over(&revision).await;
    scene.is_built_again(&second).await;
}

/// The pod is made first, since its certificate belongs to it. It never starts, and makes room for another.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_before_its_pod_has_a_certificate_leaves_none_of_both() {
    let Some(mut ground) = Ground::new().await else { return };
    ground.settings["pool"]["start"] = "15s".into();
    ground.settings["pool"]["claim"] = "32s".into();
    ground.settings["gate"]["limit"] = "10s".into();
    // Or it would give up waiting for the answer, and take the pod away itself.
    ground.settings["patience"]["request"] = "10s".into();
    let scene = Scene::set(ground).await;
    let secrets = scene.ground.hold_secrets().await;
    let revision = scene.push(&scene.gate.steps()).await;
    let held = secrets.reached().await;
    scene.kill().await;
    drop((held, secrets));
    let bare = scene.ground.one_pod("the pod that was made", |_| true).await;
    let secrets = scene.ground.listed("secrets").await;
    assert!(
        secrets.is_empty() && bare["metadata"].get("deletionTimestamp").is_none(),
        "{secrets:#?} {bare:#}"
    );
    let second = scene.taken_over(&revision).await;
    scene.is_built_again(&second).await;
    let pods = scene.ground.pods().await;
    assert!(pods.iter().all(|pod| uid(pod) != uid(&bare)), "{pods:#?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: one of each class is in every run, and all of them in `./just scenarios`"]
async fn a_worker_killed_before_its_pod_is_ready_leaves_it_to_the_next() {
    // Its gate holds it back until there is a policy.
    let Some(ground) = Ground::bare().await else { return };
    let scene = Scene::set(ground).await;
    let revision = scene.push(&scene.gate.steps()).await;
    let made = scene.ground.one_pod("a pod at its gate", |pod| {
        let gate = &pod["status"]["initContainerStatuses"][0];
        gate["state"]["running"].is_object()
    });
    let made = made.await;
    scene.kill().await;
    scene.ground.enforce().await;
    let second = scene.taken_over(&revision).await;
    scene.is_built_again(&second).await;
    let left = scene.ground.one_pod("the pod", |_| true).await;
    assert_eq!(uid(&left), uid(&made), "another pod was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_before_the_solve_leaves_a_claimed_pod_that_is_recycled() {
    let Some(ground) = Ground::new().await else { return };
    let scene = Scene::set(ground).await;
    let first = scene.push("COPY message /message").await;
    scene.ends_in_one_commit(&first, &scene.worker).await;
    let idle = scene.ground.one_pod("an idle pod", |pod| !is_claimed(pod)).await;
    kill::signal(uid(&idle), Some("buildkitd"), "STOP").unwrap();
    let revision = scene.push(&scene.gate.steps()).await;
    scene.worker.logs(2, BUILDING).await.unwrap();
    scene.ground.one_pod("the pod to be claimed", is_claimed).await;
    scene.kill().await;
    kill::signal(uid(&idle), Some("buildkitd"), "CONT").unwrap();
    let second = scene.taken_over(&revision).await;
    assert_eq!(second.logged(BUILDING), 1);
    let pods = scene.ground.pods().await;
    assert!(pods.iter().all(|pod| uid(pod) != uid(&idle)), "what it left behind is unknown: {pods:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_while_its_pod_builds_leaves_a_pod_that_is_recycled() {
    let Some(ground) = Ground::new().await else { return };
    let scene = Scene::set(ground).await;
    let revision = scene.push_to_the_gate().await;
    let building = scene.ground.one_pod("the pod that builds", is_claimed).await;
    scene.kill().await;
    let second = scene.taken_over(&revision).await;
    scene.is_built_again(&second).await;
    let pods = scene.ground.pods().await;
    assert!(pods.iter().all(|pod| uid(pod) != uid(&building)), "{pods:#?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: one of each class is in every run, and all of them in `./just scenarios`"]
async fn a_worker_killed_between_the_image_that_its_pod_pushed_and_the_record_is_replaced() {
    let Some(ground) = Ground::new().await else { return };
    let scene = Scene::set(ground).await;
    let revision = scene.push_to_the_gate().await;
    // Killed and not frozen: a frozen bus would find the record in its socket.
    let nats = scene.ground.stage.bed.nats().peer();
    nats.kill9().await.unwrap();
    scene.gate.open();
    scene.ground.stage.image_stored(APP).await.unwrap();
    scene.kill().await;
    nats.start_again().await.unwrap();
    let second = scene.taken_over(&revision).await;
    scene.is_built_again(&second).await;
}

/// The record is past the point of no return; tags follow in the background, and the commit is under way.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_the_record_and_its_tags_leaves_an_image_that_is_adopted_and_tagged() {
    let Some(ground) = Ground::new().await else { return };
    let scene = Scene::set(ground).await;
    let stage = &scene.ground.stage;
    let trap = stage.trap(Moment::BeforeTheUpdate).unwrap();
    let revision = scene.push_to_the_gate().await;
    // The registry keeps tags in a folder of this name.
    let store = stage.bed.folder().join("registry/store/docker/registry/v2/repositories");
    let tags = store.join(APP).join("_manifests/tags");
    std::fs::create_dir_all(tags.parent().unwrap()).unwrap();
    std::fs::write(&tags, "").unwrap();
    scene.gate.open();
    trap.sprung().await.unwrap();
    scene.kill().await;
    std::fs::remove_file(&tags).unwrap();
    assert_eq!(stage.recorded().await.unwrap(), 1);
    assert_eq!(stage.bed.registry().digest(APP, &revision[..12]).await.unwrap(), None, "it was tagged");
    trap.open().unwrap();
    let second = scene.taken_over(&revision).await;
    scene.is_adopted(&second).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: one of each class is in every run, and all of them in `./just scenarios`"]
async fn a_worker_killed_between_the_tags_and_the_commit_leaves_an_image_that_is_adopted() {
    let Some(ground) = Ground::new().await else { return };
    let scene = Scene::set(ground).await;
    let revision = scene.push_to_the_gate().await;
    let bed = &scene.ground.stage.bed;
    bed.gitea().peer().pause().unwrap();
    scene.gate.open();
    let tagged = until("the recorded image to be tagged", LONG, async || {
        let digest = bed.registry().digest(APP, &revision[..12]).await?;
        anyhow::ensure!(digest.is_some(), "it is not");
        Ok(())
    });
    tagged.await.unwrap();
    scene.kill().await;
    bed.gitea().peer().resume().unwrap();
    let second = scene.taken_over(&revision).await;
    scene.is_adopted(&second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_the_commit_and_its_acknowledgement_leaves_one_commit() {
    let Some(ground) = Ground::new().await else { return };
    let scene = Scene::set(ground).await;
    let trap = scene.ground.stage.trap(Moment::AfterTheUpdate).unwrap();
    let revision = scene.push_to_the_gate().await;
    scene.gate.open();
    trap.sprung().await.unwrap();
    scene.kill().await;
    let second = scene.ground.stage.worker().await.unwrap();
    scene.ends_in_one_commit(&revision, &second).await;
    trap.open().unwrap();
    scene.is_adopted(&second).await;
}

/// Killed with the app in hand that lacks nothing but its final status, then again with everything done.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long: one of each class is in every run, and all of them in `./just scenarios`"]
async fn a_worker_killed_after_the_commit_leaves_a_status_to_be_set_and_nothing_to_be_done_twice() {
    let Some(ground) = Ground::new().await else { return };
    let scene = Scene::set(ground).await;
    let stage = &scene.ground.stage;
    let revision = scene.push_to_the_gate().await;
    stage.allow_statuses(APP, false).await.unwrap();
    scene.gate.open();
    scene.worker.logs(1, &["the commit status was not set"]).await.unwrap();
    scene.kill().await;
    stage.allow_statuses(APP, true).await.unwrap();
    let second = stage.worker().await.unwrap();
    scene.tell(&revision).await;
    scene.ends_in_one_commit(&revision, &second).await;
    scene.is_adopted(&second).await;

    second.peer.kill9().await.unwrap();
    let third = stage.worker().await.unwrap();
    let before = stage.wanted(APP).await.unwrap();
    scene.tell(&revision).await;
    stage.settled(APP, before).await.unwrap();
    scene.ends_in_one_commit(&revision, &third).await;
    scene.is_adopted(&third).await;
}
