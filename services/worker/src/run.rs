//! The worker's loop: follow the board, claim what is due, wait for the next change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabrique_core::id::AppName;
use fabrique_core::time::Timestamp;
use fabrique_core::work::{Desk, Due, next_due};
use fabrique_observer::{AppsReader, Observer};
use fabrique_ports::bus::EventBody;
use fabrique_ports::{Ambient, Fault};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::announce::Announcer;
use crate::attend::{Left, Shop, attend};
use crate::board::BoardView;
use crate::commands;
use crate::committer::Committer;
use crate::config::{Ports, WorkerConfig};
use crate::slots::{Slot, Slots};

/// The longest the loop sleeps when nothing is due: a bound on how long a missed signal could matter.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// A worker.
pub struct Worker {
    config: WorkerConfig,
    ports: Ports,
    observer: Observer,
    apps: Arc<AppsReader>,
    ambient: Arc<dyn Ambient>,
}

impl Worker {
    /// A worker that looks through `observer` and acts through `ports`.
    #[must_use]
    pub fn new(
        config: WorkerConfig,
        ports: Ports,
        observer: Observer,
        apps: Arc<AppsReader>,
        ambient: Arc<dyn Ambient>,
    ) -> Self {
        Self { config, ports, observer, apps, ambient }
    }

    /// Works until `stop`. Then claims nothing more, stops the builds that are not past the point of no
    /// return, and returns when every app is given back or the configured grace is over.
    pub async fn run(self, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        let board = BoardView::new();
        let announcer = Announcer::start(
            Arc::clone(&self.ports.events),
            Arc::clone(&self.ports.history),
            Arc::clone(&self.ambient),
            &tasks,
        );
        let (committer, rounds) = Committer::new(
            self.ports.clone(),
            self.observer.clone(),
            Arc::clone(&self.apps),
            self.config.apps_repo.clone(),
            Arc::clone(&self.ambient),
        );
        tasks.spawn(rounds);
        let follow =
            (Arc::clone(&board), Arc::clone(&self.ports.board), self.config.backoff_base, stop.clone());
        tasks.spawn(async move {
            let (view, board, retry, stop) = follow;
            view.follow(board.as_ref(), retry, stop).await;
        });
        let builds = CancellationToken::new();
        let shop = Arc::new(Shop {
            slots: Slots::new(self.ports.placement.capacity()),
            stop: builds.clone(),
            config: self.config,
            ports: self.ports,
            observer: self.observer,
            apps: self.apps,
            ambient: self.ambient,
            board,
            committer,
            announcer,
        });
        tasks.spawn(commands::serve(Arc::clone(&shop), stop.clone()));
        let grace = shop.config.grace;
        let mut desk = FrontDesk::new(shop);
        desk.serve(&stop).await;
        desk.close(&builds, grace).await;
        drop(desk);
        tasks.close();
        if tokio::time::timeout(grace, tasks.wait()).await.is_err() {
            tracing::warn!("background work did not end within the grace and is dropped");
        }
    }
}

/// Apps being attended to, and those that have to wait for something local.
struct FrontDesk {
    shop: Arc<Shop>,
    attended: JoinSet<Left>,
    /// Which task attends to which app.
    busy: HashMap<Id, AppName>,
    /// Apps whose peers did not answer: how often in a row, and when to look again.
    troubled: HashMap<AppName, (u32, Instant)>,
}

impl FrontDesk {
    fn new(shop: Arc<Shop>) -> Self {
        Self { shop, attended: JoinSet::new(), busy: HashMap::new(), troubled: HashMap::new() }
    }

    async fn serve(&mut self, stop: &CancellationToken) {
        let mut changes = self.shop.board.changes();
        while !stop.is_cancelled() {
            changes.mark_unchanged();
            let desks = self.shop.board.desks(self.shop.config.lease);
            self.forget_settled(&desks);
            while let Some((desk, slot)) = self.next(&desks) {
                let app = desk.app.clone();
                let task = self.attended.spawn(attend(Arc::clone(&self.shop), desk, slot));
                self.busy.insert(task.id(), app);
            }
            let sleep = self.until_next(&desks);
            tokio::select! {
                () = stop.cancelled() => {}
                _ = changes.changed() => {}
                Some(left) = self.attended.join_next_with_id() => self.left(left),
                () = self.shop.slots.freed.notified() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Nobody waits for the slot of an app that another worker holds or has served.
    fn forget_settled(&self, desks: &[Desk]) {
        let (now, own) = (self.shop.ambient.now(), self.shop.config.name.as_str());
        for desk in desks {
            // The board may not show yet that an app of our own was given back.
            let ours = desk.record.holder.as_deref() == Some(own) || self.is_busy(&desk.app);
            if !ours && desk.due(now) != Due::Now {
                self.shop.slots.forget(&desk.app);
            }
        }
    }

    /// The next app to claim, with its slot where it waits for one and one is free.
    fn next(&mut self, desks: &[Desk]) -> Option<(Desk, Option<Slot>)> {
        let slots = &self.shop.slots;
        if self.busy.len() >= self.shop.config.looks + slots.taken() {
            return None;
        }
        let now = Instant::now();
        let open = desks.iter().filter(|desk| {
            !self.is_busy(&desk.app)
                && !slots.has_to_wait(&desk.app, desk.wanted)
                && self.troubled.get(&desk.app).is_none_or(|(_, until)| *until <= now)
        });
        let desk = next_due(open, self.shop.ambient.now())?.clone();
        let slot = slots.hand_to(&desk.app);
        Some((desk, slot))
    }

    fn left(&mut self, left: Result<(Id, Left), JoinError>) {
        let (task, left) = match left {
            Ok((task, left)) => (task, Some(left)),
            Err(error) => {
                tracing::error!(%error, "attending to an app panicked; its lease will expire");
                (error.id(), None)
            }
        };
        let Some(app) = self.busy.remove(&task) else { return };
        if !matches!(left, Some(Left::NeedsSlot)) {
            self.shop.slots.forget(&app);
        }
        let Some(left) = left else { return };
        match left {
            Left::Settled | Left::NeedsSlot => drop(self.troubled.remove(&app)),
            Left::Overtaken => {
                self.troubled.insert(app, (0, Instant::now() + self.backoff(0, true) / 4));
            }
            Left::Troubled(error) => {
                let (times, _) = self.troubled.get(&app).copied().unwrap_or((0, Instant::now()));
                let wait = self.backoff(times, error.transient());
                tracing::warn!(%app, %error, wait_ms = wait.as_millis(), "looked in vain");
                if error.fault() == Fault::Denied {
                    let body = EventBody::Warning { app: Some(app.clone()), message: error.to_string() };
                    self.shop.announcer.say(None, body);
                }
                metrics::counter!("fabrique_troubles_total", "peer" => error.peer().to_string()).increment(1);
                self.troubled.insert(app, (times.saturating_add(1), Instant::now() + wait));
            }
        }
    }

    fn is_busy(&self, app: &AppName) -> bool {
        self.busy.values().any(|busy| busy == app)
    }

    /// Exponential with jitter; what only a person can change waits longest at once.
    fn backoff(&self, times: u32, transient: bool) -> Duration {
        let config = &self.shop.config;
        let full = if transient {
            config.backoff_base.saturating_mul(1 << times.min(16)).min(config.backoff_max)
        } else {
            config.backoff_max
        };
        full / 2 + (full / 2).mul_f64(self.shop.ambient.jitter().clamp(0.0, 1.0))
    }

    /// How long until something may be due without a change on the board.
    fn until_next(&self, desks: &[Desk]) -> Duration {
        let now: Timestamp = self.shop.ambient.now();
        let waits = desks.iter().filter_map(|desk| match desk.due(now) {
            Due::At(until) => Some(now.until(until)),
            Due::Now | Due::No => None,
        });
        let here = Instant::now();
        let troubles = self.troubled.values().map(|(_, until)| until.saturating_duration_since(here));
        let troubles = troubles.filter(|wait| !wait.is_zero());
        let unwatched = |app: &AppName| self.is_busy(app) || self.troubled.contains_key(app);
        let leases = self.shop.board.next_expiry(self.shop.config.lease, unwatched);
        waits
            .chain(troubles)
            .chain(leases)
            .min()
            .unwrap_or(LONGEST_SLEEP)
            .clamp(Duration::from_millis(1), LONGEST_SLEEP)
    }

    /// Stops the builds and waits until every app is given back.
    async fn close(&mut self, builds: &CancellationToken, grace: Duration) {
        builds.cancel();
        let ended = tokio::time::timeout(grace, async { while self.attended.join_next().await.is_some() {} });
        if ended.await.is_err() {
            tracing::warn!(
                apps = self.attended.len(),
                "some apps were not given back within the grace; their leases will expire"
            );
            self.attended.shutdown().await;
        }
    }
}
