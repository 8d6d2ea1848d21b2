//! `seed`: brings apps up in one environment, from whatever is there to an Application that is synced and healthy.
//!
//! What is there is looked at, [`plan::plan`] says what is to come, and it is done by those who do it anyway: derived
//! secrets and webhooks by their own use cases, everything in `cluster/apps` by a worker, which is asked as `retry` and
//! `rebuild` ask it. What came of it is told by a second look. So a run that was interrupted anywhere is begun again, and one
//! over apps that are up changes nothing.
//!
//! A worker that builds commits too, so what the cluster has to hold before an app starts is done before one is asked
//! (docs/adr/0039).

pub mod guard;
mod look;
pub mod plan;
mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use fabrique_core::id::{AppName, BranchName, EnvironmentName, RepoName};
use fabrique_gitops::render::Settings;
use fabrique_ports::applications::Applications;
use fabrique_ports::bus::Command;
use fabrique_ports::forge::Hooks;
use fabrique_ports::secrets::{Derivation, DerivedSecrets};
use tokio::time::Instant;

use crate::declared;
use crate::error::OperatorError;
use crate::exit::Exit;
use crate::hooks::{self, HookResult, Watched};
use crate::operator::Operator;
use crate::secrets::{self, Outcome};
pub use guard::{Consent, Elsewhere, Known, Said};
use look::Look;
use plan::{Ask, CompositionSeen, DeployerSeen, ImageSeen, Plan, Stage, Stand};
pub use report::{Failures, SeedReport, Step, StepResult};

/// Between two looks at what a worker or Argo CD is at.
const PAUSE: Duration = Duration::from_secs(1);

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The apps.
    pub apps: Vec<AppName>,
    /// The environment.
    pub environment: EnvironmentName,
    /// Whether an image that is not there is not to be built.
    pub no_build: bool,
}

/// Webhook #2.
pub struct Webhooks<'a> {
    /// Who looks after it.
    pub port: &'a dyn Hooks,
    /// Where it delivers to, as the forge reaches it.
    pub url: String,
    /// `cluster/apps` and its branch that is deployed.
    pub apps: (&'a RepoName, &'a BranchName),
}

/// Whom it is done with.
pub struct Ground<'a> {
    /// For looks at apps and for commands to workers.
    pub operator: &'a Operator,
    /// For declarations.
    pub declared: &'a declared::Ports,
    /// What workers render with; nothing where they render nothing.
    pub settings: Option<&'a Settings>,
    /// Webhook #2.
    pub webhooks: Webhooks<'a>,
    /// The cluster's secrets, where a cluster is asked.
    pub secrets: Option<&'a dyn DerivedSecrets>,
    /// Argo CD, where a cluster is asked.
    pub deployer: Option<&'a dyn Applications>,
}

/// What is to come, with what it is done by.
pub struct Prepared {
    /// What is to come.
    pub plan: Plan,
    derivations: Vec<Derivation>,
    watched: Vec<Watched>,
}

/// Looks at what is there and says what is to come. Nothing is changed.
///
/// # Errors
/// When an app is not registered; when a peer that has to be asked does not answer.
pub async fn prepare(ground: &Ground<'_>, wish: &Wish) -> Result<Prepared, OperatorError> {
    let Look { seen, derivations, watched } = look::look(ground, wish).await?;
    Ok(Prepared { plan: plan::plan(&seen, wish.no_build), derivations, watched })
}

/// How it is carried out.
pub struct Pace<'a> {
    /// How long all of it may take.
    pub limit: Duration,
    /// Who asks, for workers' records.
    pub caller: &'a str,
    /// Hears what is waited for.
    pub tell: &'a (dyn Fn(String) + Send + Sync),
}

/// Does what was prepared, if nothing stands in its way, and tells what came of it.
pub async fn carry_out(ground: &Ground<'_>, wish: &Wish, prepared: Prepared, pace: &Pace<'_>) -> SeedReport {
    let Prepared { plan: before, derivations, watched } = prepared;
    if before.is_refused() {
        return SeedReport::planned(&before, false);
    }
    let run = Run { ground, wish, pace, deadline: Instant::now() + pace.limit };
    let mut failures = Failures::default();
    (pace.tell)("secrets and webhooks".to_owned());
    run.own(&derivations, watched, &mut failures).await;
    if failures.is_empty() {
        run.workers(&before, &mut failures).await;
    }
    if failures.is_empty() {
        run.deployer(&mut failures).await;
    }
    // What was done is told although somebody does not answer any more.
    let after = prepare(ground, wish).await.map(|prepared| prepared.plan);
    let after = after.inspect_err(|error| tracing::warn!(%error, "what came of it was not looked at")).ok();
    SeedReport::ended(&before, after.as_ref(), &failures)
}

struct Run<'a> {
    ground: &'a Ground<'a>,
    wish: &'a Wish,
    pace: &'a Pace<'a>,
    deadline: Instant,
}

impl Run<'_> {
    /// What nobody else does: secrets, then webhooks.
    async fn own(&self, derivations: &[Derivation], watched: Vec<Watched>, failures: &mut Failures) {
        if let Some(port) = self.ground.secrets {
            let report = match secrets::derive(port, derivations, false).await {
                Ok(report) => report,
                Err(error) => {
                    let first = derivations.first().map(|one| one.target.to_string()).unwrap_or_default();
                    return failures.add(Stage::Secrets, first, error.to_string(), error.exit());
                }
            };
            for secret in report.secrets.iter().filter(|secret| secret.outcome == Outcome::Refused) {
                let why = secret.why.clone().unwrap_or_default();
                failures.add(Stage::Secrets, &secret.secret, why, Exit::Findings);
            }
        }
        if !failures.is_empty() {
            return;
        }
        let webhooks = &self.ground.webhooks;
        let ensured = hooks::ensure(webhooks.port, watched, &webhooks.url, false).await;
        for hook in ensured.repositories {
            if matches!(hook.result, HookResult::NoRepository | HookResult::Failed) {
                failures.add(Stage::Webhooks, hook.repo.to_string(), hook.detail, Exit::Findings);
            }
        }
    }

    /// Has workers bring everything into `cluster/apps`, and waits for that.
    async fn workers(&self, before: &Plan, failures: &mut Failures) {
        for (app, ask) in &before.asks {
            let command = match ask {
                Ask::Look => Command::Retry,
                Ask::Build => Command::Rebuild { no_cache: false },
                Ask::Nothing => continue,
            };
            match self.ground.operator.command(app.as_str(), command, self.pace.caller).await {
                Ok(outcome) if outcome.done => {}
                Ok(outcome) => failures.add(Stage::Image, app.as_str(), outcome.message, Exit::Findings),
                Err(error) => failures.add(Stage::Image, app.as_str(), error.to_string(), error.exit()),
            }
        }
        let mut pending: BTreeSet<&AppName> =
            before.asks.iter().map(|(app, _)| app).filter(|app| !failures.of_app(app)).collect();
        // One that fails ends the wait: the others go on without us, and the same command tells of them.
        while !pending.is_empty() && failures.is_empty() {
            let mut told = Vec::new();
            for app in pending.clone() {
                match look::stand(self.ground, self.wish, app).await {
                    Ok(stand) => match Progress::of(&stand) {
                        Progress::There => drop(pending.remove(app)),
                        Progress::UnderWay => told.push(format!("{app}: {}", stand.told)),
                        Progress::Stuck(why) => {
                            failures.add(stage_of(&stand), app.as_str(), why, Exit::Findings)
                        }
                    },
                    // A peer that is away for a moment is not the end of a build.
                    Err(error) if error.exit() == Exit::Unreachable => told.push(format!("{app}: {error}")),
                    Err(error) => {
                        failures.add(Stage::Composition, app.as_str(), error.to_string(), error.exit())
                    }
                }
            }
            if pending.is_empty() || !failures.is_empty() {
                return;
            }
            if !self.pause(&told).await {
                for app in &pending {
                    let prefix = format!("{app}: ");
                    let last = told.iter().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default();
                    let why = self.late(last);
                    failures.add(Stage::Composition, app.as_str(), why, Exit::Unreachable);
                }
                return;
            }
        }
    }

    /// Waits until Argo CD runs what is committed.
    async fn deployer(&self, failures: &mut Failures) {
        let renders = self.ground.settings.is_some_and(|of| of.destination(&self.wish.environment).is_some());
        if self.ground.deployer.is_none() || !renders {
            return;
        }
        let mut pending: BTreeSet<&AppName> = self.wish.apps.iter().collect();
        loop {
            let mut told = Vec::new();
            for app in pending.clone() {
                match look::deployer(self.ground, self.wish, app).await {
                    Ok(DeployerSeen::Running | DeployerSeen::Unasked) => drop(pending.remove(app)),
                    Ok(DeployerSeen::Behind(said)) => told.push((app, said)),
                    Err(error) if error.exit() == Exit::Unreachable => told.push((app, error.to_string())),
                    Err(error) => {
                        failures.add(Stage::Application, app.as_str(), error.to_string(), error.exit());
                        pending.remove(app);
                    }
                }
            }
            let lines: Vec<String> =
                told.iter().map(|(app, said)| format!("{app}: Argo CD says {said}")).collect();
            if pending.is_empty() {
                return;
            }
            if !self.pause(&lines).await {
                for (app, said) in told {
                    failures.add(Stage::Application, app.as_str(), self.late(&said), Exit::Unreachable);
                }
                return;
            }
        }
    }

    /// Says what is waited for and waits a little; not when the time is over.
    async fn pause(&self, told: &[String]) -> bool {
        (self.pace.tell)(told.join("; "));
        let in_time = Instant::now() + PAUSE < self.deadline;
        if in_time {
            tokio::time::sleep(PAUSE).await;
        }
        in_time
    }

    fn late(&self, last: &str) -> String {
        let limit = self.pace.limit.as_secs();
        format!("not there after {limit} s: {last}; it may still come, and the same command goes on")
    }
}

/// What becomes of an app that a worker is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Progress {
    There,
    UnderWay,
    Stuck(String),
}

impl Progress {
    fn of(stand: &Stand) -> Self {
        match (&stand.image, &stand.composition) {
            (ImageSeen::There(_), CompositionSeen::There(_)) => Progress::There,
            (ImageSeen::Nothing(why), _) => Progress::Stuck(why.clone()),
            _ => match stand.stop.as_ref().or(stand.used_up.as_ref()) {
                Some(why) => Progress::Stuck(why.clone()),
                None => Progress::UnderWay,
            },
        }
    }
}

/// The step that is not done yet.
fn stage_of(stand: &Stand) -> Stage {
    match stand.image {
        ImageSeen::There(_) => Stage::Composition,
        ImageSeen::UnderWay(_) | ImageSeen::Missing(_) | ImageSeen::Lost(_) | ImageSeen::Nothing(_) => {
            Stage::Image
        }
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::{Digest, Revision};

    use super::*;

    fn stand(image: ImageSeen, composition: CompositionSeen) -> Stand {
        Stand { target: None, image, composition, stop: None, used_up: None, told: String::new() }
    }

    #[test]
    fn an_app_is_waited_for_until_it_is_there_or_nobody_is_on_it() {
        let revision = Revision::parse(&"1b".repeat(20)).unwrap();
        let there = || ImageSeen::There(Digest::of(b"image"));
        let (missing, shown) = (ImageSeen::Missing(revision.clone()), CompositionSeen::There(revision));
        assert_eq!(Progress::of(&stand(there(), shown.clone())), Progress::There);
        assert_eq!(Progress::of(&stand(there(), CompositionSeen::ToCome)), Progress::UnderWay);
        assert_eq!(Progress::of(&stand(missing.clone(), CompositionSeen::ToCome)), Progress::UnderWay);
        let lost = ImageSeen::Lost(Digest::of(b"lost"));
        assert_eq!(
            Progress::of(&stand(lost, shown)),
            Progress::UnderWay,
            "it is shown, and nobody can run it"
        );
        for (stop, used_up) in [(Some("held"), None), (None, Some("dead letter"))] {
            let mut stuck = stand(missing.clone(), CompositionSeen::ToCome);
            (stuck.stop, stuck.used_up) = (stop.map(str::to_owned), used_up.map(str::to_owned));
            assert!(matches!(Progress::of(&stuck), Progress::Stuck(_)));
            assert_eq!(stage_of(&stuck), Stage::Image);
        }
    }
}
