//! What the programs of all benchmarks have in common.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

/// The binary to measure: the chosen one, or `fabrique` beside this program.
///
/// # Errors
/// When it is not there.
pub fn fabrique(chosen: Option<&Path>) -> Result<PathBuf> {
    let binary = match chosen {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("fabrique"),
    };
    ensure!(binary.is_file(), "{} is not there: build fabrique, or pass --fabrique", binary.display());
    binary.canonicalize().context("finding the binary")
}

/// Tells people where the JSON of what they see is, beside the tables on standard output.
///
/// # Errors
/// When nobody can be told.
pub fn tell_of(json: &Path) -> Result<()> {
    writeln!(std::io::stderr(), "every sample is in {}", json.display()).context("telling of the JSON")
}

/// Does all of a program's work, and tells on standard error what stopped it.
pub fn run(name: &str, work: impl Future<Output = Result<()>>) -> ExitCode {
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")
        .and_then(|runtime| runtime.block_on(work));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to be told when standard error is gone.
            let _ = writeln!(std::io::stderr(), "{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
