//! A sweep that no other of the same process follows: what one reading cannot show is waited for.

use std::time::{Duration, Instant};

use fabrique_core::work::WorkRecord;
use fabrique_ports::PortResult;

use super::{Depth, Failed, Finding, Reconciler, Sweep, Woken};
use crate::judge;

/// The longest lease that is waited for. A sweep by a timer has to be over before the next one, and workers take
/// over from the dead by themselves.
const LONGEST: Duration = Duration::from_mins(2);

impl Reconciler {
    /// Sweeps once, and looks again at the apps that were held, until each holder has moved its record or is silent
    /// for the lease: then its app is woken. Over at once where nobody holds an app, soon where all holders work, and
    /// after the lease at the latest.
    ///
    /// # Errors
    /// As [`sweep`](Self::sweep).
    pub async fn sweep_alone(&self, depth: Depth) -> PortResult<Sweep> {
        let started = Instant::now();
        let mut sweep = self.sweep(depth).await?;
        if self.config.lease <= LONGEST
            && let Err(error) = self.wake_silent(&mut sweep).await
        {
            sweep.findings.push(Finding {
                app: None,
                what: format!("the apps that are held could not be looked at again: {error}"),
                remedy: "the next sweep tries again".to_owned(),
            });
        }
        sweep.took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(sweep)
    }

    async fn wake_silent(&self, sweep: &mut Sweep) -> PortResult<()> {
        let lease = self.config.lease;
        loop {
            let Some(still) = self.leases().longest(Instant::now()) else { return Ok(()) };
            // Workers renew three times in a lease.
            tokio::time::sleep(lease.saturating_sub(still).min(lease / 3)).await;
            let work = self.ports.board.all_work().await?;
            let held = || work.iter().filter(|(_, _, record, _)| record.holder.is_some());
            self.leases().keep_still(held().map(|(app, _, _, revision)| (app, *revision)));
            let silent = self.leases().take_silent(lease, Instant::now());
            for (app, still) in silent {
                let record = held().find(|(of, ..)| *of == app).map(|(_, _, record, _)| record);
                let reason = judge::silent(record.unwrap_or(&WorkRecord::default()), still);
                match self.wake(&app, &reason, self.ambient.now()).await {
                    Ok(()) => sweep.woken.push(Woken { app, reason }),
                    Err(error) => sweep.failed.push(Failed { app, error: error.to_string() }),
                }
            }
        }
    }
}
