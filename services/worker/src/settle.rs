//! Picking up what an earlier holder left behind: intents without an outcome, builds without a worker,
//! compositions that the memory does not know.

use fabrique_core::app::App;
use fabrique_core::build::BuildInputs;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{Channel, EnvironmentName, RepoName, Revision};
use fabrique_core::memory::{Committed, Intent, Memory, Running};
use fabrique_core::time::Timestamp;
use fabrique_gitops::composition;
use fabrique_observer::Apps;
use fabrique_ports::PortResult;
use fabrique_ports::deployments::{CommitFate, Deployments};
use fabrique_ports::forge::Forge;
use fabrique_ports::records::BuildPhase;

use crate::config::Ports;
use crate::memory::AppMemory;

/// Brings the memory in line with the truth before anything is decided.
pub(crate) async fn settle(
    ports: &Ports,
    apps_repo: &RepoName,
    app: &App,
    apps: &Apps,
    memory: &AppMemory,
    (token, now): (u64, Timestamp),
) -> PortResult<()> {
    let before = memory.get().await;
    let abandoned = before.running.clone().filter(|running| running.token != token);
    // Closed before it is forgotten: whoever comes after a crash in between closes it again.
    if let Some(running) = &abandoned {
        close_abandoned(ports, running, &before, now).await?;
    }
    let fates = fates(ports, apps_repo, &before, &apps.commit).await?;
    let deployed = deployed_by_us(app, apps, &before);
    memory
        .update(|memory| {
            if memory.running.as_ref().is_some_and(|running| running.token != token) {
                memory.running = None;
            }
            for (environment, channel, intent, arrived) in &fates {
                let remembered = memory.channel_mut(environment, *channel);
                if remembered.intent.as_ref() == Some(intent) {
                    remembered.resolve_intent(*arrived);
                }
            }
            for (environment, shown) in &deployed {
                let remembered = memory.channel_mut(environment, Channel::Image);
                remembered.recognise(&shown.revision, shown.digest.as_ref());
                remembered.committed.get_or_insert_with(|| shown.clone());
            }
        })
        .await
        .map(drop)
}

/// Which intents arrived. One that the forge knows off the branch was pushed and removed by a person:
/// it counts as committed, so that it shows as taken back.
async fn fates(
    ports: &Ports,
    apps_repo: &RepoName,
    memory: &Memory,
    head: &Revision,
) -> PortResult<Vec<(EnvironmentName, Channel, Intent, bool)>> {
    let mut fates = Vec::new();
    for (environment, remembered) in &memory.environments {
        for channel in [Channel::Image, Channel::Infra] {
            let Some(intent) = remembered.channel(channel).intent.clone() else { continue };
            let arrived = match &intent.commit.commit {
                Some(commit) => {
                    let commit = (commit, &intent.base);
                    commit_arrived(ports.deployments.as_ref(), ports.forge.as_ref(), apps_repo, commit, head)
                        .await?
                }
                None => false,
            };
            fates.push((environment.clone(), channel, intent, arrived));
        }
    }
    Ok(fates)
}

/// Whether a commit whose push had no clear outcome was ever the branch's head. One that is off the branch was,
/// and was removed, if the forge has it; unless the branch went on from its base without it: then another
/// commit won the race, and the forge may have kept the objects of the loser.
pub(crate) async fn commit_arrived(
    deployments: &dyn Deployments,
    forge: &dyn Forge,
    apps_repo: &RepoName,
    (commit, base): (&Revision, &Revision),
    head: &Revision,
) -> PortResult<bool> {
    if deployments.fate(commit, head).await? == CommitFate::OnBranch {
        return Ok(true);
    }
    if head != base && deployments.fate(base, head).await? == CommitFate::OnBranch {
        return Ok(false);
    }
    forge.has_commit(apps_repo, commit).await
}

/// What compositions show as built by fabrique. The memory learns it where it knows of no commit: it was
/// lost, or the app is older than it.
fn deployed_by_us(app: &App, apps: &Apps, memory: &Memory) -> Vec<(EnvironmentName, Committed)> {
    app.environments
        .iter()
        .filter_map(|environment| {
            let composition = composition::load(&apps.tree, app, &environment.name).ok()??;
            let image = composition.image.deployed.filter(|image| image.build.is_some())?;
            let committed = Committed {
                commit: None,
                key: Some(BuildInputs::of(app, &image.revision, memory.rebuild).key()),
                revision: image.revision,
                digest: Some(image.digest),
            };
            Some((environment.name.clone(), committed))
        })
        .collect()
}

/// Ends the history of a build without a worker. One whose image is recorded may be adopted yet, and is
/// written as committed then.
async fn close_abandoned(
    ports: &Ports,
    running: &Running,
    memory: &Memory,
    now: Timestamp,
) -> PortResult<()> {
    let Some(mut entry) = ports.history.build(&running.build).await? else { return Ok(()) };
    if entry.phase.is_final() {
        return Ok(());
    }
    let built = memory.built.as_ref().filter(|built| built.build == running.build);
    let why = "its worker went away";
    entry.phase = match built {
        Some(built) => BuildPhase::NotCommitted { digest: built.digest.clone(), reason: why.to_owned() },
        None => BuildPhase::Failed { kind: FailureKind::Infrastructure, message: why.to_owned() },
    };
    entry.ended = Some(now);
    ports.history.put_build(&entry).await?;
    ports.logs.close_log(&running.build).await
}
