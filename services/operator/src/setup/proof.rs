//! That a push reaches Argo CD and is believed, and that one from a stranger is not.
//!
//! Gitea does not tell what became of a delivery. So what it leads to is looked at: Argo CD marks what watches the branch.

use std::time::Duration;

use fabrique_ports::PortResult;
use fabrique_ports::setup::{DeployerDoor, DeployerInside};
use secrecy::SecretString;
use tokio::time::{Instant, timeout_at};

use super::plan::HookTo;
use super::report::{DELIVERY, SetupReport};
use super::{Installation, PAUSE, Place, Trouble, patiently, vault, work};
use crate::exit::Exit;

/// How long one delivery is waited for before another is sent: it may have come before Argo CD knew of the probe.
const ONE_DELIVERY: Duration = Duration::from_secs(5);

/// What is kept of the gate's time for removing the probe again.
const REMOVAL: Duration = Duration::from_secs(5);

/// Passes the gate, or reports why not. All of it ends at `deadline`.
pub(super) async fn prove(
    of: &Installation<'_>,
    door: &dyn DeployerDoor,
    deadline: Instant,
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
    let refuses = eventually(deadline, || async { Ok(!door.takes(&stranger).await?) }).await;
    if !report.take(DELIVERY, refuses)? {
        let what = "Argo CD takes what a stranger signed: put the secret of init.argocd_secret_file into argocd-secret as \
                    webhook.gogs.secret, by which it checks Gitea's deliveries";
        report.failed(DELIVERY, what, Exit::Findings);
        return None;
    }
    let takes = eventually(deadline, || door.takes(&secret)).await;
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
    let left = deadline.saturating_duration_since(Instant::now());
    let told = through_gitea(of, inside, secret, deadline - REMOVAL.min(left / 2)).await;
    let removed = patiently(deadline, || inside.remove_probe()).await;
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
    deadline: Instant,
) -> Result<bool, Trouble> {
    let wanted = &of.wanted;
    patiently(deadline, || inside.place_probe(&wanted.deployer_url, &wanted.branch)).await?;
    match deliver(of, inside, secret, deadline).await {
        // In the middle of one more delivery.
        Err(Trouble::Late(_)) => Ok(false),
        told => told,
    }
}

async fn deliver(
    of: &Installation<'_>,
    inside: &dyn DeployerInside,
    secret: SecretString,
    deadline: Instant,
) -> Result<bool, Trouble> {
    let wanted = &of.wanted;
    let url = wanted.hooks.get(&HookTo::Deployer).map(|hook| hook.url.as_str());
    let hooks = (of.hooks)(secret);
    while Instant::now() < deadline {
        let all = patiently(deadline, || hooks.hooks(&wanted.repo)).await?;
        let Some(hook) = all.into_iter().find(|hook| Some(hook.url.as_str()) == url) else {
            return Ok(false);
        };
        patiently(deadline, || hooks.test_delivery(&wanted.repo, hook.id)).await?;
        let another = Instant::now() + ONE_DELIVERY;
        while Instant::now() < another {
            if patiently(deadline, || inside.probe_was_told()).await? {
                return Ok(true);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(false)
}

/// Asks until it is so, or until `deadline`; the last answer counts.
async fn eventually<F: Future<Output = PortResult<bool>>>(
    deadline: Instant,
    ask: impl Fn() -> F,
) -> Result<bool, Trouble> {
    let mut last = None;
    loop {
        let Ok(answer) = timeout_at(deadline, ask()).await else {
            return last.unwrap_or_else(|| Err(Trouble::Late("an answer".to_owned())));
        };
        let final_one = match &answer {
            Ok(so) => *so,
            Err(error) => !error.transient(),
        };
        let answer = answer.map_err(Trouble::from);
        if final_one || Instant::now() + PAUSE >= deadline {
            return answer;
        }
        last = Some(answer);
        tokio::time::sleep(PAUSE).await;
    }
}
