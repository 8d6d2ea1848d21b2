//! How most journeys begin: everything runs, and one app is deployed.

use fabrique_bed::{GitRepo, wait_until};
use fabrique_core::build::BuildInputs;
use fabrique_core::id::{BuildKey, RelPath};
use fabrique_gitops::{Rules, registration};
use fabrique_stage::{AppOptions, Fabrique, SampleApp, Stage, StageBuilder};
use serde_json::json;

use crate::LONG;

/// A stage on which everything runs and one app has made its first push.
pub(crate) struct Scene {
    /// `fabrique all`; first, because fields drop in order and it must go before its peers.
    pub(crate) fabrique: Fabrique,
    /// The app.
    pub(crate) app: SampleApp,
    /// The revision of its first push, built and, where it has an environment, deployed.
    pub(crate) first: String,
    /// Where it all happens. `cluster/apps` has its webhook.
    pub(crate) stage: Stage,
    /// The head of `cluster/apps` when it got its webhook.
    unheard: Option<String>,
}

impl Scene {
    /// With the usual settings.
    pub(crate) async fn open(options: AppOptions) -> Self {
        Box::pin(Self::open_on(Stage::builder(), options)).await
    }

    /// On a stage as described.
    pub(crate) async fn open_on(builder: StageBuilder, options: AppOptions) -> Self {
        let (stage, fabrique) = running(builder).await;
        // Told by hand until it is accepted: a receiver that hears of a repository for the first time on a busy
        // machine may answer 503, and Gitea does not try again.
        let app = SampleApp::create(&stage, AppOptions { hook: false, ..options }).await.unwrap();
        let first = app.push("first").await.unwrap();
        let repo = format!("atlas/{}", app.options.repo);
        wait_until("the first push to be accepted", LONG, || async {
            let (status, _) = stage.deliver_push(&repo, &"0".repeat(40), &first).await.ok()?;
            (status == 202).then_some(())
        })
        .await
        .unwrap();
        if app.options.deployed {
            stage.deployed(&app, &first).await.unwrap();
        }
        stage.status_becomes(&app, &first, "success").await.unwrap();
        stage.settled(&app.options.name, 0).await.unwrap();
        stage.hook("atlas", &app.options.repo).await.unwrap();
        let unheard = head_of_apps(&stage).await;
        stage.hook("cluster", "apps").await.unwrap();
        Self { fabrique, app, first, stage, unheard }
    }

    /// The app's name.
    pub(crate) fn name(&self) -> &str {
        &self.app.options.name
    }

    /// Does something and waits until the app was woken by it and has settled. The forge tells late of what was
    /// committed before: that wake has to be past, or it would be taken for this one.
    pub(crate) async fn settles_after<T>(&self, what: impl Future<Output = T>) -> T {
        let head = head_of_apps(&self.stage).await;
        if let Some(head) = head.filter(|head| Some(head) != self.unheard.as_ref()) {
            self.stage.delivered("cluster", "apps", &head).await.unwrap();
        }
        let since = self.stage.wanted(self.name()).await.unwrap();
        let done = what.await;
        self.stage.settled(self.name(), since).await.unwrap();
        done
    }

    /// What `prod` shows.
    pub(crate) async fn deployed_revision(&self) -> String {
        self.stage.composition(self.name()).await.unwrap().unwrap().revision
    }

    /// The source revisions of the automatic image commits, newest first.
    pub(crate) async fn committed(&self) -> Vec<String> {
        let commits = self.stage.image_commits(self.name()).await.unwrap();
        commits.into_iter().map(|commit| commit.revision).collect()
    }
}

/// A step that makes another image each time it is not taken from the cache.
pub(crate) const DIFFERS: &str = "RUN head -c 16 /dev/urandom > /different";

/// The key of a revision's build, as its app is registered and nobody asked for another.
pub(crate) fn key_of(app: &SampleApp, revision: &str) -> BuildKey {
    let path: RelPath = format!("apps/{0}/app.yaml", app.options.name).parse().unwrap();
    let text = app.registration().unwrap();
    let rules = Rules { registries: vec![app.image.split('/').next().unwrap().to_owned()] };
    let parsed = registration::parse(&path, &app.options.name, text.as_bytes(), &rules).unwrap();
    BuildInputs::of(&parsed, &revision.parse().unwrap(), 0).key()
}

/// An app whose image depends on one file only, its Dockerfile aside.
pub(crate) fn watching_the_message() -> AppOptions {
    AppOptions { watch: vec!["message".to_owned()], ..AppOptions::named("citation") }
}

/// How many pushes to `cluster/apps` the forge has answered.
pub(crate) fn pushes_to_apps(stage: &Stage) -> usize {
    let log = stage.bed.gitea().peer().log_tail(usize::MAX);
    let push = |line: &&str| line.contains("completed POST /cluster/apps.git/git-receive-pack");
    log.lines().filter(push).count()
}

/// Lets nobody push to `cluster/apps`, or everybody again who has the right to.
pub(crate) async fn protect_apps(stage: &Stage, protected: bool) {
    let (gitea, rules) = (stage.bed.gitea(), "/repos/cluster/apps/branch_protections");
    let rule = json!({ "rule_name": "main", "enable_push": false });
    if protected {
        gitea.api("POST", rules, Some(rule)).await.unwrap();
    } else {
        gitea.api("DELETE", &format!("{rules}/main"), None).await.unwrap();
    }
}

/// Has a worker look at `citation` again, whose target is `revision`, and sees that it pushes nothing although it could not be
/// written yet: `attempts` pushes were refused since there were `before`.
pub(crate) async fn look_is_no_attempt(stage: &Stage, revision: &str, before: usize, attempts: usize) {
    wait_until("the forge's log to tell of every attempt", LONG, || async {
        (pushes_to_apps(stage) >= before + attempts).then_some(())
    })
    .await
    .unwrap();
    let since = stage.wanted("citation").await.unwrap();
    stage.deliver_push("atlas/citation", &"0".repeat(40), revision).await.unwrap();
    stage.looked_at("citation", since).await.unwrap();
    assert_eq!(crate::unheard::sweep(stage).await, [], "it rests");
    assert_eq!(pushes_to_apps(stage), before + attempts, "a look pushed");
}

/// The deployment of an app's overlay, in its source.
const DEPLOYMENT: &str = "deploy/overlays/prod/deployment.yaml";

/// Scales an app out in its overlay, which is a change of the infra channel alone. Neither committed nor pushed.
pub(crate) async fn scale_out(source: &GitRepo) {
    rewrite_in(source, DEPLOYMENT, |text| {
        text.replace("spec:\n  selector", "spec:\n  replicas: 3\n  selector")
    })
    .await;
}

/// The same, committed and pushed: the revision.
pub(crate) async fn push_scaled_out(source: &GitRepo) -> String {
    scale_out(source).await;
    let revision = source.commit("Scale out").await.unwrap();
    source.push().await.unwrap();
    revision
}

async fn head_of_apps(stage: &Stage) -> Option<String> {
    stage.bed.gitea().head("cluster", "apps", "main").await.unwrap()
}

/// A stage on which `fabrique all` runs and nothing is registered.
pub(crate) async fn running(builder: StageBuilder) -> (Stage, Fabrique) {
    let stage = crate::started(builder).await;
    let fabrique = stage.all().await.unwrap();
    (stage, fabrique)
}

/// Rewrites a file of `cluster/apps` as a person does, and pushes; the commit.
pub(crate) async fn person_rewrites(
    stage: &Stage,
    path: &str,
    rewrite: impl FnOnce(String) -> String,
) -> String {
    let apps = stage.clone_apps().await.unwrap();
    rewrite_in(&apps, path, rewrite).await;
    let commit = apps.commit(&format!("Edit {path} by hand")).await.unwrap();
    apps.push().await.unwrap();
    commit
}

/// Rewrites a file of a clone.
///
/// # Panics
/// When nothing changes: the journey would prove nothing.
pub(crate) async fn rewrite_in(clone: &GitRepo, path: &str, rewrite: impl FnOnce(String) -> String) {
    let before = clone.read(path).await.unwrap();
    let after = rewrite(before.clone());
    assert_ne!(before, after, "{path} has nothing to be rewritten");
    clone.write(path, after).await.unwrap();
}
