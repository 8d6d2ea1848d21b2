//! `reconcile --once`: one sweep, for a timer or a person.

use std::time::Duration;

use fabrique_operator::Exit;
use fabrique_operator::tail::phase_text;
use fabrique_reconciler::{Depth, Sweep};

use crate::config::Role;
use crate::people::console::Console;
use crate::people::progress::showing;
use crate::people::words::{count, took};
use crate::wiring::{self, Adapters};

/// Sweeps once, looks again at who may be dead, and prints what was woken and why. Waking is what a sweep is for and
/// ends well; apps that could not be looked at, and what a person should look at, do not.
pub(crate) async fn once(console: Console, adapters: &Adapters) -> anyhow::Result<Exit> {
    // The start timeout of services: a timer is as patient as they are.
    let bus = adapters.bus(Role::Reconciler).await?;
    let reconciler = wiring::reconciler(adapters, &bus);
    let swept = showing("looking at every app", reconciler.sweep_alone(Depth::Full)).await;
    bus.close().await;
    let sweep = swept?;
    if console.is_json() {
        console.json(&sweep)?;
    } else {
        print(console, &sweep)?;
    }
    Ok(Exit::ok_if(sweep.failed.is_empty() && sweep.findings.is_empty()))
}

fn print(console: Console, sweep: &Sweep) -> anyhow::Result<()> {
    for woken in &sweep.woken {
        console.line(&format!("woken {}: {}", woken.app, woken.reason))?;
    }
    for restored in &sweep.restored {
        console.line(&format!("restored {}: tag {} at {}", restored.app, restored.tag, restored.digest))?;
    }
    for closed in &sweep.closed {
        console.line(&format!("ended {}: {}", closed.build, phase_text(&closed.phase)))?;
    }
    for finding in &sweep.findings {
        console.line(&format!("found: {}; {}", finding.what, finding.remedy))?;
    }
    for failed in &sweep.failed {
        console.line(&format!("not looked at {}: {}", failed.app, failed.error))?;
    }
    let (looked, woken) = (count(sweep.looked, "app"), sweep.woken.len());
    console.line(&format!(
        "looked at {looked} in {}, woke {woken}",
        took(Duration::from_millis(sweep.took_ms))
    ))?;
    Ok(())
}
