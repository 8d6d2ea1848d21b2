//! Gate 5: two receivers and two workers, of which one is killed at a time while many push.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fabrique_scenarios::verdicts::Push;
use fabrique_scenarios::{Installation, SampleApp, until, verdicts};

use crate::gates::{Gate, conclude, fresh};

pub(crate) static GATE: Gate = Gate::new("5", |installation| Box::pin(play(installation)));

const TEAMS: usize = 10;
const PUSHES: usize = 5;
/// How long after the first push of a round one is killed: others are under way then, and more follow.
const INTO_THE_ROUND: Duration = Duration::from_secs(1);
/// All of it, on two daemons, with builds that are disturbed.
const ALL: Duration = Duration::from_mins(10);

/// An app and what was pushed to it, oldest first.
struct Team {
    app: SampleApp,
    /// Whether its webhooks are delivered here instead of by Gitea, which tells nobody how they were answered.
    by_hand: bool,
    pushes: Vec<Push>,
}

impl Team {
    /// Pushes, and delivers what Gitea would where that is done here. Who is refused does not try again, as Gitea
    /// does not.
    async fn push(&mut self, installation: &Installation, round: usize) -> Result<()> {
        let before = &self.pushes.last().context("no first push")?.revision;
        let revision = self.app.push(&format!("push {round}")).await?;
        let acknowledged = self.by_hand
            && matches!(installation.deliver_push(&self.app.repo(), before, &revision).await, Ok(202));
        self.pushes.push(Push { revision, acknowledged });
        Ok(())
    }
}

async fn play(installation: &'static Installation) -> Result<()> {
    scale(installation, 2).await?;
    let played = pushed_and_killed(installation).await;
    scale(installation, 1).await?;
    played
}

async fn pushed_and_killed(installation: &'static Installation) -> Result<()> {
    let mut teams = teams(installation).await?;
    for round in 0..PUSHES {
        let role = if round % 2 == 0 { "worker" } else { "receiver" };
        let pushes = async {
            for team in &mut teams {
                team.push(installation, round).await?;
            }
            anyhow::Ok(())
        };
        let kill = async {
            tokio::time::sleep(INTO_THE_ROUND).await;
            installation.kill9(role).await
        };
        tokio::try_join!(pushes, kill)?;
        installation.rolled_out(role).await?;
    }
    acknowledged_is_deployed(installation, &teams).await?;
    // What a receiver refused, because it was killed or too slow, comes with the sweep.
    installation.job("reconciler").await?;
    newest_everywhere(installation, &teams).await
}

/// Ten of them. Of every second one Gitea tells nobody.
async fn teams(installation: &Installation) -> Result<Vec<Team>> {
    let names: Vec<String> = (0..TEAMS).map(|number| fresh(&format!("team-{number}"))).collect();
    let created = SampleApp::create_all(installation, &names).await?;
    let mut teams = Vec::new();
    for (number, (app, first)) in created.into_iter().enumerate() {
        let by_hand = number % 2 == 1;
        if by_hand {
            installation.unhook(&app).await?;
        }
        teams.push(Team { app, by_hand, pushes: vec![Push { revision: first, acknowledged: false }] });
    }
    Ok(teams)
}

/// No sweep has run: what was answered with 202 was not forgotten by whoever was killed after.
async fn acknowledged_is_deployed(installation: &Installation, teams: &[Team]) -> Result<()> {
    let by_hand = || teams.iter().filter(|team| team.by_hand);
    let newest = by_hand().filter(|team| team.pushes.last().is_some_and(|push| push.acknowledged)).count();
    ensure!(newest > 0, "no newest push was acknowledged");
    for team in by_hand() {
        let name = &team.app.name;
        until(&format!("what was acknowledged of {name}"), ALL, async || {
            let deployed = installation.composition(name).await?.map(|composition| composition.revision);
            Ok(verdicts::acknowledged_is_deployed(&team.pushes, deployed.as_deref())?)
        })
        .await?;
    }
    Ok(())
}

async fn newest_everywhere(installation: &Installation, teams: &[Team]) -> Result<()> {
    for team in teams {
        let newest = team.pushes.last().context("no push")?;
        until(&format!("the newest of {}", team.app.name), ALL, async || {
            installation.deployed(&team.app, &newest.revision).await
        })
        .await?;
    }
    for team in teams {
        installation.at_rest(&team.app, 0).await?;
    }
    let deployments = installation.deployments().await?;
    verdicts::nothing_twice(&deployments)?;
    for team in teams {
        let pushed: Vec<String> = team.pushes.iter().map(|push| push.revision.clone()).collect();
        verdicts::newest_last(&deployments, &team.app.name, &pushed)?;
        let newest = pushed.last().context("no push")?;
        let deployment = verdicts::committed_once(&deployments, &team.app.name, newest)?;
        installation.runs_in_the_end(&team.app, deployment).await?;
    }
    installation.no_orphans().await
}

async fn scale(installation: &Installation, workers: u32) -> Result<()> {
    installation.kubectl(&["scale", "deployment/worker", &format!("--replicas={workers}")]).await?;
    installation.rolled_out("worker").await
}

#[tokio::test]
async fn gate_5_many_pushes_while_receivers_and_workers_are_killed_lose_nothing_and_double_nothing() {
    conclude(GATE.passed().await);
}
