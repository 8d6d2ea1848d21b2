//! An app that needs another one waits for it, says so, and goes on by itself.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use fabrique_bed::wait_until;
use fabrique_stage::{AppOptions, Composition, MANIFEST, SampleApp, Stage};

use crate::failure::Stopped;
use crate::run::Steps;
use crate::story::{self, APP, Push, described};

/// The app that needs [`APP`].
pub(crate) const NEEDS: &str = "mediawatch";
/// What the cluster offers: nothing but places to run, which is all that the demo's apps ask for.
pub(crate) const CONTRACT: &str = "apiVersion: fabrique/v1
kind: Contract
version: 1
accepts: [1]
endpoints:
  gitea: http://gitea.example:3000
  argocd: https://argocd.example
  registry: registry.example:80
  nats: nats://nats.example:4222
environments: { prod: {} }
";
/// How long the app may take to be deployed once nothing keeps it.
const DEPLOYED: Duration = Duration::from_secs(60);

/// Writes what an app declares into its repository; commits nothing.
pub(crate) async fn declare(app: &SampleApp, ready: bool, needs: &[&str]) -> Result<()> {
    let name = &app.options.name;
    let needs = if needs.is_empty() {
        String::new()
    } else {
        format!("dependsOn: {{ codeLocations: [{}] }}\n", needs.join(", "))
    };
    let text = format!("codeLocation: {name}\nready: {ready}\ncontractVersion: 1\n{needs}");
    app.source.write(MANIFEST, text).await
}

/// Pushes the registration of an app that declares what it needs to `cluster/apps`, with `more` files beside it.
pub(crate) async fn register(stage: &Stage, app: &SampleApp, more: &[(&str, &str)]) -> Result<()> {
    let (name, plain) = (&app.options.name, app.registration()?);
    let declared = plain.replacen("branch: main }", &format!("branch: main, declaration: {MANIFEST} }}"), 1);
    ensure!(declared != plain, "a registration without a source:\n{plain}");
    let apps = stage.clone_apps().await?;
    apps.write(&format!("apps/{name}/app.yaml"), declared).await?;
    for (file, text) in more {
        apps.write(file, text).await?;
    }
    apps.commit(&format!("Register {name}")).await?;
    apps.push().await
}

/// Tells it all.
pub(crate) async fn tell(steps: &Steps, stage: &Stage, first: &SampleApp) -> Result<(), Stopped> {
    let screen = steps.screen;
    screen.heading(&format!(
        "An app that needs another: {NEEDS} depends on {APP}, which says that it is not ready"
    ))?;
    let told = |app: &'static str, message: &'static str| move |push: &Push| described(app, push, message);
    steps.step("push", says(first, false), told(APP, "ready: false")).await?;
    let app = steps.step("app", create(stage), |_| {
        format!("atlas/{NEEDS}, whose declaration depends on {APP}; webhooks ensured")
    });
    let app = app.await?;
    let pushed = steps.step("push", story::push(&app, "Say hello"), told(NEEDS, "Say hello")).await?;
    let waits = steps.quietly("the app that waits", story::timeline(stage, NEEDS, &pushed)).await?;
    screen.text("")?;
    if waits.committed {
        let error = anyhow!("it did not wait for {APP}: {}", waits.end);
        return Err(Stopped::failed("the app that waits", error));
    }
    screen.text(&waits.end)?;
    screen.text("")?;

    steps.step("push", says(first, true), told(APP, "ready: true")).await?;
    let ready = Instant::now();
    let deployed = steps.quietly("the app that waited", deployed(stage, &pushed.revision)).await?;
    let (revision, took) = (story::short(&pushed.revision), ready.elapsed().as_secs_f32());
    screen.text("")?;
    screen.result(&format!("committed {NEEDS} {revision} {} in {took:.1} s", deployed.digest))?;
    Ok(())
}

/// The repository of the second app, its registration and its webhook. Nothing is pushed to it yet.
async fn create(stage: &Stage) -> Result<SampleApp> {
    let options = AppOptions::named(NEEDS);
    let source = stage.create_source("atlas", NEEDS, false).await?;
    let app = SampleApp::over(stage, options, source);
    app.write_source("first").await?;
    declare(&app, true, &[APP]).await?;
    register(stage, &app, &[]).await?;
    stage.command(&["hooks", "ensure"]).await?;
    story::invite(stage, "atlas", NEEDS).await?;
    Ok(app)
}

/// The first app's team says whether it is ready.
async fn says(app: &SampleApp, ready: bool) -> Result<Push> {
    declare(app, ready, &[]).await?;
    let revision = app.source.commit(&format!("Say ready: {ready}")).await?;
    app.source.push().await?;
    Ok(Push::of(revision))
}

/// What is deployed of the app once that is `revision`, which nothing but the other one's word kept from it.
async fn deployed(stage: &Stage, revision: &str) -> Result<Composition> {
    wait_until(&format!("{NEEDS} to be deployed"), DEPLOYED, || async {
        let there = stage.composition(NEEDS).await.ok()??;
        (there.revision == revision).then_some(there)
    })
    .await
}
