//! From a parsed command line to an exit code.

use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::cli::{Cli, Command, Global, Reconcile};
use crate::config::{self, Config};
use crate::metrics::Metrics;
use crate::wiring::Adapters;
use crate::{people, roles, telemetry};

/// Wrong usage or configuration.
const USAGE: u8 = 2;
/// It was tried and failed.
const FAILED: u8 = 1;

/// Runs a command to its end. Whatever goes wrong is one message on standard error.
pub(crate) fn run(cli: Cli) -> ExitCode {
    if let Command::Completion { shell } = cli.command {
        clap_complete::generate(shell, &mut Cli::command(), "fabrique", &mut std::io::stdout());
        return ExitCode::SUCCESS;
    }
    let config = match config::load(cli.global.config.as_deref()) {
        Ok(config) => config,
        Err(problems) => return people::refuse_configuration(cli.global.output, &cli.command, &problems),
    };
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime did not start")
        .and_then(|runtime| {
            let outcome = runtime.block_on(dispatch(cli, config));
            // A build log or an event that is still on its way is not worth hanging for.
            runtime.shutdown_timeout(std::time::Duration::from_secs(2));
            outcome
        });
    outcome.unwrap_or_else(|error| {
        people::complain(&error);
        ExitCode::from(FAILED)
    })
}

async fn dispatch(cli: Cli, config: Config) -> anyhow::Result<ExitCode> {
    let Cli { global, command } = cli;
    match command {
        Command::Receiver => Box::pin(serve(&global, config, Service::Receiver)).await,
        Command::Worker => Box::pin(serve(&global, config, Service::Worker)).await,
        Command::All => Box::pin(serve(&global, config, Service::All)).await,
        Command::Reconcile(Reconcile { once: false, every }) => {
            Box::pin(serve(&global, config, Service::Reconciler(every))).await
        }
        command => {
            let adapters = Adapters::new(config)?;
            people::run(&global, &adapters, command).await
        }
    }
}

enum Service {
    Receiver,
    Worker,
    Reconciler(Option<std::time::Duration>),
    All,
}

async fn serve(global: &Global, config: Config, service: Service) -> anyhow::Result<ExitCode> {
    telemetry::start(global)?;
    let metrics = Metrics::install()?;
    let stop = stop_on_signals()?;
    let adapters = Adapters::new(config)?;
    match service {
        Service::Receiver => roles::receiver(&adapters, metrics, stop).await,
        Service::Worker => roles::worker(&adapters, metrics, stop).await,
        Service::Reconciler(every) => roles::reconciler(&adapters, every, stop).await,
        Service::All => roles::all(&adapters, metrics, stop).await,
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Cancelled by the first SIGTERM or SIGINT; a second one ends the process.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stopping = stop.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if stopping.is_cancelled() {
                std::process::exit(i32::from(FAILED));
            }
            tracing::info!("stopping; once more ends at once");
            stopping.cancel();
        }
    });
    Ok(stop)
}

/// The exit code of wrong usage or configuration.
pub(crate) fn usage() -> ExitCode {
    ExitCode::from(USAGE)
}
