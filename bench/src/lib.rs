//! Measures fabrique beside what a user would have without it.
//!
//! Every figure is taken on the servers of [`fabrique_bed`], on this machine, with all its arms in one run: the
//! arms alternate (A B C, then C B A), so that what drifts (caches, disk, neighbours) falls on each alike, and
//! each comparison is made pair by pair within a round. On a shared machine a time means little by itself; the
//! ratios and their spread are the result. What is missed is printed, never asserted: no test depends on a time.
//!
//! | figure | file | beside |
//! | --- | --- | --- |
//! | a push to its commit | `push` | the floor of any design, and a shell script |
//! | the same with a recorded digest | `push` | webhook and bare push |
//! | durable acknowledgements | `acknowledge` | bare JetStream publishes |
//! | a sweep with nothing to do | `sweep` | a bound |
//! | memory and size | `footprint` | bounds |
//! | `validate` and `render` over declared apps | `declared` | bounds |
//!
//! This crate sees fabrique from outside only: its binary, its webhook, its log and what it leaves on the
//! servers. It must not link any of fabrique's own code, or it would measure something else.

mod acknowledge;
mod arms;
mod declared;
mod fleet;
mod footprint;
pub mod hook;
mod load;
pub mod process;
pub mod program;
mod push;
mod reference;
pub mod report;
pub mod stats;
mod sweep;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use crate::fleet::Fleet;
use crate::report::{Figure, Machine, Report};

/// Measures fabrique beside bare tools and a shell script, on loopback servers of its own.
#[derive(Debug, Clone, Parser)]
#[command(name = "fabrique-bench", version)]
pub struct Options {
    /// Measured rounds of each figure; each runs every arm once.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Only these figures.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Subject>,
    /// Where the report is written with every sample, as JSON.
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    pub json: PathBuf,
    /// The binary to measure: `fabrique` beside this program when absent.
    #[arg(long, value_name = "FILE")]
    pub fabrique: Option<PathBuf>,
    /// Registered apps of the fleet that is swept and delivered to.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub apps: u32,
    /// Apps that declare what they need, for `validate` and `render`.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=2000))]
    pub declared: u32,
    /// Deliveries of one run of the receiver, and before memory is read.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub deliveries: u32,
    /// Keep fabrique's logs in this folder.
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,
}

/// A figure that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// End of `git push` to the commit on cluster/apps, one layer changed.
    Push,
    /// The same with a digest that is recorded already.
    Recorded,
    /// A sweep with nothing to do.
    Sweep,
    /// Memory of each role and size of the binary.
    Footprint,
    /// Durable acknowledgements of the receiver.
    Acknowledge,
    /// `validate` and `render` over many apps.
    Declared,
}

impl Options {
    fn wants(&self, subject: Subject) -> bool {
        self.only.is_empty() || self.only.contains(&subject)
    }
}

/// Takes every figure that is asked for.
///
/// # Errors
/// When a server does not start, or an arm does not do what is measured: a missed bound is no error.
pub async fn run(options: &Options) -> Result<Report> {
    let binary = program::fabrique(options.fabrique.as_deref())?;
    let mut figures: Vec<Figure> = Vec::new();
    if options.wants(Subject::Push) || options.wants(Subject::Recorded) {
        figures.extend(Box::pin(push::measure(options, &binary)).await?);
    }
    let fleet_figures = [Subject::Sweep, Subject::Footprint, Subject::Acknowledge];
    if fleet_figures.into_iter().any(|subject| options.wants(subject)) {
        let fleet = Box::pin(Fleet::gather(&binary, options.apps)).await?;
        if options.wants(Subject::Sweep) {
            figures.push(Box::pin(sweep::measure(options, &fleet)).await?);
        }
        if options.wants(Subject::Footprint) {
            figures.push(Box::pin(footprint::measure(options, &fleet)).await?);
        }
        if options.wants(Subject::Acknowledge) {
            figures.extend(Box::pin(acknowledge::measure(options, &fleet)).await?);
        }
    }
    if options.wants(Subject::Declared) {
        figures.push(Box::pin(declared::measure(options, &binary)).await?);
    }
    Ok(Report { machine: Machine::here(), rounds: options.rounds, figures })
}
