//! `init`: what is missing on the bus.

use std::time::Duration;

use fabrique_operator::Exit;
use fabrique_ports::bus::{BusFinding, BusSetup as _};
use serde::Serialize;

use crate::config::Role;
use crate::people::console::Console;
use crate::people::session;
use crate::wiring::Adapters;

/// A difference between a stream and what it should be.
#[derive(Serialize)]
struct Difference {
    fatal: bool,
    what: String,
    remedy: String,
}

/// What came of it.
#[derive(Serialize)]
struct Made {
    findings: Vec<Difference>,
}

/// Makes missing streams and buckets as `admin` and tells what differs.
pub(crate) async fn init(console: Console, adapters: &Adapters) -> anyhow::Result<Exit> {
    // It is mostly a job that is started with the bus.
    let bus = session::connect_within(adapters, Role::Admin, Duration::MAX).await?;
    let found = bus.ensure().await;
    bus.close().await;
    let fatal = |finding: &BusFinding| finding.fatal;
    let found = found?;
    let exit = Exit::ok_if(!found.iter().any(fatal));
    let differences =
        found.into_iter().map(|BusFinding { fatal, what, remedy }| Difference { fatal, what, remedy });
    let made = Made { findings: differences.collect() };
    if console.is_json() {
        console.json(&made)?;
    } else if made.findings.is_empty() {
        console.line("every stream and bucket is there")?;
    } else {
        for finding in &made.findings {
            console.line(&format!("{}; {}", finding.what, finding.remedy))?;
        }
    }
    Ok(exit)
}
