//! The command line of the benchmarks.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use fabrique_bench::{Options, run};

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")
        .and_then(|runtime| runtime.block_on(measure(&options)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to be told when standard error is gone.
            let _ = writeln!(std::io::stderr(), "fabrique-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Result<()> {
    let report = Box::pin(run(options)).await?;
    if let Some(file) = &options.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, json + "\n").with_context(|| format!("writing {}", file.display()))?;
    }
    std::io::stdout().write_all(report.table().as_bytes()).context("printing the table")
}
