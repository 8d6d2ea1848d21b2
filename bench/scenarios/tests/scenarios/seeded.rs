//! Gate 1: repositories and webhooks.

use anyhow::{Context as _, Result, ensure};
use fabrique_scenarios::{Deployment, Installation, SampleApp, verdicts};
use tokio::sync::OnceCell;

use crate::gates::{Gate, conclude, fresh};

pub(crate) static GATE: Gate = Gate::new("1", |installation| Box::pin(play(installation)));
static APP: OnceCell<SampleApp> = OnceCell::const_new();

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

/// Both webhooks as Gitea has them, once sound, but for the time of the last delivery.
async fn hooks(installation: &Installation, app: &SampleApp) -> Result<[String; 2]> {
    let of_apps = installation.hooks("cluster/apps").await?;
    verdicts::hooked_once(&of_apps, &installation.cluster.argocd().webhook_url())?;
    verdicts::hooked_once(&of_apps, installation.hook_url())?;
    let of_source = installation.hooks(&app.repo()).await?;
    verdicts::hooked_once(&of_source, installation.hook_url())?;
    Ok([of_apps, of_source].map(|mut hooks| {
        for hook in hooks.as_array_mut().into_iter().flatten().filter_map(|hook| hook.as_object_mut()) {
            hook.remove("updated_at");
        }
        hooks.to_string()
    }))
}

#[tokio::test]
async fn gate_1_repositories_and_webhooks_are_made_and_a_replay_changes_nothing() {
    conclude(GATE.passed().await);
}
