//! That a push reaches Argo CD and is believed, and that one from a stranger is not.
//!
//! Gitea does not tell what became of a delivery. So what it leads to is looked at: Argo CD marks what watches the branch.

use std::time::Duration;

use fabrique_ports::PortResult;
use fabrique_ports::setup::{DeployerDoor, DeployerInside};
use secrecy::SecretString;
use tokio::time::Instant;

use super::plan::HookTo;
use super::report::{DELIVERY, SetupReport};
use super::{Installation, PAUSE, Place, patiently, vault, work};
use crate::exit::Exit;

/// How long one delivery is waited for before another is sent: it may have come before Argo CD knew of the probe.
const ONE_DELIVERY: Duration = Duration::from_secs(5);

/// Passes the gate, or reports why not.
pub(super) async fn prove(
    of: &Installation<'_>,
    door: &dyn DeployerDoor,
    limit: Duration,
    report: &mut SetupReport,
) -> Option<()> {
    let secret = match of.wanted.hooks.get(&HookTo::Deployer).map(|hook| &hook.secret) {
        Some(Place::Given(secret)) => Some(secret.clone()),
        Some(Place::File(path)) => report.take(DELIVERY, vault::read(path))?,
        None => None,
    };
    let Some(secret) = secret else {
        report.failed(DELIVERY, "there is no secret", Exit::Findings);
        return None;
    };
    // Argo CD begins anew when its secret changes.
    let stranger = work::drawn(of.ambient);
    let refuses = eventually(limit, || async { Ok(!door.takes(&stranger).await?) }).await;
    if !report.take(DELIVERY, refuses)? {
        let what = "Argo CD takes what a stranger signed: put the secret of init.argocd_secret_file into argocd-secret as \
                    webhook.gogs.secret, by which it checks Gitea's deliveries";
        report.failed(DELIVERY, what, Exit::Findings);
        return None;
    }
    let takes = eventually(limit, || door.takes(&secret)).await;
    if !report.take(DELIVERY, takes)? {
        let what = "Argo CD refuses what the secret of init.argocd_secret_file signed: webhook.gogs.secret of argocd-secret \
                    is another";
        report.failed(DELIVERY, what, Exit::Findings);
        return None;
    }
    let Some(inside) = of.inside else {
        report.unproven(
            DELIVERY,
            "Argo CD takes the secret; whether Gitea reaches it shows with init.kubernetes",
        );
        return Some(());
    };
    let told = through_gitea(of, inside, secret, limit).await;
    let removed = patiently(limit, || inside.remove_probe()).await;
    if !report.take(DELIVERY, told)? {
        let what = format!(
            "no delivery of Gitea led to anything: does Gitea reach the address of webhook #1, does [webhook] \
             ALLOWED_HOST_LIST allow it, and is {} on Gitea's own ROOT_URL?",
            of.wanted.deployer_url
        );
        report.failed(DELIVERY, &what, Exit::Findings);
        return None;
    }
    report.take(DELIVERY, removed)?;
    report.passed(DELIVERY, "accepted, and a stranger's is not");
    Some(())
}

/// Has Gitea send until Argo CD shows that it was told.
async fn through_gitea(
    of: &Installation<'_>,
    inside: &dyn DeployerInside,
    secret: SecretString,
    limit: Duration,
) -> PortResult<bool> {
    let wanted = &of.wanted;
    let url = wanted.hooks.get(&HookTo::Deployer).map(|hook| hook.url.as_str());
    let hooks = (of.hooks)(secret);
    let deadline = Instant::now() + limit;
    inside.place_probe(&wanted.deployer_url, &wanted.branch).await?;
    while Instant::now() < deadline {
        let all = hooks.hooks(&wanted.repo).await?;
        let Some(hook) = all.into_iter().find(|hook| Some(hook.url.as_str()) == url) else {
            return Ok(false);
        };
        hooks.test_delivery(&wanted.repo, hook.id).await?;
        if eventually(ONE_DELIVERY, || inside.probe_was_told()).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Asks until it is so, or for as long as may be waited; the last answer counts.
async fn eventually<F: Future<Output = PortResult<bool>>>(
    limit: Duration,
    ask: impl Fn() -> F,
) -> PortResult<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let answer = ask().await;
        let final_one = match &answer {
            Ok(so) => *so,
            Err(error) => !error.transient(),
        };
        if final_one || Instant::now() + PAUSE >= deadline {
            return answer;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
