//! `./just demo`: a push to a real Gitea becomes a digest on `cluster/apps`, before your eyes.
//!
//! The demo plays on the tests' stage ([`fabrique_stage`]) and knows fabrique only through its command line:
//! what it shows of a push is what `fabrique timeline` prints. It must not explain what the product can
//! explain by itself.
//!
//! With a terminal it stays up and says what to try next, until Ctrl-C. Without one, or with `--once`, it stops
//! everything and ends: with 0, with 1 when a step failed (standard error names it, with the logs that
//! matter), with 130 when it was interrupted on the way. Nothing that it started outlives it.

mod dependent;
mod failure;
mod next;
mod run;
mod screen;
mod story;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use crate::screen::Screen;

/// Starts real servers, pushes to a sample app, and shows what becomes of it.
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Arguments {
    /// Stop everything after the pushes, even with a terminal.
    #[arg(long)]
    once: bool,
    /// The sample app's base image in the demo's registry; one that is absent shows how a failure looks.
    #[arg(long, hide = true, value_name = "IMAGE")]
    base: Option<String>,
}

fn main() -> ExitCode {
    // The only TLS provider of the process; installing fails only when there is one already.
    drop(rustls::crypto::ring::default_provider().install_default());
    match play(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => failure::complain(&format!("demo: {error:#}")),
    }
}

fn play(arguments: &Arguments) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("the runtime did not start")?;
    let screen = Screen::detect();
    let stays = screen.has_terminal() && !arguments.once;
    Ok(match runtime.block_on(run::run(screen, arguments.base.as_deref(), stays)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stopped) => stopped.report(),
    })
}
