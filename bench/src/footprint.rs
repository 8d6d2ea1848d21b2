//! What each role takes of the machine.

use anyhow::{Context as _, Result};
use fabrique_stage::Stage;

use crate::Options;
use crate::fleet::Fleet;
use crate::report::{Check, Figure, Series};
use crate::{load, process};

const CONNECTIONS: usize = 8;
const PAUSE: &str = "2s";
/// Minutes that a fleet may take to be looked at.
const PATIENCE: usize = 5;

/// Starts one process for each role, delivers, waits until everything is looked at, and reads the resident
/// memory.
pub(crate) async fn measure(options: &Options, fleet: &Fleet) -> Result<Figure> {
    let stage = &fleet.stage;
    let (receiver, worker) = (stage.receiver().await?, stage.worker().await?);
    let reconciler = process::reconciler(stage, PAUSE).await?;
    let (requests, address) = (load::requests(stage, &fleet.apps)?, load::address(stage)?);
    let count = options.deliveries as usize;
    let worker_of = |turns| load::deliver(address.clone(), requests.clone(), turns);
    load::run(CONNECTIONS, count, worker_of).await.context("delivering")?;
    for app in fleet.apps.iter().take(count) {
        looked_at(stage, &app.name).await?;
    }
    let roles = [("receiver", &receiver.peer), ("worker", &worker.peer), ("reconcile", &reconciler)];
    let (mut series, mut checks) = (Vec::new(), Vec::new());
    for (role, peer) in roles {
        let memory = vec![process::resident_of(peer)?];
        series.push(Series::new(role, "MB", memory.clone()));
        checks.push(Check::at_most(format!("{role} (MB)"), memory, 40.0));
        if let Some(folder) = &options.logs {
            process::keep_log(peer, folder)?;
        }
        peer.stop().await?;
    }
    let size = std::fs::metadata(stage.binary()).context("the binary's size")?.len() as f64 / 1e6;
    series.push(Series::new("binary", "MB", vec![size]));
    checks.push(Check::at_most("binary (MB)", vec![size], 60.0));
    Ok(Figure {
        name: format!("Footprint after {count} deliveries"),
        method: format!(
            "One process for each role, {} registered apps; {count} signed deliveries over {CONNECTIONS} connections, \
             until the worker has looked at every app that they woke, while the reconciler sweeps every {PAUSE}. \
             Resident size of each process then; size of the binary on disk.",
            fleet.apps.len()
        ),
        series,
        checks,
    })
}

/// Waits until an app's wakes are served. The first one that is asked for may be the last of the whole fleet to
/// be looked at, so the stage's patience, which is meant for one app, is taken more than once.
async fn looked_at(stage: &Stage, app: &str) -> Result<()> {
    let mut outcome = Ok(());
    for _ in 0..PATIENCE {
        outcome = stage.settled(app, 0).await;
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}
