//! The commands for people: each calls one use case and prints what comes back.
//!
//! * **Standard output** is the result or empty. `-o json` prints the use case's own structs (`status` is
//!   [`fabrique_operator::Status`], `why` is [`fabrique_operator::Why`], and so on): fields are added, never
//!   renamed. `logs` and `tail` print one object a line.
//! * **Standard error** has what went wrong, on one line, and progress where a person watches.
//! * **The exit code** is an [`Exit`].

mod agreement;
mod ask;
mod away;
mod builds;
mod caller;
mod console;
mod dlq;
mod doctor;
mod egress;
mod hooks;
mod init;
mod inside;
mod logs;
mod migrate;
mod mirror;
mod progress;
mod reconcile;
mod render;
mod schema;
mod secrets;
mod seed;
mod services;
mod session;
mod settings;
mod status;
mod table;
mod tail;
mod timeline;
mod trouble;
mod validate;
mod why;
mod words;

use fabrique_operator::{Exit, Operator};
use fabrique_ports::bus;

use crate::cli::{Command, Dlq, Hooks, Reconcile};
use crate::config::Problem;
use crate::wiring::Adapters;

pub(crate) use console::{Console, remark};
pub(crate) use migrate::run as migrate;
pub(crate) use schema::schema;
pub(crate) use settings::{effective as show_configuration, reference as show_reference};
pub(crate) use trouble::{Complaint, complain, sentence};
pub(crate) use validate::offline as validate_offline;

/// Runs a command that needs the configuration.
pub(crate) async fn run(console: Console, adapters: &Adapters, command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Init(asked) => Box::pin(init::init(console, adapters, &asked)).await,
        Command::Reconcile(Reconcile { .. }) => Box::pin(reconcile::once(console, adapters)).await,
        Command::Hooks { command: Hooks::Ensure { dry_run } } => {
            hooks::ensure(console, adapters, dry_run).await
        }
        Command::Mirror { command } => Box::pin(mirror::run(console, adapters, command)).await,
        Command::Validate(wanted) => Box::pin(validate::live(console, adapters, &wanted)).await,
        Command::Render(wanted) => render::render(console, adapters, &wanted).await,
        Command::Secrets(wanted) => secrets::run(console, adapters, &wanted).await,
        Command::Seed(wanted) => Box::pin(seed::seed(console, adapters, &wanted)).await,
        Command::Doctor => Box::pin(doctor::doctor(console, adapters)).await,
        command => {
            let operator = session::operator(adapters).await?;
            Box::pin(about_apps(console, &operator, command)).await
        }
    }
}

/// Runs a command that needs the bus.
async fn about_apps(console: Console, operator: &Operator, command: Command) -> anyhow::Result<Exit> {
    let ask = async |app: fabrique_core::id::AppName, command| {
        ask::ask(console, operator, app.as_str(), command).await
    };
    match command {
        Command::Status => progress::showing("looking at every app", status::status(console, operator)).await,
        Command::Why { app } => why::why(console, operator, app.as_str()).await,
        Command::Builds { build: Some(build), egress: true, .. } => {
            egress::egress(console, operator, &build).await
        }
        Command::Builds { build, limit, .. } => {
            builds::builds(console, operator, build.as_ref(), limit).await
        }
        Command::Logs { build, follow } => {
            until_interrupted(logs::logs(console, operator, &build, follow)).await
        }
        Command::Tail { app, since } => {
            until_interrupted(tail::tail(console, operator, app.as_ref(), since)).await
        }
        Command::Timeline(wanted) => timeline::timeline(console, operator, &wanted).await,
        Command::Retry { app } | Command::Dlq { command: Some(Dlq::Replay { app }) } => {
            ask(app, bus::Command::Retry).await
        }
        Command::Rebuild { app, no_cache } => ask(app, bus::Command::Rebuild { no_cache }).await,
        Command::Cancel { app } => ask(app, bus::Command::Cancel).await,
        Command::Release { app } => ask(app, bus::Command::Release).await,
        Command::Repair { app } => ask(app, bus::Command::Repair).await,
        Command::Dlq { command: None | Some(Dlq::List) } => dlq::list(console, operator).await,
        Command::Dlq { command: Some(Dlq::Show { app }) } => dlq::show(console, operator, &app).await,
        Command::Receiver
        | Command::Worker
        | Command::All
        | Command::Reconcile(_)
        | Command::Init(_)
        | Command::Hooks { .. }
        | Command::Mirror { .. }
        | Command::Validate(_)
        | Command::Render(_)
        | Command::Migrate(_)
        | Command::Secrets(_)
        | Command::Seed(_)
        | Command::Schema { .. }
        | Command::Config { .. }
        | Command::Doctor
        | Command::Completion { .. } => anyhow::bail!("this command is run elsewhere; this is a defect"),
    }
}

/// Ctrl-C is how a person ends what has no end of its own.
async fn until_interrupted(work: impl Future<Output = anyhow::Result<Exit>>) -> anyhow::Result<Exit> {
    tokio::select! {
        done = work => done,
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted.map(|()| Exit::Ok)?),
    }
}

/// Says everything that is wrong with the configuration at once.
pub(crate) fn refuse_configuration(
    console: Console,
    command: &Command,
    problems: &[Problem],
) -> anyhow::Result<Exit> {
    if matches!(command, Command::Validate(_)) {
        return validate::configuration(console, problems);
    }
    problems.iter().for_each(|problem| {
        remark(&format!("{}: {}; {}", problem.key, problem.what, problem.remedy));
    });
    Ok(Exit::Usage)
}
