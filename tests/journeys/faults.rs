//! Servers that go away, come back, hang and refuse.

use fabrique_bed::wait_until;
use fabrique_stage::{AppOptions, Fabrique, Gate, Moment, SampleApp, Settings, Stage};
use serde_json::{Value, json};

use crate::LONG;
use crate::scene::{look_is_no_attempt, protect_apps, pushes_to_apps};

/// A line that every started build leaves in the log.
const BUILDING: &[&str] = &["phase=Building"];

/// A whole fabrique and an app whose first build has a gate.
struct Scene {
    fabrique: Fabrique,
    app: SampleApp,
    gate: Gate,
    stage: Stage,
}

impl Scene {
    async fn set() -> Self {
        Self::with(Settings::default()).await
    }

    async fn with(settings: Settings) -> Self {
        let stage = crate::started(Stage::builder().settings(settings)).await;
        let fabrique = stage.all().await.unwrap();
        let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
        Self { fabrique, app, gate: Gate::new(), stage }
    }

    async fn push_to_the_gate(&self) -> String {
        let revision = self.app.push_steps(&self.gate.steps()).await.unwrap();
        self.gate.reached().await.unwrap();
        self.stage.status_becomes(&self.app, &revision, "pending").await.unwrap();
        revision
    }

    async fn committed_once(&self, revision: &str) {
        let committed = self.gate.open_until(self.stage.committed_once(&self.app, revision)).await;
        committed.unwrap_or_else(|error| panic!("{error:#}"));
    }
}

/// Who builds keeps its app although a server is away for a while.
fn patient() -> Settings {
    Settings { lease: "60s".to_owned(), ..Settings::default() }
}

fn swept() -> Settings {
    Settings { sweep_every: "2s".to_owned(), ..Settings::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_without_webhooks_are_found_by_the_sweep() {
    let stage = crate::started(Stage::builder().settings(swept())).await;
    let fabrique = stage.all().await.unwrap();
    stage.drop_hooks("cluster", "apps").await.unwrap();
    let mut apps = Vec::new();
    for name in ["citation", "ledger", "atlas-web"] {
        let app = SampleApp::create(&stage, AppOptions { hook: false, ..AppOptions::named(name) }).await;
        apps.push(app.unwrap());
    }
    for app in &apps {
        let revision = app.push("unheard").await.unwrap();
        stage.committed_once(app, &revision).await.unwrap();
    }
    assert_eq!(fabrique.logged(&["delivery"]), 0, "nobody told the receiver");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sweep_brings_up_every_app_whose_webhooks_were_all_lost() {
    let stage = crate::stage().await;
    // Nobody hears webhooks, and nobody sweeps but for once.
    let worker = stage.worker().await.unwrap();
    stage.drop_hooks("cluster", "apps").await.unwrap();
    let mut pushed = Vec::new();
    for name in ["citation", "ledger", "atlas-web", "mediawatch"] {
        let options = AppOptions { hook: false, ..AppOptions::named(name) };
        let app = SampleApp::create(&stage, options).await.unwrap();
        let revision = app.push("unheard").await.unwrap();
        pushed.push((app, revision));
    }
    assert_eq!(worker.logged(BUILDING), 0, "nobody told the worker");
    stage.command(&["reconcile", "--once"]).await.unwrap();
    for (app, revision) in &pushed {
        stage.committed_once(app, revision).await.unwrap_or_else(|error| panic!("{error:#}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_while_the_bus_is_down_is_refused_with_503_and_healed_by_the_sweep() {
    let scene = Scene::with(swept()).await;
    let before = scene.app.source.head().await.unwrap();
    let nats = scene.stage.bed.nats().peer();
    nats.stop().await.unwrap();
    let revision = scene.app.push("while the bus is down").await.unwrap();
    let (status, body) = scene.stage.deliver_push("atlas/citation", &before, &revision).await.unwrap();
    assert_eq!(status, 503, "{body}");
    nats.start_again().await.unwrap();
    scene.committed_once(&revision).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_that_is_killed_in_the_middle_of_a_build_costs_nothing() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    let nats = scene.stage.bed.nats().peer();
    nats.kill9().await.unwrap();
    nats.start_again().await.unwrap();
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 1, "the lease outlives a restart of the bus");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_ends_while_the_bus_is_down_is_committed_when_it_is_back_and_not_built_again() {
    let scene = Scene::with(patient()).await;
    let revision = scene.push_to_the_gate().await;
    let nats = scene.stage.bed.nats().peer();
    nats.kill9().await.unwrap();
    scene.gate.open();
    scene.stage.image_stored("citation").await.unwrap();
    // Far more than a few quick attempts.
    scene.fabrique.logs(8, &["the image is not recorded yet"]).await.unwrap();
    nats.start_again().await.unwrap();
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 1, "the digest is recorded whatever happens");
    assert_eq!(scene.stage.builds("citation").await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_whose_registry_goes_away_after_the_push_is_recorded_and_adopted_without_another_build() {
    let scene = Scene::with(patient()).await;
    let revision = scene.push_to_the_gate().await;
    // The daemon goes on without it: it hears of the digest when the registry is gone already.
    scene.fabrique.peer.pause().unwrap();
    scene.gate.open();
    scene.stage.image_stored("citation").await.unwrap();
    let registry = scene.stage.bed.registry().peer();
    registry.kill9().await.unwrap();
    scene.fabrique.peer.resume().unwrap();
    scene.fabrique.logs(1, &["phase=Failed", "is recorded, and not answered for"]).await.unwrap();
    registry.start_again().await.unwrap();
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 1, "what is recorded is adopted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_that_hangs_longer_than_a_lease_stops_the_build_and_has_it_done_again() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    let nats = scene.stage.bed.nats().peer();
    nats.pause().unwrap();
    // Another worker might be at it from then on.
    scene.fabrique.logs(1, &["the lease counts as lost"]).await.unwrap();
    nats.resume().unwrap();
    scene.committed_once(&revision).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_that_lost_everything_is_filled_again_and_nothing_is_deployed_twice() {
    let scene = Scene::with(swept()).await;
    let first = scene.app.push("first").await.unwrap();
    scene.committed_once(&first).await;
    let builds = scene.fabrique.logged(BUILDING);
    scene.stage.lose_the_bus(&scene.fabrique).await.unwrap();
    let second = scene.app.push("second").await.unwrap();
    scene.committed_once(&second).await;
    let commits = scene.stage.image_commits("citation").await.unwrap();
    assert_eq!(commits.len(), 2, "{commits:#?}");
    assert_eq!(scene.fabrique.logged(BUILDING), builds + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_daemon_that_is_killed_in_the_middle_of_a_build_is_no_fault_of_the_source() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    let daemon = scene.stage.bed.buildkit(0).peer();
    daemon.kill9().await.unwrap();
    scene.fabrique.logs(1, &["phase=Failed", "Infrastructure"]).await.unwrap();
    let status = scene.stage.status("citation", &revision, "citation").await.unwrap().unwrap();
    assert_eq!(status.state, "pending", "{status:?}");
    daemon.start_again().await.unwrap();
    scene.committed_once(&revision).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: the daemon's silence and three probes of it are waited for"]
async fn a_build_daemon_that_hangs_in_the_middle_of_a_build_is_given_up() {
    let scene = Scene::with(Settings { silence: "12s".to_owned(), ..Settings::default() }).await;
    let revision = scene.push_to_the_gate().await;
    let daemon = scene.stage.bed.buildkit(0).peer();
    daemon.pause().unwrap();
    scene.fabrique.logs(1, &["phase=Failed", "Infrastructure"]).await.unwrap();
    daemon.resume().unwrap();
    scene.committed_once(&revision).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_down_delays_a_build_and_fails_nobody() {
    let scene = Scene::set().await;
    let registry = scene.stage.bed.registry().peer();
    registry.kill9().await.unwrap();
    let revision = scene.app.push("for later").await.unwrap();
    scene.fabrique.logs(2, &["phase=Failed", "Infrastructure"]).await.unwrap();
    assert_eq!(scene.fabrique.logged(&["phase=Failed", "Source"]), 0);
    registry.start_again().await.unwrap();
    scene.committed_once(&revision).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_listed_read_and_replayed() {
    let settings = Settings { max_attempts: 2, dead_letter_rest: "1h".to_owned(), ..Settings::default() };
    let scene = Scene::with(settings).await;
    let registry = scene.stage.bed.registry().peer();
    registry.kill9().await.unwrap();
    let revision = scene.app.push("for later").await.unwrap();
    let name = scene.app.options.name.as_str();
    let letter = wait_until("the app to be a dead letter", LONG, || async {
        let letters = scene.stage.json(&["dlq"]).await.ok()?;
        letters.as_array()?.iter().find(|letter| letter["app"] == name && letter["stuck"] == "dead").cloned()
    });
    let letter = letter.await.unwrap();
    assert_eq!(
        (&letter["failure"]["attempts"], &letter["failure"]["kind"]),
        (&json!(2), &json!("infrastructure"))
    );
    let (_, shown, _) = scene.stage.try_command(&["dlq", "show", name]).await.unwrap();
    assert!(shown.contains(&revision[..12]), "{shown}");

    registry.start_again().await.unwrap();
    scene.stage.command(&["dlq", "replay", name]).await.unwrap();
    scene.committed_once(&revision).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_no_daemon_takes_waits_for_one_and_is_no_dead_letter() {
    let settings = Settings { max_attempts: 2, dead_letter_rest: "1h".to_owned(), ..Settings::default() };
    let stage = crate::started(Stage::builder().settings(settings)).await;
    let daemon = stage.bed.buildkit(0).peer();
    daemon.kill9().await.unwrap();
    let _worker = stage.worker_with(&[("FABRIQUE_WORKER__PATIENCE", "500ms")]).await.unwrap();
    let _receiver = stage.receiver().await.unwrap();
    let app = SampleApp::create(&stage, AppOptions::named("citation")).await.unwrap();
    let revision = app.push("for later").await.unwrap();
    wait_until("more waits than there are attempts", LONG, || async {
        let builds = stage.builds("citation").await.ok()?;
        (builds.iter().filter(|build| build.ended.is_some()).count() > 3).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(stage.json(&["dlq"]).await.unwrap(), json!([]));
    let waits = wait_until("the committer to be told what it waits for", LONG, || async {
        let status = stage.status("citation", &revision, "citation").await.ok()??;
        (status.state == "pending" && status.description.contains("waits for a builder")).then_some(status)
    });
    assert!(waits.await.unwrap().description.contains("no daemon answers"));

    daemon.start_again().await.unwrap();
    stage.committed_once(&app, &revision).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_that_is_unregistered_during_its_build_is_not_deployed_and_not_called_deployed() {
    let scene = Scene::set().await;
    scene.stage.hook("cluster", "apps").await.unwrap();
    let revision = scene.push_to_the_gate().await;
    let apps = scene.stage.clone_apps().await.unwrap();
    apps.git(&["rm", "-q", "apps/citation/app.yaml"]).await.unwrap();
    apps.commit("Unregister citation").await.unwrap();
    apps.push().await.unwrap();
    let status = scene.stage.status_becomes(&scene.app, &revision, "error").await.unwrap();
    assert!(status.description.contains("stopped"), "{status:?}");
    scene.gate.open();
    assert_eq!(scene.stage.composition("citation").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forge_that_is_down_at_commit_time_gets_the_commit_later_from_the_same_build() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    let gitea = scene.stage.bed.gitea().peer();
    gitea.kill9().await.unwrap();
    scene.gate.open();
    scene.fabrique.logs(2, &["looked in vain"]).await.unwrap();
    gitea.start_again().await.unwrap();
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forge_that_hangs_at_commit_time_gets_the_commit_later_from_the_same_build() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    let gitea = scene.stage.bed.gitea().peer();
    gitea.pause().unwrap();
    scene.gate.open();
    scene.fabrique.logs(1, &["phase=Pushed"]).await.unwrap();
    gitea.resume().unwrap();
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_revoked_during_a_build_is_named_and_not_hammered() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    scene.stage.revoke_apps_token().await.unwrap();
    scene.gate.open();
    scene.fabrique.logs(1, &["needs a person", "app=citation", "gitea.apps_token"]).await.unwrap();
    // Not even cluster/apps can be read: no attempt can fail, and the worker comes back as seldom as it can.
    scene
        .fabrique
        .logs(3, &["looked in vain", "app=citation", "`gitea.apps_token` for cluster/apps"])
        .await
        .unwrap();
    let waits = scene.fabrique.values(&["looked in vain", "app=citation"], "wait_ms");
    assert!(waits.iter().all(|wait| wait.parse::<u64>().unwrap() >= 1_000), "half of the longest: {waits:?}");
    let (code, report, _) = scene.stage.try_command(&["doctor"]).await.unwrap();
    assert_eq!(code, 1);
    assert!(report.contains("the `apps` token is wrong, expired or revoked: replace it"), "{report}");
    let (code, _, trouble) = scene.stage.try_command(&["dlq"]).await.unwrap();
    assert_eq!(code, 4);
    assert!(trouble.contains("the forge refuses"), "{trouble}");
    for command in [&["status"][..], &["why", "citation"]] {
        let (_, said, trouble) = scene.stage.try_command(command).await.unwrap();
        assert!(
            format!("{said}{trouble}").contains("`gitea.apps_token` for cluster/apps"),
            "{said}{trouble}"
        );
    }

    scene.fabrique.peer.stop().await.unwrap();
    scene.stage.renew_apps_token(&scene.fabrique).await.unwrap();
    scene.fabrique.peer.start_again().await.unwrap();
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 1, "the recorded image is adopted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_away_during_a_build_makes_a_dead_letter_that_is_replayed() {
    let settings = Settings { max_attempts: 2, dead_letter_rest: "1h".to_owned(), ..Settings::default() };
    let scene = Scene::with(settings).await;
    let revision = scene.push_to_the_gate().await;
    scene.stage.allow_writing_apps(false).await.unwrap();
    scene.gate.open();
    let letter = wait_until("the app to be a dead letter", LONG, || async {
        let letters = scene.stage.json(&["dlq"]).await.ok()?;
        letters.as_array()?.iter().find(|letter| letter["stuck"] == "dead").cloned()
    });
    let letter = letter.await.unwrap();
    assert_eq!(letter["failure"]["attempts"], 2, "{letter}");
    assert_eq!(letter["remedy"], "remove the cause, then `fabrique dlq replay citation`");
    let status = scene.stage.status_becomes(&scene.app, &revision, "error").await.unwrap();
    assert!(status.description.starts_with("given up after 2 attempts"), "{status:?}");
    assert_eq!(scene.fabrique.logged(&["needs a person", "app=citation"]), 2, "one push an attempt");

    scene.stage.allow_writing_apps(true).await.unwrap();
    scene.stage.command(&["dlq", "replay", "citation"]).await.unwrap();
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 1, "the recorded image is adopted");
}

/// Has the registry lose the image of `revision` once it is tagged: a tag that comes later would bring it back.
async fn lose_recorded(scene: &Scene, revision: &str) {
    let registry = scene.stage.bed.registry();
    let recorded = wait_until("the recorded image to be tagged", LONG, || async {
        registry.digest("citation", &revision[..12]).await.ok().flatten()
    });
    scene.stage.delete_manifest("citation", &recorded.await.unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_the_registry_lost_before_its_commit_is_built_again() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    let gitea = scene.stage.bed.gitea().peer();
    gitea.kill9().await.unwrap();
    scene.gate.open();
    lose_recorded(&scene, &revision).await;
    scene.fabrique.logs(1, &["looked in vain"]).await.unwrap();
    gitea.start_again().await.unwrap();
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_the_registry_lost_while_its_commit_waited_is_built_again_and_never_committed() {
    let scene = Scene::set().await;
    let revision = scene.push_to_the_gate().await;
    let gitea = scene.stage.bed.gitea().peer();
    gitea.pause().unwrap();
    scene.gate.open();
    lose_recorded(&scene, &revision).await;
    gitea.resume().unwrap();
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 2);
    let committed = scene.stage.build_becomes("citation", &revision, "committed").await.unwrap();
    let builds = scene.stage.builds("citation").await.unwrap();
    let [lost, rebuilt] = &builds[..] else { panic!("{builds:?}") };
    assert_eq!((lost.phase.as_str(), rebuilt), ("failed", &committed));
    assert!(lost.message.starts_with("the registry lost sha256:"), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_daemon_below_the_version_floor_is_refused_by_name() {
    let stage = crate::stage().await;
    let outdated = stage.outdated_builder().await.unwrap();
    let (address, version) = (&outdated.address, outdated.version);
    let daemons = format!("[{{name=\"old\",address=\"{address}\"}}]");
    let env = [("FABRIQUE_BUILDKIT__DAEMONS", daemons.as_str())];
    let started = stage.worker_with(&env).await;
    let refusal = format!("{:#}", started.err().unwrap());
    let expected = format!(
        "old runs BuildKit {version:?}, and the floor is 0.31.2 (upgrade buildkitd, or the builders' image)"
    );
    assert!(refusal.contains(&expected), "{refusal}");

    let (code, report, _) = stage.try_command_with(&env, &["doctor", "-o", "json"]).await.unwrap();
    assert_eq!(code, 1);
    let report: Value = serde_json::from_str(&report).unwrap();
    let check = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "buildkitd old");
    let check = check.unwrap();
    assert_eq!(check["level"], "fail", "{check}");
    assert_eq!(check["what"], format!("{address} runs {version}, which is too old"));
    assert_eq!(check["remedy"], "upgrade buildkitd to 0.31.2 or newer");
}

/// Kills the forge while it holds our push, and starts it again.
async fn killed_forge(moment: Moment) {
    let scene = Scene::set().await;
    let trap = scene.stage.trap(moment).unwrap();
    let revision = scene.push_to_the_gate().await;
    scene.gate.open();
    trap.sprung().await.unwrap();
    let gitea = scene.stage.bed.gitea().peer();
    gitea.kill9().await.unwrap();
    gitea.start_again().await.unwrap();
    trap.open().unwrap();
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forge_killed_before_it_moved_the_branch_is_pushed_to_again() {
    killed_forge(Moment::BeforeTheUpdate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forge_killed_after_it_moved_the_branch_is_read_back_and_not_pushed_to_again() {
    killed_forge(Moment::AfterTheUpdate).await;
}

/// Refuses the write-back, sees it said and not hammered, lifts the refusal and sees it healed.
async fn refused(refuse: impl AsyncFnOnce(&Stage), lift: impl AsyncFnOnce(&Stage), said: &str) {
    let scene = Scene::set().await;
    refuse(&scene.stage).await;
    let pushes = || pushes_to_apps(&scene.stage);
    let before = pushes();
    let revision = scene.app.push("refused").await.unwrap();
    let status = scene.stage.status_becomes(&scene.app, &revision, "error").await.unwrap();
    assert!(status.description.contains(said), "{status:?}");
    let attempts = Settings::default().max_attempts as usize;
    assert!(scene.fabrique.logged(&["needs a person", said]) <= attempts, "not hammered");
    assert!(pushes() - before <= attempts, "not hammered: {} pushes", pushes() - before);
    assert_eq!(scene.fabrique.logged(BUILDING), 1, "what is built is kept");
    lift(&scene.stage).await;
    scene.committed_once(&revision).await;
    assert_eq!(scene.fabrique.logged(BUILDING), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_protected_branch_is_said_and_not_hammered_and_heals() {
    refused(
        async |stage: &Stage| protect_apps(stage, true).await,
        async |stage: &Stage| protect_apps(stage, false).await,
        "protected branch",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_stays_protected_is_pushed_to_once_an_attempt_and_by_no_later_look() {
    let settings = Settings { max_attempts: 2, dead_letter_rest: "1h".to_owned(), ..Settings::default() };
    let scene = Scene::with(settings).await;
    protect_apps(&scene.stage, true).await;
    let before = pushes_to_apps(&scene.stage);
    let revision = scene.app.push("refused").await.unwrap();
    let status = scene.stage.status_becomes(&scene.app, &revision, "error").await.unwrap();
    assert!(status.description.starts_with("given up after 2 attempts: "), "{status:?}");
    look_is_no_attempt(&scene.stage, &revision, before, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archived_apps_repository_is_said_and_not_hammered_and_heals() {
    let archived = async |stage: &Stage, archived: bool| {
        let body = json!({ "archived": archived });
        stage.bed.gitea().api("PATCH", "/repos/cluster/apps", Some(body)).await.unwrap();
    };
    refused(
        async |stage: &Stage| archived(stage, true).await,
        async |stage: &Stage| archived(stage, false).await,
        "archived",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployer_without_its_right_is_said_and_not_hammered_and_heals() {
    let grant = async |stage: &Stage, right: &str| {
        stage.bed.gitea().add_collaborator("cluster", "apps", "fabrique-apps", right).await.unwrap();
    };
    refused(
        async |stage: &Stage| grant(stage, "read").await,
        async |stage: &Stage| grant(stage, "write").await,
        "5 attempts: User permission denied for writing.",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_is_said_and_not_hammered_and_heals() {
    let scene = Scene::set().await;
    let first = scene.app.push("first").await.unwrap();
    scene.committed_once(&first).await;
    // Gitea tells a token of a locked user from a revoked one as little as fabrique can.
    let lock = async |locked: bool| {
        let body = json!({ "source_id": 0, "login_name": "fabrique-apps", "prohibit_login": locked });
        scene.stage.bed.gitea().api("PATCH", "/admin/users/fabrique-apps", Some(body)).await.unwrap();
    };
    lock(true).await;
    let revision = scene.app.push("locked out").await.unwrap();
    scene.fabrique.logs(3, &["looked in vain"]).await.unwrap();
    // The third in a row is there after two whole waits at least, each half of the longest or more.
    assert!(scene.fabrique.logged(&["looked in vain"]) <= 4, "not hammered");
    lock(false).await;
    scene.committed_once(&revision).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "soak: takes each server away in turn for minutes"]
async fn outages_of_every_server_in_turn_delay_and_never_lose() {
    let scene = Scene::with(swept()).await;
    let bed = &scene.stage.bed;
    let peers = [bed.nats().peer(), bed.gitea().peer(), bed.registry().peer(), bed.buildkit(0).peer()];
    for round in 0..5_u64 {
        for peer in peers {
            let revision = scene.app.push(&format!("{} {round}", peer.name())).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(150 + 300 * round)).await;
            peer.kill9().await.unwrap();
            peer.start_again().await.unwrap();
            scene.committed_once(&revision).await;
        }
    }
}
