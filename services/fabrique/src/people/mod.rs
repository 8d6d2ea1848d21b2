//! The commands for people: they call use cases and print what comes back.

mod print;

use std::process::ExitCode;

use fabrique_ports::bus::BusSetup;

use crate::cli::{Command, Global, Output};
use crate::config::{Problem, Role};
use crate::wiring::Adapters;

pub(crate) use print::complain;

/// Runs one command for people.
pub(crate) async fn run(global: &Global, adapters: &Adapters, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Init => init(global, adapters).await,
        other => anyhow::bail!("{other:?} is not wired yet"),
    }
}

/// Says everything that is wrong with the configuration at once.
pub(crate) fn refuse_configuration(output: Output, _command: &Command, problems: &[Problem]) -> ExitCode {
    match output {
        Output::Json => print::json(&problems),
        Output::Table => problems.iter().for_each(print::problem),
    }
    crate::run::usage()
}

async fn init(global: &Global, adapters: &Adapters) -> anyhow::Result<ExitCode> {
    let bus = adapters.bus(Role::Admin).await?;
    let findings = bus.ensure().await?;
    bus.close().await;
    for finding in &findings {
        print::line(&format!("{} ({})", finding.what, finding.remedy));
    }
    if findings.is_empty() && global.output == Output::Table {
        print::line("every stream and bucket is there");
    }
    Ok(if findings.iter().any(|f| f.fatal) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
