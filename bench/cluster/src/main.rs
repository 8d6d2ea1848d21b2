//! The command line of the cluster's benchmarks.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;
use fabrique_bench::program;
use fabrique_bench_cluster::{Options, run};

fn main() -> ExitCode {
    let options = Options::parse();
    program::run("fabrique-bench-cluster", measure(&options))
}

async fn measure(options: &Options) -> Result<()> {
    let (report, failed) = Box::pin(run(options)).await?;
    std::io::stdout().write_all(report.table().as_bytes()).context("printing the table")?;
    program::tell_of(&options.json)?;
    ensure!(failed == 0, "{failed} figures were not measured");
    Ok(())
}
