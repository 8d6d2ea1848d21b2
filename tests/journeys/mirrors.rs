//! GitHub validates, Gitea builds: a repository of Gitea plays the one on GitHub, a server that answers as GitHub's API
//! is recorded to do says what its checks came to.

use fabrique_bed::{GitRepo, RecordedGithub, wait_until};
use fabrique_stage::{AppOptions, SampleApp, Stage};
use serde_json::Value;

use crate::{LONG, stage};

const UPSTREAM: &str = "acme/citation";

/// `acme/citation` with the app in it, registered as `atlas/citation`, which mirrors it. Nothing has a webhook.
struct Mirrored {
    stage: Stage,
    app: SampleApp,
    github: RecordedGithub,
}

impl Mirrored {
    async fn start() -> Self {
        let stage = stage().await;
        let gitea = stage.bed.gitea();
        gitea.create_org("acme").await.unwrap();
        gitea.create_repo("acme", "citation", false).await.unwrap();
        let source = GitRepo::clone(&gitea.clone_url_with_token("acme", "citation")).await.unwrap();
        let app =
            SampleApp::over(&stage, AppOptions { hook: false, ..AppOptions::named("citation") }, source);
        app.write_source("first").await.unwrap();
        let github = RecordedGithub::start().await.unwrap();
        stage.let_make_repositories("atlas").await.unwrap();
        Self { stage, app, github }
    }

    async fn register(&self, more: &str) {
        let text = self.app.registration().unwrap().replace("branch: main", &format!("branch: main{more}"));
        let apps = self.stage.clone_apps().await.unwrap();
        apps.write("apps/citation/app.yaml", text).await.unwrap();
        apps.commit("Register citation").await.unwrap();
        apps.push().await.unwrap();
    }

    /// A push to what is mirrored.
    async fn push(&self, message: &str) -> String {
        self.app.push(message).await.unwrap();
        self.github.push(UPSTREAM, "main", &self.app.source).await.unwrap()
    }

    /// Runs a command as the job does that may reach GitHub.
    async fn mirror(&self, args: &[&str]) -> (i32, Value) {
        let (api, clones) = (self.github.url(), self.stage.bed.gitea().base_url());
        let env = [
            ("FABRIQUE_GITHUB__URL", api.as_str()),
            ("FABRIQUE_GITHUB__CLONE_URL", &clones),
            ("FABRIQUE_GITHUB__PATIENCE", "45s"),
        ];
        let args = [&["mirror", "-o", "json"], args].concat();
        let (code, out, err) = self.stage.try_command_with(&env, &args).await.unwrap();
        (code, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {code} {out}{err}")))
    }

    async fn synced(&self) -> Value {
        let (code, synced) = self.mirror(&["sync"]).await;
        assert_eq!(code, 0, "{synced:#}");
        synced
    }

    async fn made(&self) {
        let (code, made) = self.mirror(&["ensure"]).await;
        assert_eq!((code, &made["mirrors"][0]["result"]), (0, &"created".into()), "{made:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_is_built_once_its_checks_passed_on_github() {
    let world = Box::pin(Mirrored::start()).await;
    world.register(&format!(", github: {UPSTREAM}, checks: [ci]")).await;
    let _fabrique = world.stage.all().await.unwrap();
    let first = world.push("first").await;
    world.made().await;

    world.synced().await;
    world.stage.decided("citation", "ci did not run").await.unwrap();
    let why = world.stage.json(&["why", "citation"]).await.unwrap();
    assert_eq!(why["upstream"]["head"], first.as_str(), "{why:#}");
    assert!(world.stage.builds("citation").await.unwrap().is_empty(), "{why:#}");

    world.github.check_run(UPSTREAM, &first, ("ci", "completed", Some("success")));
    world.synced().await;
    world.stage.deployed(&world.app, &first).await.unwrap();

    // The next one fails: it stays where it is, and says why.
    let second = world.push("second").await;
    world.github.check_run(UPSTREAM, &second, ("ci", "completed", Some("failure")));
    let synced = world.synced().await;
    assert_eq!(synced["mirrors"][0]["apps"][0]["passed"], first.as_str(), "{synced:#}");
    world.stage.decided("citation", "ci did not pass (failure)").await.unwrap();
    let builds = world.stage.builds("citation").await.unwrap();
    assert!(builds.iter().all(|build| build.revision == first), "{builds:?}");
    let (code, status) = world.mirror(&["status"]).await;
    assert_eq!((code, &status["apps"][0]["trouble"]), (0, &Value::Null), "{status:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_clone_and_a_fetch_that_no_webhook_told_of_are_found_by_the_sweep() {
    let world = Box::pin(Mirrored::start()).await;
    world.register(&format!(", github: {UPSTREAM}")).await;
    let _fabrique = world.stage.worker().await.unwrap();
    let first = world.push("first").await;
    world.made().await;
    assert_eq!(world.stage.wanted("citation").await.unwrap(), 0, "a first clone wakes nobody");
    let sweep = world.stage.json(&["reconcile", "--once"]).await.unwrap();
    assert_eq!(sweep["woken"][0]["app"], "citation", "{sweep:#}");
    world.stage.deployed(&world.app, &first).await.unwrap();
    world.stage.status_becomes(&world.app, &first, "success").await.unwrap();

    let second = world.push("second").await;
    let gitea = world.stage.bed.gitea();
    gitea.api("POST", "/repos/atlas/citation/mirror-sync", None).await.unwrap();
    wait_until("Gitea to fetch", LONG, || async {
        let head = gitea.head("atlas", "citation", "main").await.ok()??;
        (head == second).then_some(())
    })
    .await
    .unwrap();
    world.stage.json(&["reconcile", "--once"]).await.unwrap();
    world.stage.deployed(&world.app, &second).await.unwrap();
}
