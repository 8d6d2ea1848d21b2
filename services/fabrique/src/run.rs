//! From a parsed command line to an exit code.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use fabrique_operator::Exit;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::cli::{Cli, Command, Global, Reconcile};
use crate::config::{self, Config};
use crate::metrics::Metrics;
use crate::people::{self, Complaint, Console};
use crate::wiring::Adapters;
use crate::{roles, telemetry};

/// Runs a command to its end. Whatever goes wrong is one line on standard error.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let exit = try_run(cli).unwrap_or_else(|error| people::complain(&error));
    ExitCode::from(exit.code())
}

fn try_run(cli: Cli) -> anyhow::Result<Exit> {
    let console = Console::new(cli.global.output);
    match &cli.command {
        Command::Completion { shell } => return completion(*shell),
        Command::Schema { of } => return people::schema(console, *of),
        Command::Config { reference: true } => return people::show_reference(console),
        Command::Config { reference: false } => return show_configuration(console, &cli),
        Command::Migrate(wanted) => {
            telemetry::start(&cli.global)?;
            return runtime()?.block_on(people::migrate(console, wanted));
        }
        Command::Validate(wanted) if !wanted.needs_configuration() => {
            return people::validate_offline(console, wanted, None);
        }
        _ => {}
    }
    // Whoever makes secrets does not have them yet.
    let load = if matches!(cli.command, Command::Init(_)) { config::load_before_init } else { config::load };
    let config = match load(cli.global.config.as_deref(), &cli.global.set) {
        Ok(config) => config,
        Err(problems) => return people::refuse_configuration(console, &cli.command, &problems),
    };
    if let Command::Validate(wanted) = &cli.command
        && wanted.is_offline()
    {
        return people::validate_offline(console, wanted, Some(&config));
    }
    if matches!(cli.command, Command::Mirror { .. }) && config.github.relay.is_some() {
        // Who went which way is told like everything that a service does.
        telemetry::start(&cli.global)?;
    }
    let runtime = runtime()?;
    let outcome = runtime.block_on(dispatch(console, cli, config));
    // A build log or an event that is still on its way is not worth hanging for.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    outcome
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("the runtime did not start")
}

fn show_configuration(console: Console, cli: &Cli) -> anyhow::Result<Exit> {
    match config::explain(cli.global.config.as_deref(), &cli.global.set) {
        Ok(settings) => people::show_configuration(console, &settings),
        Err(problems) => people::refuse_configuration(console, &cli.command, &problems),
    }
}

fn completion(shell: clap_complete::Shell) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fabrique", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(Exit::Ok)
}

async fn dispatch(console: Console, cli: Cli, config: Config) -> anyhow::Result<Exit> {
    let Cli { global, command } = cli;
    match command {
        Command::Receiver => Box::pin(serve(&global, config, Service::Receiver)).await,
        Command::Worker => Box::pin(serve(&global, config, Service::Worker)).await,
        Command::All => Box::pin(serve(&global, config, Service::All)).await,
        Command::Reconcile(Reconcile { once: false, every }) => {
            Box::pin(serve(&global, config, Service::Reconciler(every))).await
        }
        command => Box::pin(people::run(console, &adapters(config)?, command)).await,
    }
}

/// What goes wrong here is in the configuration: nothing was asked of any server yet.
fn adapters(config: Config) -> anyhow::Result<Adapters> {
    Adapters::new(config).map_err(|error| Complaint::usage(people::sentence(&error)).into())
}

enum Service {
    Receiver,
    Worker,
    Reconciler(Option<std::time::Duration>),
    All,
}

async fn serve(global: &Global, config: Config, service: Service) -> anyhow::Result<Exit> {
    telemetry::start(global)?;
    let metrics = Metrics::install()?;
    let stop = stop_on_signals()?;
    let adapters = adapters(config)?;
    match service {
        Service::Receiver => roles::receiver(&adapters, metrics, stop).await,
        Service::Worker => roles::worker(&adapters, metrics, stop).await,
        Service::Reconciler(every) => roles::reconciler(&adapters, metrics, every, stop).await,
        Service::All => Box::pin(roles::all(&adapters, metrics, stop)).await,
    }?;
    Ok(Exit::Ok)
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
                std::process::exit(i32::from(Exit::Findings.code()));
            }
            tracing::info!("stopping; once more ends at once");
            stopping.cancel();
        }
    });
    Ok(stop)
}
