//! `validate` and `render` over many apps that declare what they need, deployed and rendered: nothing is wrong, and
//! nothing is left to do.

mod fleet;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use self::fleet::Declared;
use crate::Options;
use crate::process::{self, Ran};
use crate::report::{Check, Figure, Series};

/// The longest that one command may take here.
const LONGEST: Duration = Duration::from_secs(120);

/// What is asked of fabrique.
#[derive(Debug, Clone, Copy)]
enum Question {
    /// `validate --path` on a checkout of `cluster/apps`.
    Checkout,
    /// `validate --path` on the apps' own files: declarations and overlays.
    Sources,
    /// `validate` of what is on the forge: registrations, bindings, and every declaration against the contract.
    Live,
    /// `render --check` of what is on the forge.
    Render,
}

impl Question {
    const ALL: [Self; 4] = [Self::Checkout, Self::Sources, Self::Live, Self::Render];

    fn name(self) -> &'static str {
        match self {
            Self::Checkout => "validate, checkout",
            Self::Sources => "validate, apps' files",
            Self::Live => "validate, forge",
            Self::Render => "render, forge",
        }
    }

    fn arguments(self, declared: &Declared) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let words = match self {
            Self::Checkout => {
                vec!["validate".to_owned(), "--path".to_owned(), path(declared.checkout.path())]
            }
            Self::Sources => vec!["validate".to_owned(), "--path".to_owned(), path(&declared.sources)],
            Self::Live => vec!["validate".to_owned()],
            Self::Render => vec!["render".to_owned(), "--check".to_owned()],
        };
        words.into_iter().chain(["-o".to_owned(), "json".to_owned()]).collect()
    }

    /// How many apps an answer is about, by what it counts.
    fn counted(self) -> &'static str {
        match self {
            Self::Checkout => "apps",
            Self::Sources | Self::Live => "declarations",
            // One Application, one volume and one bucket each, and what brings them.
            Self::Render => "files",
        }
    }
}

/// Asks each question once for nothing, then in turn.
pub(crate) async fn measure(options: &Options, binary: &Path) -> Result<Figure> {
    let declared = Declared::gather(binary, options.declared).await?;
    for question in Question::ALL {
        ask(question, &declared, options.declared).await?;
    }
    let mut samples: [(Vec<f64>, Vec<f64>); 4] = Default::default();
    for round in 0..options.rounds as usize {
        let mut order: Vec<usize> = (0..Question::ALL.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for number in order {
            let ran = ask(Question::ALL[number], &declared, options.declared).await?;
            samples[number].0.push(ran.seconds);
            samples[number].1.push(ran.peak);
        }
    }
    let (mut series, mut checks) = (Vec::new(), Vec::new());
    for (question, (seconds, peak)) in Question::ALL.into_iter().zip(samples) {
        let name = question.name();
        series.push(Series::new(name, "s", seconds.clone()));
        series.push(Series::new(format!("{name}, memory"), "MB", peak.clone()));
        checks.push(Check::at_most(format!("{name} (s)"), seconds, 2.0));
        checks.push(Check::at_most(format!("{name} (MB)"), peak, 100.0));
    }
    Ok(Figure {
        name: format!("validate and render over {} apps", options.declared),
        method: format!(
            "{} repositories whose apps each have a registration, a composition, a declaration with a dependency, a database, a \
             secret, a volume and a bucket, and an overlay with both placeholders; everything is deployed and rendered. One \
             process for each question, from its start to its end, after one that is not counted: a clone of everything is \
             there, as on a machine that asks again. Memory is the process's largest resident size, which git's is not a part of.",
            fleet::REPOS.min(options.declared)
        ),
        series,
        checks,
    })
}

/// Asks one question, and sees that everything was looked at and nothing found.
async fn ask(question: Question, declared: &Declared, apps: u32) -> Result<Ran> {
    let mut command = command(declared, &question.arguments(declared));
    command.stdin(Stdio::null());
    let ran = tokio::time::timeout(LONGEST, process::measured(command)).await;
    let ran = ran.with_context(|| format!("{} hangs", question.name()))??;
    let said = || format!("{}: {}\n{}", question.name(), ran.stdout, ran.stderr);
    ensure!(ran.succeeded, "{}", said());
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).with_context(said)?;
    let counted = answer[question.counted()].as_u64().with_context(said)?;
    ensure!(counted >= u64::from(apps), "only {counted} of {apps}: {}", said());
    Ok(ran)
}

/// fabrique with the stage's configuration, and with Applications of Argo CD.
fn command(declared: &Declared, arguments: &[String]) -> Command {
    let stage = &declared.stage;
    let mut command = Command::new(stage.binary());
    command.args(arguments).env("FABRIQUE_CONFIG", stage.config()).envs(fleet::RENDERS);
    command
}
