//! The command line of the benchmarks.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use fabrique_bench::{Options, program, run};

fn main() -> ExitCode {
    let options = Options::parse();
    program::run("fabrique-bench", measure(&options))
}

async fn measure(options: &Options) -> Result<()> {
    let report = Box::pin(run(options)).await?;
    report.write(&options.json)?;
    std::io::stdout().write_all(report.table().as_bytes()).context("printing the table")?;
    program::tell_of(&options.json)
}
