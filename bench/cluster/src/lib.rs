//! Measures fabrique on the test bed's Kubernetes cluster, beside what nothing there can go below.
//!
//! | figure | file | beside |
//! | --- | --- | --- |
//! | a wake to its solve, on a warm daemon | `warm` | one request to Gitea, one acknowledged write, one connection |
//! | a wake to its solve, in a cold pod | `cold` | the same pod, created bare |
//! | a push to a pod that runs by digest | `running` | the sum of its parts |
//! | where an app's next build goes | `cache` | a daemon at random |
//! | many wakes at once | `crowd` | bounds |
//!
//! The rules of [`fabrique_bench`] hold here too: arms side by side in one run, alternating, compared pair by pair;
//! a missed bound is printed and fails nothing. Fabrique is brought in by [`fabrique_scenarios`], as an operator
//! would, from its own image; from then on it is seen from outside only: its log, the API server's audit log,
//! pods, Gitea, the registry and the bus. Nothing of fabrique's own code runs while something is measured.

mod api;
mod audit;
mod bare;
mod bus;
mod cache;
mod cold;
mod crowd;
mod feed;
mod fleet;
mod ground;
mod log;
mod running;
mod wake;
mod warm;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use fabrique_bench::program;
use fabrique_bench::report::{Figure, Machine, Report};

use crate::ground::{Ground, say};

/// Measures fabrique on the test bed's cluster; takes about twenty minutes.
#[derive(Debug, Clone, Parser)]
#[command(name = "fabrique-bench-cluster", version)]
pub struct Options {
    /// Measured rounds of each figure that has rounds; each runs every arm once.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub rounds: u32,
    /// Only these figures.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Subject>,
    /// Where the report is written with every sample, as JSON: again after each figure.
    #[arg(long, value_name = "FILE", default_value = "target/bench-cluster.json")]
    pub json: PathBuf,
    /// The binary to measure: `fabrique` beside this program when absent.
    #[arg(long, value_name = "FILE")]
    pub fabrique: Option<PathBuf>,
    /// Apps whose builds share the daemons' caches.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub apps: u32,
    /// Pushes to each of them.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=50))]
    pub pushes: u32,
    /// Apps that are woken at once.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=500))]
    pub wakes: u32,
}

/// A figure that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// Wake to first solve on a warm daemon.
    Warm,
    /// Wake to first solve with a cold pod.
    Cold,
    /// Push to a pod that runs by digest.
    Running,
    /// Whether an app's builds find its cache.
    Cache,
    /// Many wakes at once.
    Crowd,
}

/// All figures, quick ones first.
const SUBJECTS: [Subject; 5] =
    [Subject::Warm, Subject::Cold, Subject::Running, Subject::Cache, Subject::Crowd];

impl Options {
    fn wants(&self, subject: Subject) -> bool {
        self.only.is_empty() || self.only.contains(&subject)
    }
}

/// Takes every figure that is asked for. One that cannot be taken is told and leaves the others alone; returned are
/// those that were, and how many were not.
///
/// # Errors
/// When fabrique cannot be installed, or the report cannot be written.
pub async fn run(options: &Options) -> Result<(Report, usize)> {
    let ground = Box::pin(Ground::prepare(&program::fabrique(options.fabrique.as_deref())?)).await?;
    let mut report = Report { machine: Machine::here(), rounds: options.rounds, figures: Vec::new() };
    let mut failed = 0;
    for subject in SUBJECTS.into_iter().filter(|subject| options.wants(*subject)) {
        say(&format!("{subject:?}"));
        match Box::pin(measure(subject, options, &ground)).await {
            Ok(figure) => report.figures.push(figure),
            Err(error) => {
                say(&format!("{subject:?} was not measured: {error:#}"));
                failed += 1;
            }
        }
        report.machine = Machine::here();
        report.write(&options.json)?;
    }
    ground.leave().await?;
    Ok((report, failed))
}

async fn measure(subject: Subject, options: &Options, ground: &Ground) -> Result<Figure> {
    match subject {
        Subject::Warm => warm::measure(options, ground).await,
        Subject::Cold => cold::measure(options, ground).await,
        Subject::Running => running::measure(options, ground).await,
        Subject::Cache => cache::measure(options, ground).await,
        Subject::Crowd => crowd::measure(options, ground).await,
    }
}
