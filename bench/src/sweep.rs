//! A sweep over many apps with nothing to do.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::{Peer, wait_until};
use serde_json::Value;

use crate::Options;
use crate::fleet::Fleet;
use crate::process;
use crate::report::{Check, Figure, Series};

/// The longest that one sweep may take here.
const SWEPT: Duration = Duration::from_secs(120);
const PAUSE: &str = "300ms";

/// Sweeps over and over with one process, and reads its memory after each.
pub(crate) async fn measure(options: &Options, fleet: &Fleet) -> Result<Figure> {
    let peer = process::reconciler(&fleet.stage, PAUSE).await?;
    let (mut seconds, mut memory) = (Vec::new(), Vec::new());
    // The first one starts cold and asks for every image too; it is shown by itself.
    for number in 0..=options.rounds as usize {
        let what = format!("sweep {number}");
        let swept = wait_until(&what, SWEPT, || async { sweeps(&peer).into_iter().nth(number) }).await;
        let swept = swept.with_context(|| peer.log_tail(5))?;
        ensure!(
            swept["looked"] == fleet.apps.len() && swept["woken"] == 0 && swept["failed"] == 0,
            "there was something to do: {swept}\n{}",
            peer.log_tail(10)
        );
        seconds.push(swept["took_ms"].as_f64().context("took_ms")? / 1e3);
        memory.push(process::resident_of(&peer)?);
    }
    if let Some(folder) = &options.logs {
        process::keep_log(&peer, folder)?;
    }
    peer.stop().await?;
    let (first, later) = (seconds[0], seconds.split_off(1));
    let growth = memory.last().zip(memory.get(1)).map(|(last, second)| last / second);
    Ok(Figure {
        name: format!("Sweep of {} apps with nothing to do", fleet.apps.len()),
        method: format!(
            "`fabrique reconcile --every {PAUSE}` over apps that are all deployed at their head; the time is its own, \
             from its log. The first sweep starts without a clone and asks the registry for every image, which in \
             production happens once an hour. Memory is the resident size after each sweep."
        ),
        series: vec![
            Series::new("first sweep, images too", "s", vec![first]),
            Series::new("later sweeps", "s", later.clone()),
            Series::new("resident memory", "MB", memory),
        ],
        checks: vec![
            Check::at_most("first sweep (s)", vec![first], 10.0),
            Check::at_most("later sweeps (s)", later, 10.0),
            Check::at_most("memory, last / second sweep", growth.into_iter().collect(), 1.1),
        ],
    })
}

/// The finished sweeps that a reconciler's log tells of.
fn sweeps(peer: &Peer) -> Vec<Value> {
    let log = std::fs::read_to_string(peer.log_path()).unwrap_or_default();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == "swept").collect()
}
