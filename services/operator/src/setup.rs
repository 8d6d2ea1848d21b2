//! `init`: what an installation needs before the first push, as gates that are passed in order.
//!
//! A gate has a condition and a time limit. What is there is looked at, [`plan::plan`] says what is missing, it is done, and
//! the gate is passed when a second look finds nothing missing. So a run that was interrupted anywhere is simply begun again,
//! and a run over an installation that is complete changes nothing.
//!
//! Values that are made up, tokens and secrets, go into the files that the configuration names for them and nowhere else;
//! a file that is there is never written.

mod first;
pub mod plan;
mod proof;
mod report;
mod vault;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use fabrique_core::id::{BranchName, RepoName};
use fabrique_ports::bus::BusSetup;
use fabrique_ports::forge::Hooks;
use fabrique_ports::setup::{DeployerDoor, DeployerInside, ForgeSetup};
use fabrique_ports::{Ambient, PortResult};
use secrecy::SecretString;
use tokio::time::{Instant, timeout_at};

use crate::exit::Exit;
use plan::{Gate, HookTo, Step, TokenFor};
pub use report::{GateReport, GateResult, SetupReport, StreamDifference};
use work::Worker;

/// Between two looks at what is waited for.
const PAUSE: Duration = Duration::from_millis(300);

/// Where a value is kept.
#[derive(Debug, Clone)]
pub enum Place {
    /// In this file, which is made if it is not there.
    File(PathBuf),
    /// In the environment, by whoever starts this; nothing is made.
    Given(SecretString),
}

/// A webhook on `cluster/apps`.
#[derive(Debug, Clone)]
pub struct HookWish {
    /// Where it delivers to, as the forge reaches it.
    pub url: String,
    /// What it signs with.
    pub secret: Place,
}

/// What an installation is to have.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// `cluster/apps`.
    pub repo: RepoName,
    /// Its branch that is deployed.
    pub branch: BranchName,
    /// The tokens that have a place; those without are left out.
    pub tokens: BTreeMap<TokenFor, Place>,
    /// The webhooks.
    pub hooks: BTreeMap<HookTo, HookWish>,
    /// `cluster/apps` as Argo CD reads it.
    pub deployer_url: String,
}

/// The forge and the deployer of an installation.
pub struct Installation<'a> {
    /// What it is to have.
    pub wanted: Wanted,
    /// The forge.
    pub forge: &'a dyn ForgeSetup,
    /// Looks after webhooks that are signed with a secret.
    pub hooks: &'a (dyn Fn(SecretString) -> Box<dyn Hooks> + Send + Sync),
    /// The deployer's door, where there is a deployer.
    pub door: Option<&'a dyn DeployerDoor>,
    /// The deployer from within, where an API server is asked.
    pub inside: Option<&'a dyn DeployerInside>,
    /// Randomness.
    pub ambient: &'a dyn Ambient,
}

/// How it is run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Tell what would be done and change nothing.
    pub dry_run: bool,
    /// How long one gate may take.
    pub limit: Duration,
}

/// Passes all gates: the peers, the bus, and where there is an `installation`, what it is to have. The bus answers already.
pub async fn run(
    bus: &dyn BusSetup,
    installation: Option<&Installation<'_>>,
    options: Options,
) -> SetupReport {
    let mut report = SetupReport::new(options.dry_run);
    if pass(bus, installation, options, &mut report).await.is_none() {
        report.leave_the_rest(installation.is_some_and(|of| of.door.is_some()), installation.is_some());
    }
    report
}

/// Nothing when a gate was not passed, which is in the report then.
async fn pass(
    bus: &dyn BusSetup,
    installation: Option<&Installation<'_>>,
    options: Options,
    report: &mut SetupReport,
) -> Option<()> {
    report.passed(report::NATS, "answers");
    if let Some(of) = installation {
        let administrator = patiently(Instant::now() + options.limit, || of.forge.administrator()).await;
        let administrator = report.take(report::GITEA, administrator)?;
        report.passed(report::GITEA, format!("answers {administrator}"));
        if let Some(door) = of.door {
            let answered = patiently(Instant::now() + options.limit, || door.answers()).await;
            report.take(report::ARGOCD, answered)?;
            report.passed(report::ARGOCD, "answers");
        }
    }
    streams(bus, options.dry_run, report).await?;
    match installation {
        Some(of) => Box::pin(gates(of, options, report)).await,
        None => Some(()),
    }
}

/// Asks until there is an answer, or waiting does not help, or the time of the gate is over: then with what was said last.
async fn patiently<T, F: Future<Output = PortResult<T>>>(
    deadline: Instant,
    ask: impl Fn() -> F,
) -> Result<T, Trouble> {
    let mut last = None;
    loop {
        match timeout_at(deadline, ask()).await {
            Ok(Err(error)) if error.transient() && Instant::now() + PAUSE < deadline => {
                tracing::info!(%error, "waiting");
                last = Some(error);
                tokio::time::sleep(PAUSE).await;
            }
            Ok(answer) => return Ok(answer?),
            Err(_) => return Err(last.map_or_else(|| Trouble::Late("an answer".to_owned()), Trouble::from)),
        }
    }
}

async fn streams(bus: &dyn BusSetup, dry_run: bool, report: &mut SetupReport) -> Option<()> {
    let before = report.take(report::STREAMS, bus.usage().await)?.len();
    let found = if dry_run { bus.inspect().await } else { bus.ensure().await };
    let found = report.take(report::STREAMS, found)?;
    let fatal = found.iter().any(|finding| finding.fatal);
    let made = report.take(report::STREAMS, bus.usage().await)?.len().saturating_sub(before);
    report.differ(found);
    match (dry_run, fatal) {
        (true, true) => {
            report.would(report::STREAMS, vec!["what is missing or differs: see below".to_owned()])
        }
        (false, true) => {
            report.failed(report::STREAMS, "some differ: see below", Exit::Findings);
            return None;
        }
        (_, false) if made > 0 => {
            report.changed(report::STREAMS, vec![format!("{made} streams and buckets")], made)
        }
        (_, false) => report.passed(report::STREAMS, "every stream and bucket is there"),
    }
    Some(())
}

async fn gates(of: &Installation<'_>, options: Options, report: &mut SetupReport) -> Option<()> {
    let worker = Worker::new(of);
    let mut steps = match looked(&worker, Instant::now() + options.limit).await {
        Ok(steps) => steps,
        Err(trouble) => {
            report.trouble(report::LOOK, trouble);
            return None;
        }
    };
    for gate in Gate::ALL {
        if !worker.has(gate) {
            continue;
        }
        let own: Vec<Step> = steps.iter().filter(|step| step.gate() == gate).cloned().collect();
        let told: Vec<String> = own.iter().map(|step| worker.told(step)).collect();
        if own.is_empty() {
            report.passed(gate.as_str(), worker.there(gate));
        } else if options.dry_run {
            report.would(gate.as_str(), told);
        } else {
            steps = match open(&worker, gate, own, options.limit).await {
                Ok(steps) => steps,
                Err(trouble) => {
                    report.trouble(gate.as_str(), trouble);
                    return None;
                }
            };
            let count = told.len();
            report.changed(gate.as_str(), told, count);
        }
    }
    if !options.dry_run {
        report.take(Gate::Tokens.as_str(), worker.tidy())?;
    }
    if of.wanted.hooks.contains_key(&HookTo::Deployer)
        && let Some(door) = of.door
    {
        if options.dry_run {
            report.passed(report::DELIVERY, "not tried in a dry run");
            return Some(());
        }
        proof::prove(of, door, Instant::now() + options.limit, report).await?;
    }
    Some(())
}

/// Why a gate is not passed.
pub(crate) enum Trouble {
    /// A peer, or a file.
    Error(crate::OperatorError),
    /// This is still missing when its time is over.
    Late(String),
    /// A person has to do this first.
    Obstacles(Vec<String>),
}

impl<E: Into<crate::OperatorError>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// What is missing. Looking takes several requests, each of which may have to be repeated: all of it ends at `deadline`.
async fn looked(worker: &Worker<'_>, deadline: Instant) -> Result<Vec<Step>, Trouble> {
    patiently(deadline, || worker.planned()).await?.map_err(Trouble::Obstacles)
}

/// Does what is missing for a gate until nothing is, and returns what is missing for others then. Doing and looking share
/// the gate's one `limit`.
async fn open(
    worker: &Worker<'_>,
    gate: Gate,
    mut steps: Vec<Step>,
    limit: Duration,
) -> Result<Vec<Step>, Trouble> {
    let deadline = Instant::now() + limit;
    let late = |steps: &[Step]| {
        let missing: Vec<String> = steps.iter().map(|step| worker.told(step)).collect();
        Trouble::Late(missing.join("; "))
    };
    loop {
        let last = match timeout_at(deadline, worker.perform(&steps)).await {
            Ok(Ok(())) => None,
            // What was not answered may have been done: the next look tells.
            Ok(Err(error)) if error.is_transient() => Some(error),
            Ok(Err(error)) => return Err(error.into()),
            // There is no time left to look.
            Err(_) => return Err(late(&steps)),
        };
        let all = match looked(worker, deadline).await {
            Ok(all) => all,
            Err(Trouble::Late(_)) => return Err(last.map_or_else(|| late(&steps), Trouble::from)),
            Err(trouble) => return Err(trouble),
        };
        steps = all.iter().filter(|step| step.gate() == gate).cloned().collect();
        if steps.is_empty() {
            return Ok(all);
        }
        if Instant::now() + PAUSE >= deadline {
            return Err(last.map_or_else(|| late(&steps), Trouble::from));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
