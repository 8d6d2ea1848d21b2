//! Placement over a fixed list of daemons: one machine, development, or daemons that somebody else runs.

mod ledger;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBuilder};
use fabrique_core::failure::FailureKind;
use fabrique_ports::PortResult;
use fabrique_ports::builder::{
    Autopsy, BuildFailure, Builder, Condition, Daemon, Need, Placed, Placement, PlacementLease,
};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::ledger::{Ledger, Seat, Ticket};
use crate::channel::Address;
use crate::error::BuildkitError;

/// How many times an autopsy asks before it says that a daemon died.
const AUTOPSY_PROBES: usize = 3;

/// A daemon that is always there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticDaemon {
    /// Where it is.
    pub daemon: Daemon,
    /// How many builds it runs at once; one, unless its steps cannot harm each other.
    pub slots: usize,
}

/// How long a placement waits for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticSettings {
    /// How long an app waits for the daemon that has its cache before it takes another; at most half of its
    /// patience.
    pub warm_wait: Duration,
    /// The pause before a doubtful daemon is probed again; it doubles, with jitter, up to the longest.
    pub first_pause: Duration,
    /// The longest such pause.
    pub longest_pause: Duration,
}

impl Default for StaticSettings {
    fn default() -> Self {
        Self {
            warm_wait: Duration::from_secs(3),
            first_pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(30),
        }
    }
}

/// Leases the slots of configured daemons. First come, first served; an app goes back to the daemon that has its
/// cache while that one has a slot, or gets one soon. A daemon given back in doubt is closed until it answers a
/// probe.
pub struct StaticPlacement {
    shared: Arc<Shared>,
}

struct Shared {
    daemons: Vec<StaticDaemon>,
    prober: Arc<dyn Builder>,
    settings: StaticSettings,
    state: Mutex<State>,
}

struct State {
    ledger: Ledger,
    /// Where grants are sent.
    callers: HashMap<Ticket, oneshot::Sender<Seat>>,
}

impl StaticPlacement {
    /// A placement over `daemons`, whose health `prober` tells.
    ///
    /// # Errors
    /// When there is no daemon, or one has a name twice, no slot, or an address that is none.
    pub fn new(
        daemons: Vec<StaticDaemon>,
        prober: Arc<dyn Builder>,
        settings: StaticSettings,
    ) -> Result<Self, BuildkitError> {
        let wrong = |problem: String| Err(BuildkitError::Config { key: "daemons", problem });
        if daemons.is_empty() {
            return wrong("there must be at least one".to_owned());
        }
        for (index, entry) in daemons.iter().enumerate() {
            let name = &entry.daemon.name;
            Address::parse(&entry.daemon.address)?;
            if entry.slots == 0 {
                return wrong(format!("{name} has no slots"));
            }
            if daemons[..index].iter().any(|other| other.daemon.name == *name) {
                return wrong(format!("the name {name} is there twice"));
            }
        }
        let ledger = Ledger::new(daemons.iter().map(|entry| entry.slots));
        let state = Mutex::new(State { ledger, callers: HashMap::new() });
        Ok(Self { shared: Arc::new(Shared { daemons, prober, settings, state }) })
    }
}

#[async_trait]
impl Placement for StaticPlacement {
    async fn acquire(&self, need: &Need) -> PortResult<Placed> {
        let shared = &self.shared;
        let deadline = Instant::now() + need.patience;
        let warm = Instant::now() + shared.settings.warm_wait.min(need.patience / 2);
        let mut place = shared.join(ranking(need, &shared.daemons));
        if let Ok(seat) = tokio::time::timeout_at(warm, place.granted()).await {
            return Ok(Placed::Lease(shared.lease(seat)));
        }
        shared.change(|ledger| ledger.widen(place.ticket));
        match tokio::time::timeout_at(deadline, place.granted()).await {
            Ok(seat) => Ok(Placed::Lease(shared.lease(seat))),
            Err(_) => Ok(Placed::Full(shared.why_full())),
        }
    }

    async fn release(&self, lease: PlacementLease, condition: Condition) {
        let shared = &self.shared;
        let Some(daemon) = shared.index(&lease.daemon) else {
            tracing::warn!(daemon = lease.daemon.name, "a slot of an unknown daemon was given back");
            return;
        };
        let mut closed = false;
        shared.change(|ledger| {
            // Closed first, or the seat would go to somebody who waits.
            closed = condition == Condition::Doubt && ledger.doubt(daemon);
            if !ledger.give_back(Seat { daemon, slot: lease.slot }) {
                tracing::warn!(daemon = lease.daemon.name, slot = lease.slot, "a slot was given back twice");
            }
        });
        if closed {
            tracing::info!(daemon = lease.daemon.name, "the daemon is closed until it answers a probe");
            tokio::spawn(reopen(Arc::downgrade(shared), daemon));
        }
    }

    /// A step that was killed is left to the source: a fixed daemon has no more memory the next time.
    async fn autopsy(&self, daemon: &Daemon, _: &BuildFailure) -> Autopsy {
        let mut pauses = self.shared.pauses().with_max_times(AUTOPSY_PROBES - 1).build();
        loop {
            match (self.shared.prober.probe(daemon).await, pauses.next()) {
                (Ok(_), _) => return Autopsy::Alive,
                (Err(error), None) => {
                    let why = format!("does not answer any more ({error})");
                    return Autopsy::Died { kind: FailureKind::Infrastructure, why };
                }
                (Err(_), Some(pause)) => tokio::time::sleep(pause).await,
            }
        }
    }

    fn capacity(&self) -> usize {
        self.shared.daemons.iter().map(|entry| entry.slots).sum()
    }

    fn daemons(&self) -> Vec<Daemon> {
        self.shared.daemons.iter().map(|entry| entry.daemon.clone()).collect()
    }
}

/// Probes a closed daemon until it answers, ever more seldom, for as long as the placement lives.
async fn reopen(shared: Weak<Shared>, daemon: usize) {
    let Some(mut pauses) = shared.upgrade().map(|shared| shared.pauses().without_max_times().build()) else {
        return;
    };
    loop {
        let Some(living) = shared.upgrade() else { return };
        let entry = &living.daemons[daemon].daemon;
        match living.prober.probe(entry).await {
            Ok(_) => {
                tracing::info!(daemon = entry.name, "the daemon answers again");
                living.change(|ledger| ledger.clear(daemon));
                return;
            }
            Err(error) => tracing::debug!(daemon = entry.name, %error, "the daemon stays closed"),
        }
        let pause = pauses.next().unwrap_or(living.settings.longest_pause);
        drop(living);
        tokio::time::sleep(pause).await;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the ledger and tells everybody who got a seat by it.
    fn change<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        self.state().change(change)
    }

    fn join(&self, ranking: Vec<usize>) -> Place<'_> {
        let (caller, seat) = oneshot::channel();
        let mut state = self.state();
        let ticket = state.ledger.join(ranking);
        state.callers.insert(ticket, caller);
        state.change(|_| ());
        Place { shared: self, ticket, seat, taken: false }
    }

    fn lease(&self, seat: Seat) -> PlacementLease {
        PlacementLease { daemon: self.daemons[seat.daemon].daemon.clone(), slot: seat.slot }
    }

    fn index(&self, daemon: &Daemon) -> Option<usize> {
        self.daemons.iter().position(|entry| entry.daemon.name == daemon.name)
    }

    fn why_full(&self) -> String {
        let closed = self.state().ledger.doubtful();
        let slots: usize = self.daemons.iter().map(|entry| entry.slots).sum();
        if closed.is_empty() {
            return format!("all {slots} slots are taken");
        }
        let names: Vec<&str> = closed.iter().map(|&at| self.daemons[at].daemon.name.as_str()).collect();
        let names = names.join(", ");
        if closed.len() == self.daemons.len() {
            return format!("no daemon answers ({names})");
        }
        format!("the other slots are taken, and {names} does not answer")
    }

    fn pauses(&self) -> ExponentialBuilder {
        ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(self.settings.first_pause)
            .with_max_delay(self.settings.longest_pause)
    }
}

impl State {
    fn change<T>(&mut self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let outcome = change(&mut self.ledger);
        for (ticket, seat) in self.ledger.grant() {
            // A caller that has left is taken off the ledger under the same lock: whoever is granted listens.
            if let Some(caller) = self.callers.remove(&ticket) {
                let _ = caller.send(seat);
            }
        }
        outcome
    }
}

/// A place in the queue. Dropping it leaves the queue, or gives back a seat that was granted and not taken.
struct Place<'a> {
    shared: &'a Shared,
    ticket: Ticket,
    seat: oneshot::Receiver<Seat>,
    taken: bool,
}

impl Place<'_> {
    async fn granted(&mut self) -> Seat {
        match (&mut self.seat).await {
            Ok(seat) => {
                self.taken = true;
                seat
            }
            // The sender is dropped only together with this place.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let mut state = self.shared.state();
        state.callers.remove(&self.ticket);
        if !state.ledger.leave(self.ticket)
            && let Ok(seat) = self.seat.try_recv()
        {
            state.change(|ledger| ledger.give_back(seat));
        }
    }
}

/// All daemons, the best first: rendezvous hashing, so that an app keeps its daemon when others come and go.
fn ranking(need: &Need, daemons: &[StaticDaemon]) -> Vec<usize> {
    let mut ranking: Vec<usize> = (0..daemons.len()).collect();
    ranking.sort_by_cached_key(|&at| {
        let parts = [need.trust.as_str(), need.app.as_str(), daemons[at].daemon.name.as_str()];
        Sha256::digest(parts.join("\0"))
    });
    ranking
}

#[cfg(test)]
mod tests;
