//! `why`: the whole decision about one app, and what happens next.

use fabrique_operator::mirror::UpstreamFacts;
use fabrique_operator::{EnvironmentStatus, Exit, FailureStatus, MemoryFacts, Operator, RecordFacts, Why};

use crate::people::console::Console;
use crate::people::table::{Cell, Table, Tone};
use crate::people::{mirror, status, words};

/// Prints the decision about `app`.
pub(crate) async fn why(console: Console, operator: &Operator, app: &str) -> anyhow::Result<Exit> {
    let why = operator.why(app).await?;
    if console.is_json() {
        console.json(&why)?;
    } else {
        console.wrapped_table(&table(&why))?;
    }
    Ok(Exit::Ok)
}

fn table(why: &Why) -> Table {
    let app = &why.status;
    let mut table = Table::facts();
    table.fact("app", format!("{} from {} {}", app.app, app.repo, app.branch));
    table.row([Cell::toned(Tone::Faint, "state"), status::state(app)]);
    table.fact("target", words::short(app.target.as_ref()));
    table.fact("decision", format!("{}: {}", app.action, app.reason));
    table.fact("next", &why.next);
    for environment in &app.environments {
        environment_facts(&mut table, environment);
    }
    if let Some(running) = &app.running {
        let since = words::when(running.started);
        let (build, revision) = (&running.build, running.revision.short());
        let place = on(why.running_on.as_deref());
        table.fact("building", format!("{build} of {revision}{place}, started {since}"));
    }
    for failure in app.failures() {
        failure_facts(&mut table, failure);
    }
    table.fact("record", why.record.as_ref().map(record).unwrap_or_default());
    if let Some(upstream) = &why.upstream {
        upstream_facts(&mut table, upstream);
    }
    memory_facts(&mut table, &why.memory);
    let holder = app.holder.as_ref().map(|holder| format!(", held by {holder}")).unwrap_or_default();
    table.fact("wakes", format!("{} wanted, {} served{holder}", why.wanted, why.done));
    if let Some(until) = app.waiting_until {
        table.fact("waits", words::when(until));
    }
    table
}

fn environment_facts(table: &mut Table, environment: &EnvironmentStatus) {
    for (name, channel) in [("image", &environment.image), ("infra", &environment.infra)] {
        let deployed = channel.deployed.iter().map(|revision| revision.short().to_owned());
        let verdict = Some(channel.verdict.clone()).filter(|verdict| !verdict.is_empty());
        let facts: Vec<String> = deployed.chain(verdict).collect();
        table.fact(&format!("{} {name}", environment.environment), facts.join(": "));
    }
    table.fact(&format!("{} digest", environment.environment), words::digest(environment.digest.as_ref()));
    if let Some(trouble) = &environment.trouble {
        table.row([Cell::toned(Tone::Bad, format!("{} trouble", environment.environment)), trouble.into()]);
    }
}

fn upstream_facts(table: &mut Table, upstream: &UpstreamFacts) {
    let asked = upstream.asked.map(|asked| format!(", asked {}", words::when(asked))).unwrap_or_default();
    let head = words::short(upstream.head.as_ref());
    table.fact("github", format!("{} {} at {head}{asked}", upstream.github, upstream.branch));
    table.fact("checks", mirror::checks(upstream));
    if let Some(trouble) = &upstream.trouble {
        table.row([Cell::toned(Tone::Bad, "mirror"), trouble.into()]);
    }
}

/// A failed attempt, and what its step printed last.
pub(crate) fn failure_facts(table: &mut Table, failure: &FailureStatus) {
    table.fact("failure", failure_text(failure));
    for line in &failure.log_tail {
        table.row([Cell::from(""), format!("| {line}").into()]);
    }
}

fn failure_text(failure: &FailureStatus) -> String {
    let FailureStatus { kind, message, revision, attempts, .. } = failure;
    if !kind.counts() {
        return format!("no builder for {}: {message} (since {})", revision.short(), words::when(failure.at));
    }
    let attempts = words::count(usize::try_from(*attempts).unwrap_or(usize::MAX), "attempt");
    let dead = if failure.dead { ", given up" } else { "" };
    let at = words::when(failure.at);
    format!("{kind} at {}: {message} ({attempts}{dead}, the last {at})", revision.short())
}

fn record(facts: &RecordFacts) -> String {
    let there = match facts.in_registry {
        Some(true) => "in the registry",
        Some(false) => "lost by the registry",
        None => "the registry could not be asked",
    };
    let place = on(facts.built_on.as_deref());
    format!("{} by {}{place}, {there}", facts.record.digest, facts.record.build)
}

/// ` on builder-3 (userns)`
fn on(daemon: Option<&str>) -> String {
    daemon.map(|daemon| format!(" on {daemon}")).unwrap_or_default()
}

fn memory_facts(table: &mut Table, memory: &MemoryFacts) {
    if let Some(built) = &memory.built {
        table.fact("built", format!("{} by {}", built.revision.short(), built.build));
    }
    for fact in &memory.committed {
        let commit = fact.commit.as_ref().map(|commit| format!(" in {}", commit.short())).unwrap_or_default();
        let what = format!("{} on {}/{}{commit}", fact.revision.short(), fact.environment, fact.channel);
        table.fact("committed", what);
    }
    table.fact("unconfirmed", memory.intents.join(", "));
    table.fact("released", memory.released.as_ref().map(|revision| revision.short()).unwrap_or_default());
    if memory.rebuild > 0 {
        table.fact("rebuilds", memory.rebuild.to_string());
    }
}
