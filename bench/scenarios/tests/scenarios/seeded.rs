//! Gate 1: repositories and webhooks.

use anyhow::{Context as _, Result, ensure};
use fabrique_scenarios::{Deployment, Installation, SampleApp, verdicts};
use tokio::sync::OnceCell;

use crate::gates::{Gate, Passed, conclude, fresh, installed};

pub(crate) static GATE: Gate = Gate::new("1");
static APP: OnceCell<SampleApp> = OnceCell::const_new();

pub(crate) async fn passed() -> Passed {
    GATE.pass(installed(), play).await
}

/// The app of the gates that need only one.
pub(crate) fn app() -> Result<&'static SampleApp> {
    APP.get().context("gate 1 makes the app")
}

async fn play(installation: &'static Installation) -> Result<()> {
    let (app, first) = SampleApp::create(installation, &fresh("citation")).await?;
    let composition = installation.deployed(&app, &first).await?;
    let deployments = installation.deployments().await?;
    let deployment = verdicts::committed_once(&deployments, &app.name, &first)?;
    ensure!(deployment.digest == composition.digest, "{deployment:?} is not {composition:?}");
    // The overlay is copied by a commit of its own.
    let head = installation.head().await?;
    installation.running(&app, &Deployment { commit: head, ..deployment.clone() }).await?;
    let before = hooks(installation, &app).await?;

    ensure!(installation.seed().await?.0.is_empty(), "a seed made anew what was there");
    installation.job("hooks").await?;
    let after = hooks(installation, &app).await?;
    ensure!(before == after, "the replay changed {before:?} to {after:?}");
    APP.set(app)?;
    Ok(())
}

/// Both webhooks as Gitea has them, once sound.
async fn hooks(installation: &Installation, app: &SampleApp) -> Result<[String; 2]> {
    let gitea = installation.cluster.gitea();
    let of_apps = gitea.api("GET", "/repos/cluster/apps/hooks", None).await?;
    verdicts::hooked_once(&of_apps, &installation.cluster.argocd().webhook_url())?;
    verdicts::hooked_once(&of_apps, installation.hook_url())?;
    let of_source = gitea.api("GET", &format!("/repos/{}/hooks", app.repo()), None).await?;
    verdicts::hooked_once(&of_source, installation.hook_url())?;
    Ok([of_apps.to_string(), of_source.to_string()])
}

#[tokio::test]
async fn gate_1_repositories_and_webhooks_are_made_and_a_replay_changes_nothing() {
    conclude(passed().await);
}
