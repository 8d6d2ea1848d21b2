//! Gate 5: two receivers and two workers, of which one is killed at a time while many push.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fabrique_scenarios::{Installation, SampleApp, until, verdicts};

use crate::gates::{Gate, Passed, conclude, fresh};
use crate::replayed;

pub(crate) static GATE: Gate = Gate::new("5");

const TEAMS: usize = 4;
const PUSHES: usize = 5;
/// All of it, on two daemons, with every second build disturbed.
const ALL: Duration = Duration::from_mins(5);

pub(crate) async fn passed() -> Passed {
    GATE.pass(replayed::passed(), play).await
}

/// An app and what was pushed to it, oldest first.
struct Team {
    app: SampleApp,
    pushed: Vec<String>,
}

async fn play(installation: &'static Installation) -> Result<()> {
    scale(installation, 2).await?;
    let played = pushed_and_killed(installation).await;
    scale(installation, 1).await?;
    played
}

async fn pushed_and_killed(installation: &'static Installation) -> Result<()> {
    let mut teams = Vec::new();
    for number in 0..TEAMS {
        let (app, first) = SampleApp::create(installation, &fresh(&format!("team-{number}"))).await?;
        teams.push(Team { app, pushed: vec![first] });
    }
    // What a receiver refuses, because it is killed or too slow, Gitea never sends again.
    installation.job("reconciler").await?;
    for team in &teams {
        installation.deployed(&team.app, &team.pushed[0]).await?;
    }
    for round in 0..PUSHES {
        for team in &mut teams {
            team.pushed.push(team.app.push(&format!("push {round}")).await?);
        }
        let role = if round % 2 == 0 { "worker" } else { "receiver" };
        kill_one(installation, role).await?;
        installation.rolled_out(role).await?;
    }
    installation.job("reconciler").await?;
    for team in &teams {
        let newest = team.pushed.last().context("no push")?;
        until(&format!("the newest of {}", team.app.name), ALL, async || {
            installation.deployed(&team.app, newest).await
        })
        .await?;
    }
    for team in &teams {
        installation.at_rest(&team.app, 0).await?;
    }
    let deployments = installation.deployments().await?;
    verdicts::nothing_twice(&deployments)?;
    for team in &teams {
        verdicts::newest_last(&deployments, &team.app.name, &team.pushed)?;
    }
    installation.no_orphans().await
}

async fn scale(installation: &Installation, workers: u32) -> Result<()> {
    installation.kubectl(&["scale", "deployment/worker", &format!("--replicas={workers}")]).await?;
    installation.rolled_out("worker").await
}

/// Takes one pod of a role away without a chance to say goodbye.
async fn kill_one(installation: &Installation, role: &str) -> Result<()> {
    let selector = format!("app.kubernetes.io/component={role}");
    let pods = installation.list(fabrique_scenarios::OWN, "pods", &selector).await?;
    let name = pods.first().and_then(|pod| pod["metadata"]["name"].as_str()).context("no pod to kill")?;
    installation.kubectl(&["delete", "pod", name, "--grace-period=0", "--force"]).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "takes minutes on two cores: ./just scenarios"]
async fn gate_5_many_pushes_while_receivers_and_workers_are_killed_lose_nothing_and_double_nothing() {
    conclude(passed().await);
}
