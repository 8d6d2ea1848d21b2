//! The arms of a push: fabrique, the floor, and a script, each with a repository and a deployment repository of
//! its own on the same servers.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::{GitRepo, wait_until};
use fabrique_stage::{AppOptions, Fabrique, SampleApp, Stage};
use tokio::process::Command;

use crate::hook::Hook;
use crate::process;
use crate::reference::Reference;
use crate::stats::seconds;

/// A build, or a script, ends well before this or hangs.
const LONGEST: Duration = Duration::from_secs(60);
const SCRIPT: &str = include_str!("../script/deploy.sh");

/// One way from a push to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arm {
    Fabrique,
    Floor,
    Script,
}

/// What a developer pushes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    /// A new commit that changes the file of the last `COPY`.
    Layer(&'a str),
    /// A revision that was built before, over whatever is there.
    Back(&'a str),
}

/// The seconds that one run took, in all and in parts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    /// From the end of `git push` to the commit.
    pub(crate) total: f64,
    /// From the end of `git push` to the webhook. It may have come first.
    pub(crate) webhook: f64,
    /// The bare build.
    pub(crate) build: f64,
    /// The bare push of the commit.
    pub(crate) push: f64,
}

/// All arms, ready.
pub(crate) struct Arena {
    stage: Stage,
    fabrique: Fabrique,
    app: SampleApp,
    apps: Reference,
    floor: Floor,
    script: Script,
}

impl Arena {
    /// Starts the servers and makes every arm's repositories.
    pub(crate) async fn start(binary: &Path) -> Result<Self> {
        let stage = Stage::builder().start(binary).await?;
        let app = SampleApp::create(&stage, AppOptions::named("citation")).await?;
        // As in production: fabrique's own commits come back to it.
        stage.hook("cluster", "apps").await?;
        let fabrique = stage.all().await?;
        let floor = Box::pin(Floor::create(&stage)).await?;
        let script = Box::pin(Script::create(&stage)).await?;
        let apps = Reference::of(&stage, "apps");
        Ok(Self { stage, fabrique, app, apps, floor, script })
    }

    /// The developers' clone of an arm.
    pub(crate) fn source(&self, arm: Arm) -> &SampleApp {
        match arm {
            Arm::Fabrique => &self.app,
            Arm::Floor => &self.floor.source,
            Arm::Script => &self.script.source,
        }
    }

    /// One push through one arm, until it is quiet again. `build` is for the floor, which has to be told
    /// whether to build.
    pub(crate) async fn run(&mut self, arm: Arm, change: Change<'_>, build: bool) -> Result<Sample> {
        match arm {
            Arm::Fabrique => self.fabrique(change).await.context("through fabrique"),
            Arm::Floor => self.floor.run(&self.stage, change, build).await.context("through bare tools"),
            Arm::Script => self.script.run(change).await.context("through the script"),
        }
    }

    /// Copies fabrique's log.
    pub(crate) fn keep_log(&self, folder: &Path) -> Result<()> {
        process::keep_log(&self.fabrique.peer, folder)
    }

    async fn fabrique(&self, change: Change<'_>) -> Result<Sample> {
        let name = &self.app.options.name;
        let (before, wanted) = (self.apps.read()?, self.stage.wanted(name).await?);
        let (revision, pushed) = apply(&self.app, change).await?;
        let moved = self.apps.moved(&before).await?;
        let commit = self.apps.read()?;
        self.quiet(&commit, wanted).await?;
        let shown = self.stage.composition(name).await?.context("no composition")?;
        ensure!(shown.revision == revision, "{} was deployed instead of {revision}", shown.revision);
        Ok(Sample { total: seconds(pushed, moved), ..Sample::default() })
    }

    /// Waits until fabrique has heard of its own commit and has nothing left to do, so that it does not work
    /// into the next arm's time.
    async fn quiet(&self, commit: &str, wanted: u64) -> Result<()> {
        let heard = wait_until("the webhook of the commit to come back", LONGEST, || async {
            let deliveries = self.stage.events("fabrique.delivery.cluster.apps").await.ok()?;
            deliveries.iter().any(|delivery| delivery["after"] == commit).then_some(())
        });
        heard.await?;
        self.stage.settled(&self.app.options.name, wanted).await
    }
}

/// What no design can go below: the webhook, a bare build, a bare push.
struct Floor {
    source: SampleApp,
    hook: Hook,
    /// A warm clone of the deployment repository.
    clone: GitRepo,
    branch: Reference,
}

impl Floor {
    async fn create(stage: &Stage) -> Result<Self> {
        let (source, hook) = hooked(stage, "floor").await?;
        stage.bed.gitea().create_repo("cluster", "apps-floor", true).await?;
        let clone = GitRepo::clone(&stage.bed.gitea().clone_url_with_token("cluster", "apps-floor")).await?;
        Ok(Self { source, hook, clone, branch: Reference::of(stage, "apps-floor") })
    }

    async fn run(&mut self, stage: &Stage, change: Change<'_>, build: bool) -> Result<Sample> {
        let before = self.branch.read()?;
        self.clone.write("image", format!("{change:?} after {before}\n")).await?;
        self.clone.commit("Deploy").await?;

        let (revision, pushed) = apply(&self.source, change).await?;
        let delivered = self.hook.delivered(&revision).await?.at;
        let building = Instant::now();
        if build {
            self.build(stage, &revision).await?;
        }
        let pushing = Instant::now();
        let (moved, ()) = tokio::try_join!(self.branch.moved(&before), self.clone.push())?;
        Ok(Sample {
            total: seconds(pushed, moved),
            webhook: seconds(pushed, delivered),
            build: seconds(building, pushing),
            push: seconds(pushing, moved),
        })
    }

    /// The cheapest spelling that `buildctl` has: that commit alone, pushed by digest.
    async fn build(&self, stage: &Stage, revision: &str) -> Result<()> {
        let source = stage.bed.gitea().clone_url("atlas", &self.source.options.repo);
        let context = format!("context={source}?checksum={revision}&fetch-by-commit=true");
        let output = format!("type=image,name={},push=true,push-by-digest=true", self.source.image);
        let mut command = stage.bed.buildkit(0).buildctl();
        command.args(["build", "--frontend", "dockerfile.v0", "--opt", &context, "--output", &output]);
        succeed("buildctl", command).await
    }
}

/// What people write instead.
struct Script {
    source: SampleApp,
    hook: Hook,
    branch: Reference,
    file: PathBuf,
    env: Vec<(&'static str, String)>,
}

impl Script {
    async fn create(stage: &Stage) -> Result<Self> {
        let (source, hook) = hooked(stage, "script").await?;
        let gitea = stage.bed.gitea();
        gitea.create_repo("cluster", "apps-script", true).await?;
        let apps = GitRepo::clone(&gitea.clone_url_with_token("cluster", "apps-script")).await?;
        let manifest = format!("images:\n  - name: {}\n    digest: none\n", source.image);
        apps.write("apps/script/prod/kustomization.yaml", manifest).await?;
        apps.commit("Add the script's app").await?;
        apps.push().await?;
        let folder = stage.bed.folder().join("script");
        std::fs::create_dir(&folder)?;
        let file = folder.join("deploy.sh");
        std::fs::write(&file, SCRIPT)?;
        let env = vec![
            ("SOURCE", gitea.clone_url("atlas", "script")),
            ("APPS", gitea.clone_url_with_token("cluster", "apps-script")),
            ("APP", "script".to_owned()),
            ("IMAGE", source.image.clone()),
            ("BUILDCTL", stage.bed.buildctl().display().to_string()),
            ("BUILDKIT", stage.bed.buildkit(0).unix_address()),
            ("WORK", folder.display().to_string()),
        ];
        Ok(Self { source, hook, branch: Reference::of(stage, "apps-script"), file, env })
    }

    async fn run(&mut self, change: Change<'_>) -> Result<Sample> {
        let before = self.branch.read()?;
        let (revision, pushed) = apply(&self.source, change).await?;
        let delivered = self.hook.delivered(&revision).await?.at;
        let mut command = Command::new("sh");
        command.arg(&self.file).arg(&revision).envs(self.env.iter().map(|(name, value)| (name, value)));
        let (moved, ()) = tokio::try_join!(self.branch.moved(&before), succeed("the script", command))?;
        let webhook = seconds(pushed, delivered);
        Ok(Sample { total: seconds(pushed, moved), webhook, ..Sample::default() })
    }
}

/// A repository like the app's, whose pushes are delivered to a webhook server of its own.
async fn hooked(stage: &Stage, name: &str) -> Result<(SampleApp, Hook)> {
    let repo = stage.create_source("atlas", name, false).await?;
    let source = SampleApp::over(stage, AppOptions::named(name), repo);
    source.write_source("first").await?;
    let hook = Hook::listen(Ipv4Addr::LOCALHOST.into(), stage.hook_secret()).await?;
    stage.bed.gitea().create_webhook("atlas", name, &hook.url, stage.hook_secret()).await?;
    Ok((source, hook))
}

/// Pushes a change. Returns the revision, and when `git push` had ended.
async fn apply(source: &SampleApp, change: Change<'_>) -> Result<(String, Instant)> {
    let revision = match change {
        Change::Layer(message) => source.push(message).await?,
        Change::Back(revision) => {
            let refspec = format!("{revision}:refs/heads/main");
            source.source.git(&["push", "--quiet", "--force", "origin", &refspec]).await?;
            revision.to_owned()
        }
    };
    Ok((revision, Instant::now()))
}

async fn succeed(what: &str, mut command: Command) -> Result<()> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LONGEST, command.output()).await;
    let output =
        output.with_context(|| format!("{what} hangs"))?.with_context(|| format!("starting {what}"))?;
    ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    Ok(())
}
