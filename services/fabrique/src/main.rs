//! fabrique, the binary: command line, configuration, wiring, nothing else.

mod ambient;
mod builders;
mod cli;
mod config;
mod forges;
mod health;
mod metrics;
mod people;
mod roles;
mod run;
mod subscriptions;
mod telemetry;
mod wiring;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // The only TLS provider of the process; installing fails only when there is one already.
    drop(rustls::crypto::ring::default_provider().install_default());
    run::run(cli::Cli::parse())
}
