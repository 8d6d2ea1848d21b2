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
mod root;

use std::collections::BTreeSet;
use std::time::Duration;

use fabrique_core::id::{AppName, BranchName, EnvironmentName, RepoName};
use fabrique_gitops::render::Settings;
use fabrique_ports::applications::Applications;
use fabrique_ports::bus::Command;
use fabrique_ports::forge::Hooks;
use fabrique_ports::secrets::{Derivation, DerivedSecrets};
use tokio::time::{Instant, timeout, timeout_at};

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
/// How long the last look may take, with what somebody who is away for a moment costs.
const LAST_LOOK: Duration = Duration::from_secs(30);

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
/// When an app is not registered; when a peer that has to be asked does not answer; when it takes longer than `limit`.
pub async fn prepare(ground: &Ground<'_>, wish: &Wish, limit: Duration) -> Result<Prepared, OperatorError> {
    let looking = timeout(limit, look::look(ground, wish)).await;
    let Look { seen, derivations, watched } = looking.unwrap_or(Err(OperatorError::Late(limit)))?;
    Ok(Prepared { plan: plan::plan(&seen, wish.no_build), derivations, watched })
}

/// How it is carried out.
pub struct Pace<'a> {
    /// How long all of it may take, but for a last look at what came of it.
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
    let derived = run.own(&derivations, watched, &mut failures).await;
    if failures.is_empty() {
        run.workers(&before, &mut failures).await;
    }
    if failures.is_empty() {
        run.deployer(derived, &mut failures).await;
    }
    let after = run.last_look().await;
    SeedReport::ended(&before, after.as_ref(), &failures)
}

struct Run<'a> {
    ground: &'a Ground<'a>,
    wish: &'a Wish,
    pace: &'a Pace<'a>,
    deadline: Instant,
}

impl Run<'_> {
    /// The same, until the time is over.
    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, OperatorError>>,
    ) -> Result<T, OperatorError> {
        timeout_at(self.deadline, work).await.unwrap_or(Err(OperatorError::Late(self.pace.limit)))
    }

    /// What was done is told although somebody does not answer for a moment.
    async fn last_look(&self) -> Result<Plan, OperatorError> {
        let until = Instant::now() + LAST_LOOK;
        loop {
            match prepare(self.ground, self.wish, until - Instant::now()).await {
                Ok(prepared) => return Ok(prepared.plan),
                Err(error) if error.exit() == Exit::Unreachable && Instant::now() + PAUSE < until => {
                    (self.pace.tell)(format!("a last look: {error}"));
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What nobody else does: secrets, then webhooks. Whether a secret is another one now.
    async fn own(&self, derivations: &[Derivation], watched: Vec<Watched>, failures: &mut Failures) -> bool {
        let mut derived = false;
        if let Some(port) = self.ground.secrets {
            match self.in_time(secrets::derive(port, derivations, false)).await {
                Ok(report) => {
                    derived = report.changed > 0;
                    for secret in report.secrets.iter().filter(|secret| secret.outcome == Outcome::Refused) {
                        let why = secret.why.clone().unwrap_or_default();
                        failures.add(Stage::Secrets, &secret.secret, why, secret.exit);
                    }
                }
                Err(error) => {
                    let first = derivations.first().map(|one| one.target.to_string()).unwrap_or_default();
                    failures.add(Stage::Secrets, first, error.to_string(), error.exit());
                }
            }
        }
        if failures.is_empty() {
            self.webhooks(watched, failures).await;
        }
        derived
    }

    async fn webhooks(&self, watched: Vec<Watched>, failures: &mut Failures) {
        let webhooks = &self.ground.webhooks;
        let ensuring = async { Ok(hooks::ensure(webhooks.port, watched, &webhooks.url, false).await) };
        let ensured = match self.in_time(ensuring).await {
            Ok(ensured) => ensured,
            Err(error) => {
                let subject = webhooks.apps.0.to_string();
                return failures.add(Stage::Webhooks, subject, error.to_string(), error.exit());
            }
        };
        for hook in ensured.repositories {
            if matches!(hook.result, HookResult::NoRepository | HookResult::Failed) {
                failures.add(Stage::Webhooks, hook.repo.to_string(), hook.detail, hook.exit);
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
            let asking = self.ground.operator.command(app.as_str(), command, self.pace.caller);
            match self.in_time(asking).await {
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
                match self.in_time(look::stand(self.ground, self.wish, app)).await {
                    Ok(stand) => match Progress::of(app, &stand) {
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

    /// Waits until Argo CD runs what is committed. An app whose secret is `derived` only now may recover.
    async fn deployer(&self, derived: bool, failures: &mut Failures) {
        let renders = self.ground.settings.is_some_and(|of| of.destination(&self.wish.environment).is_some());
        if self.ground.deployer.is_none() || !renders {
            return;
        }
        let mut pending: BTreeSet<&AppName> = self.wish.apps.iter().collect();
        loop {
            let mut told = Vec::new();
            for app in pending.clone() {
                match self.in_time(look::deployer(self.ground, self.wish, app)).await {
                    Ok(DeployerSeen::Running | DeployerSeen::Unasked) => drop(pending.remove(app)),
                    Ok(DeployerSeen::Behind(said)) => told.push((app, said)),
                    Ok(DeployerSeen::Degraded(said)) if derived => told.push((app, said)),
                    // More waiting helps against neither.
                    Ok(DeployerSeen::Degraded(said) | DeployerSeen::Failed(said)) => {
                        let why = format!("Argo CD says: {said}");
                        failures.add(Stage::Application, app.as_str(), why, Exit::Findings);
                        pending.remove(app);
                    }
                    Err(error) if error.exit() == Exit::Unreachable => told.push((app, error.to_string())),
                    Err(error) => {
                        failures.add(Stage::Application, app.as_str(), error.to_string(), error.exit());
                        pending.remove(app);
                    }
                }
            }
            let lines: Vec<String> =
                told.iter().map(|(app, said)| format!("{app}: Argo CD says {said}")).collect();
            // As with workers: one that fails ends the wait.
            if pending.is_empty() || !failures.is_empty() {
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
    fn of(app: &AppName, stand: &Stand) -> Self {
        let stuck =
            || stand.not_rebuilt(app).or_else(|| stand.stop.clone()).or_else(|| stand.used_up.clone());
        match (&stand.image, &stand.composition) {
            (ImageSeen::There(_), CompositionSeen::There(_)) => Progress::There,
            (ImageSeen::Nothing(why), _) => Progress::Stuck(why.clone()),
            _ => stuck().map_or(Progress::UnderWay, Progress::Stuck),
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
        let (from, others, moving) = (None, BTreeSet::new(), BTreeSet::new());
        let (target, stop, used_up, told) = (None, None, None, String::new());
        Stand { target, image, composition, from, others, moving, stop, used_up, told }
    }

    fn progress(stand: &Stand) -> Progress {
        Progress::of(&AppName::parse("citation").unwrap(), stand)
    }

    #[test]
    fn an_app_is_waited_for_until_it_is_there_or_nobody_is_on_it() {
        let revision = Revision::parse(&"1b".repeat(20)).unwrap();
        let there = || ImageSeen::There(Digest::of(b"image"));
        let (missing, shown) = (ImageSeen::Missing(revision.clone()), CompositionSeen::There(revision));
        assert_eq!(progress(&stand(there(), shown.clone())), Progress::There);
        assert_eq!(progress(&stand(there(), CompositionSeen::ToCome)), Progress::UnderWay);
        assert_eq!(progress(&stand(missing.clone(), CompositionSeen::ToCome)), Progress::UnderWay);
        let lost = ImageSeen::Lost(Digest::of(b"lost"));
        assert_eq!(
            progress(&stand(lost.clone(), shown.clone())),
            Progress::UnderWay,
            "it is shown, and nobody can run it"
        );
        let mut promoted = stand(lost, shown);
        promoted.from = Some(EnvironmentName::parse("staging").unwrap());
        assert!(matches!(progress(&promoted), Progress::Stuck(_)), "nobody builds it anew");
        for (stop, used_up) in [(Some("held"), None), (None, Some("dead letter"))] {
            let mut stuck = stand(missing.clone(), CompositionSeen::ToCome);
            (stuck.stop, stuck.used_up) = (stop.map(str::to_owned), used_up.map(str::to_owned));
            assert!(matches!(progress(&stuck), Progress::Stuck(_)));
            assert_eq!(stage_of(&stuck), Stage::Image);
        }
    }
}
