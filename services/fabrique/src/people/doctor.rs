//! `doctor`: whether everything that fabrique needs is there, and what to do where it is not.

mod pods;

use std::sync::Arc;

use fabrique_bus::Login;
use fabrique_gitea::Purpose as Token;
use fabrique_operator::Exit;
use fabrique_operator::doctor::{Check, Config, Doctor, Level, Ports, Purpose, Report};
use fabrique_ports::builder::{Builder, Daemon};
use fabrique_ports::bus::{BusRights, BusRole, BusSetup, Events};
use fabrique_ports::forge::ForgeInspection;

use crate::builders;
use crate::config::Role;
use crate::people::away::Away;
use crate::people::console::Console;
use crate::people::progress::Progress;
use crate::people::services;
use crate::people::session;
use crate::people::table::{Cell, Table, Tone};
use crate::people::trouble::sentence;
use crate::wiring::Adapters;

/// What the doctor is given, and what is missing already in the configuration.
struct Patient {
    ports: Ports,
    missing: Vec<Check>,
}

/// Checks everything that can be checked, whatever is down.
pub(crate) async fn doctor(console: Console, adapters: &Adapters) -> anyhow::Result<Exit> {
    let progress = Progress::new("connecting to the bus");
    let examining = async {
        let Patient { ports, missing } = patient(adapters).await?;
        let waiting = |left: &[&str]| progress.tell(format!("checking {}", left.join(", ")));
        let mut report = Doctor::new(ports, config(adapters)).examine_telling(&waiting).await;
        report.checks.splice(0..0, missing);
        anyhow::Ok(report)
    };
    let report = Box::pin(progress.during(examining)).await?;
    if console.is_json() {
        console.json(&report)?;
    } else {
        print(console, &report)?;
    }
    Ok(report.exit())
}

async fn patient(adapters: &Adapters) -> anyhow::Result<Patient> {
    let mut missing = Vec::new();
    let (bus, events) = bus(adapters).await?;
    let builders = daemons(adapters, &mut missing).await;
    if !adapters.has_user(Role::Operator) {
        let remedy = "set nats.users.operator.password_file";
        missing.push(check("nats user operator", Level::Warn, "no credentials configured", remedy));
    }
    if adapters.config.receiver.public_url.is_none() {
        let remedy = "set receiver.public_url to the receiver's webhook address as Gitea reaches it";
        missing.push(check(
            "webhooks",
            Level::Warn,
            "not checked: where they deliver to is not known",
            remedy,
        ));
    }
    let gitea = Arc::new(adapters.gitea.clone());
    let ports = Ports {
        tokens: tokens(adapters, &mut missing),
        forge: Arc::clone(&gitea) as _,
        hooks: gitea,
        apps: Arc::clone(&adapters.apps),
        registry: Arc::clone(&adapters.registry) as _,
        builders,
        bus,
        users: users(adapters)?,
        events,
    };
    Ok(Patient { ports, missing })
}

/// The daemons to ask, listed ones or those in pods.
async fn daemons(adapters: &Adapters, checks: &mut Vec<Check>) -> Option<(Vec<Daemon>, Arc<dyn Builder>)> {
    match builders::inspector(adapters).await {
        Ok(Some(inspector)) => Box::pin(pods::examine(adapters, &inspector, checks)).await,
        Ok(None) => match builders::listed(adapters) {
            Ok(builders) => Some(builders),
            Err(error) => {
                let remedy = "correct the section buildkit";
                checks.push(check("buildkitd", Level::Fail, sentence(&error), remedy));
                None
            }
        },
        Err(error) => {
            let remedy = "correct the section kubernetes, or run this where the API server is reached";
            checks.push(check("builders", Level::Fail, sentence(&error), remedy));
            None
        }
    }
}

fn config(adapters: &Adapters) -> Config {
    let registry = &adapters.config.registry;
    let mut config = Config::new(adapters.apps_repo.clone(), adapters.apps_branch.clone());
    let receiver = &adapters.config.receiver;
    config.hook_url.clone_from(&receiver.public_url);
    config.hook_secret = receiver.secret.is_set() || receiver.next_secret.is_set();
    config.builder_floor = Some(fabrique_buildkit::FLOOR.to_string());
    config.services = Some(services::configured(&adapters.config));
    config.bounds = adapters.config.doctor.get();
    config.registries = registry.allowed.iter().chain(&registry.bases).cloned().collect();
    config
}

/// The forge as each token sees it. A token that is not configured is told once instead of failing everywhere.
fn tokens(adapters: &Adapters, missing: &mut Vec<Check>) -> Vec<(Purpose, Arc<dyn ForgeInspection>)> {
    let gitea = &adapters.config.gitea;
    let all = [
        (Purpose::Read, Token::Read, "read", gitea.read_token.is_set()),
        (Purpose::Status, Token::Status, "status", gitea.status_token.is_set()),
        (Purpose::Hooks, Token::Hooks, "hooks", gitea.hooks_token.is_set()),
        (Purpose::Apps, Token::Apps, "apps", gitea.apps_token.is_set()),
    ];
    let mut tokens: Vec<(Purpose, Arc<dyn ForgeInspection>)> = Vec::new();
    for (purpose, token, name, set) in all {
        if set {
            tokens.push((purpose, Arc::new(adapters.gitea.inspecting(token))));
        } else {
            let remedy = format!("name the file with it in gitea.{name}_token_file");
            missing.push(check(&format!("token {name}"), Level::Warn, "not configured", &remedy));
        }
    }
    tokens
}

/// The users of the bus whose passwords are here.
fn users(adapters: &Adapters) -> anyhow::Result<Vec<(BusRole, Arc<dyn BusRights>)>> {
    let known = BusRole::ALL.into_iter().filter(|role| adapters.has_user((*role).into()));
    let users = known.map(|role| {
        let login: Arc<dyn BusRights> = Arc::new(Login::new(adapters.bus_config(role.into())?));
        anyhow::Ok((role, login))
    });
    users.collect()
}

/// The bus, or one that says why it is away.
async fn bus(adapters: &Adapters) -> anyhow::Result<(Arc<dyn BusSetup>, Arc<dyn Events>)> {
    match session::connect(adapters, Role::Operator).await {
        Ok(bus) => {
            let bus = Arc::new(bus);
            Ok((Arc::clone(&bus) as _, bus))
        }
        Err(error) => {
            let away = Arc::new(Away(error.downcast()?));
            Ok((Arc::clone(&away) as _, away))
        }
    }
}

fn check(name: &str, level: Level, what: impl Into<String>, remedy: &str) -> Check {
    Check { name: name.to_owned(), level, what: what.into(), remedy: remedy.to_owned() }
}

fn print(console: Console, report: &Report) -> anyhow::Result<()> {
    let mut table = Table::facts();
    for check in &report.checks {
        let (tone, word) = match check.level {
            Level::Ok => (Tone::Good, "ok"),
            Level::Warn => (Tone::Busy, "warn"),
            Level::Fail => (Tone::Bad, "fail"),
        };
        table.row([Cell::toned(tone, word), check.name.as_str().into(), check.what.as_str().into()]);
        if !check.remedy.is_empty() {
            table.row(["".into(), "".into(), Cell::toned(tone, format!("→ {}", check.remedy))]);
        }
    }
    console.wrapped_table(&table)?;
    let of = |level| report.checks.iter().filter(|check| check.level == level).count();
    console.line(&format!(
        "{} ok, {} to look at, {} failed",
        of(Level::Ok),
        of(Level::Warn),
        of(Level::Fail)
    ))?;
    Ok(())
}
