//! A worker, the receiver that wakes it, and an app whose build has a gate.

use std::time::Duration;

use fabrique_scenarios::until;
use fabrique_stage::{AppOptions, Fabrique, Gate, SampleApp};
use serde_json::Value;

use crate::ground::Ground;

/// The one app of a scene.
pub(crate) const APP: &str = "citation";
/// A line that every started build leaves in its worker's log.
pub(crate) const BUILDING: &[&str] = &["phase=Building"];
/// How long anything may take here. Only ever a bound.
const LONG: Duration = Duration::from_mins(2);

/// In the order in which it has to go.
pub(crate) struct Scene {
    pub(crate) worker: Fabrique,
    _receiver: Fabrique,
    pub(crate) app: SampleApp,
    pub(crate) gate: Gate,
    pub(crate) ground: Ground,
}

impl Scene {
    /// With the ground's settings as they are now.
    pub(crate) async fn set(mut ground: Ground) -> Self {
        ground.configure().await;
        let stage = &ground.stage;
        let worker = stage.worker().await.unwrap();
        let receiver = stage.receiver().await.unwrap();
        let options = AppOptions { hook: false, ..AppOptions::named(APP) };
        let app = SampleApp::create(stage, options).await.unwrap();
        Self { worker, _receiver: receiver, app, gate: Gate::new(), ground }
    }

    /// Pushes these steps, and has the receiver told until it has accepted: a forge tells once.
    pub(crate) async fn push(&self, steps: &str) -> String {
        let revision = self.app.push_steps(steps).await.unwrap();
        self.tell(&revision).await;
        revision
    }

    /// Tells the receiver of a push, until it has accepted.
    pub(crate) async fn tell(&self, revision: &str) {
        let told = until("the push to be accepted", LONG, async || {
            let told = self.ground.stage.deliver_push("atlas/citation", &"0".repeat(40), revision).await?;
            anyhow::ensure!(told.0 == 202, "{told:?}");
            Ok(())
        });
        told.await.unwrap();
    }

    /// Pushes a gate, and waits until its build stands there, with everything said that is said on the way.
    pub(crate) async fn push_to_the_gate(&self) -> String {
        let revision = self.push(&self.gate.steps()).await;
        let reached = self.gate.reached().await;
        reached.unwrap_or_else(|error| panic!("{error:#}\n{}", self.worker.log()));
        self.ground.stage.status_becomes(&self.app, &revision, "pending").await.unwrap();
        revision
    }

    /// Waits for `why` to tell of a failed attempt in these words, and returns what it says of everything.
    pub(crate) async fn why_tells(&self, revision: &str, words: &str) -> Value {
        let what = format!("`why` to tell: {words}");
        let told = until(&what, LONG, async || {
            let why = self.ground.stage.json(&["why", APP]).await?;
            fabrique_scenarios::verdicts::why_tells(&why, revision, &[words])?;
            Ok(why)
        });
        told.await.unwrap_or_else(|error| panic!("{error:#}\n{}", self.worker.log()))
    }

    /// Opens the gate and waits for exactly one commit of a revision, the first of all. Nobody has anything left to do
    /// then, and nothing is left of the pods but what the next build may have.
    pub(crate) async fn ends_in_one_commit(&self, revision: &str, worker: &Fabrique) {
        let Self { ground, app, gate, .. } = self;
        let committed = gate.open_until(ground.stage.committed_once(app, revision)).await;
        committed.unwrap_or_else(|error| panic!("{error:#}\n{}", worker.log()));
        ground.stage.settled(APP, 0).await.unwrap();
        let commits = ground.stage.image_commits(APP).await.unwrap();
        let of_it = commits.iter().filter(|commit| commit.revision == revision).count();
        assert_eq!(of_it, 1, "{commits:#?}");
        ground.no_orphans().await;
    }
}
