//! The worker's loop: follow the board, claim what is due, wait for the next change.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabrique_core::id::AppName;
use fabrique_core::time::Timestamp;
use fabrique_core::work::{Due, WorkItem, next_due};
use fabrique_observer::{AppsReader, Observer};
use fabrique_ports::bus::EventBody;
use fabrique_ports::{Ambient, Fault};
use fabrique_supervisor::{Supervisor, TaskEnded};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::announce::Announcer;
use crate::board::BoardView;
use crate::commands;
use crate::committer::Committer;
use crate::config::{Ports, WorkerConfig};
use crate::measure;
use crate::session::{self, Context, SessionEnd};
use crate::slots::{Slot, Slots};

/// The longest the loop sleeps when nothing is due: a bound on how long a missed signal could matter. No key: everything
/// that is due wakes the loop by itself, so that nobody waits for this.
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
    ///
    /// # Errors
    /// When a task in the background ended by itself, which stops the worker in the same way.
    pub async fn run(self, stop: CancellationToken) -> Result<(), TaskEnded> {
        let stop = stop.child_token();
        let (tasks, mut supervisor) = (TaskTracker::new(), Supervisor::new("worker"));
        let board = BoardView::new();
        let (announcer, telling) = Announcer::new(
            Arc::clone(&self.ports.events),
            Arc::clone(&self.ports.history),
            Arc::clone(&self.ambient),
        );
        supervisor.start("tells what happened", tasks.track_future(telling));
        let (committer, rounds) = Committer::new(
            self.ports.clone(),
            self.observer.clone(),
            Arc::clone(&self.apps),
            self.config.apps_repo.clone(),
            self.config.render.clone(),
            Arc::clone(&self.ambient),
        );
        supervisor.start("commits to cluster/apps", tasks.track_future(rounds));
        let followed = Arc::clone(&self.ports.board);
        let follow = Arc::clone(&board).follow(followed, self.config.bounds.backoff_base, stop.clone());
        supervisor.start("follows the board", tasks.track_future(follow));
        let builds = CancellationToken::new();
        let context = Arc::new(Context {
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
        let commands = commands::serve(Arc::clone(&context), tasks.clone(), stop.clone());
        supervisor.start("hears commands", tasks.track_future(commands));
        let grace = context.config.bounds.grace;
        let mut dispatcher = Dispatcher::new(context);
        let served = supervisor.serve(dispatcher.serve(&stop), &stop).await;
        builds.cancel();
        let Dispatcher { context, sessions, .. } = dispatcher;
        let deadline = tokio::time::Instant::now() + grace;
        wind_down(sessions, move || drop(context), &tasks, deadline).await;
        served.and(supervisor.all_ended(deadline).await.map(drop))
    }
}

/// Starts a session for each due app, and remembers the apps that have to wait for something local.
struct Dispatcher {
    context: Arc<Context>,
    sessions: JoinSet<SessionEnd>,
    /// Which task is the session of which app.
    busy: HashMap<Id, AppName>,
    /// Apps whose peers did not answer: how often in a row, and when to look again.
    backing_off: HashMap<AppName, (u32, Instant)>,
}

impl Dispatcher {
    fn new(context: Arc<Context>) -> Self {
        Self { context, sessions: JoinSet::new(), busy: HashMap::new(), backing_off: HashMap::new() }
    }

    async fn serve(&mut self, stop: &CancellationToken) {
        let mut changes = self.context.board.changes();
        while !stop.is_cancelled() {
            changes.mark_unchanged();
            let items = self.context.board.items(self.context.config.bounds.lease);
            self.forget_settled(&items);
            while let Some((item, slot)) = self.next(&items) {
                let app = item.app.clone();
                let task = self.sessions.spawn(session::run(Arc::clone(&self.context), item, slot));
                self.busy.insert(task.id(), app);
            }
            let sleep = self.until_next(&items);
            tokio::select! {
                () = stop.cancelled() => {}
                _ = changes.changed() => {}
                Some(ended) = self.sessions.join_next_with_id() => self.ended(ended),
                () = self.context.slots.freed.notified() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// Nobody waits for the slot of an app that another worker holds, and still less of one that was served.
    fn forget_settled(&self, items: &[WorkItem]) {
        let (now, own) = (self.context.ambient.now(), self.context.config.name.as_str());
        for item in items {
            let holder = item.record.holder.as_deref();
            // The board may not show yet that an app of our own was given back.
            if holder == Some(own) || self.is_busy(&item.app) {
                continue;
            }
            if item.due(now) == Due::Now {
                self.context.slots.held_elsewhere(&item.app, false);
            } else if holder.is_some() {
                self.context.slots.held_elsewhere(&item.app, true);
            } else {
                self.context.slots.forget(&item.app);
            }
        }
    }

    /// The next app to claim, with its slot where it waits for one and one is free.
    fn next(&mut self, items: &[WorkItem]) -> Option<(WorkItem, Option<Slot>)> {
        let slots = &self.context.slots;
        if self.busy.len() >= self.context.config.bounds.looks + slots.taken() {
            return None;
        }
        let now = Instant::now();
        let open = items.iter().filter(|item| {
            !self.is_busy(&item.app)
                && !slots.has_to_wait(&item.app, item.wanted)
                && self.backing_off.get(&item.app).is_none_or(|(_, until)| *until <= now)
        });
        let item = next_due(open, self.context.ambient.now())?.clone();
        let slot = slots.hand_to(&item.app);
        Some((item, slot))
    }

    fn ended(&mut self, ended: Result<(Id, SessionEnd), JoinError>) {
        let (task, end) = match ended {
            Ok((task, end)) => (task, Some(end)),
            Err(error) => {
                tracing::error!(%error, "an app's session panicked; its lease will expire");
                (error.id(), None)
            }
        };
        let Some(app) = self.busy.remove(&task) else { return };
        if !matches!(end, Some(SessionEnd::NeedsSlot)) {
            self.context.slots.forget(&app);
        }
        let Some(end) = end else { return };
        match end {
            SessionEnd::Settled | SessionEnd::NeedsSlot => drop(self.backing_off.remove(&app)),
            SessionEnd::Overtaken => {
                self.backing_off.insert(app, (0, Instant::now() + self.backoff(0, true) / 4));
            }
            SessionEnd::Failed(error) => {
                let (times, _) = self.backing_off.get(&app).copied().unwrap_or((0, Instant::now()));
                let wait = self.backoff(times, error.transient());
                tracing::warn!(%app, %error, wait_ms = wait.as_millis(), "looked in vain");
                if error.fault() == Fault::Denied {
                    let body = EventBody::Warning { app: Some(app.clone()), message: error.to_string() };
                    self.context.announcer.say(None, body);
                }
                measure::trouble(error.peer());
                self.backing_off.insert(app, (times.saturating_add(1), Instant::now() + wait));
            }
        }
    }

    fn is_busy(&self, app: &AppName) -> bool {
        self.busy.values().any(|busy| busy == app)
    }

    /// Exponential with jitter; what only a person can change waits longest at once.
    fn backoff(&self, times: u32, transient: bool) -> Duration {
        let config = &self.context.config;
        let full = if transient {
            config.bounds.backoff_base.saturating_mul(1 << times.min(16)).min(config.bounds.backoff_max)
        } else {
            config.bounds.backoff_max
        };
        full / 2 + (full / 2).mul_f64(self.context.ambient.jitter().clamp(0.0, 1.0))
    }

    /// How long until something may be due without a change on the board.
    fn until_next(&self, items: &[WorkItem]) -> Duration {
        let now: Timestamp = self.context.ambient.now();
        let waits = items.iter().filter_map(|item| match item.due(now) {
            Due::At(until) => Some(now.until(until)),
            Due::Now | Due::No => None,
        });
        let here = Instant::now();
        let retries = self.backing_off.values().map(|(_, until)| until.saturating_duration_since(here));
        let retries = retries.filter(|wait| !wait.is_zero());
        // What was seen dead already waits for a free look, whose end wakes the loop. What died since then does not.
        let dead: HashSet<&AppName> =
            items.iter().filter(|item| item.lease_expired).map(|item| &item.app).collect();
        let unwatched = |app: &AppName| {
            self.is_busy(app)
                || dead.contains(app)
                || self.backing_off.get(app).is_some_and(|(_, until)| *until > here)
        };
        let leases = self.context.board.next_expiry(self.context.config.bounds.lease, unwatched);
        waits
            .chain(retries)
            .chain(leases)
            .min()
            .unwrap_or(LONGEST_SLEEP)
            .clamp(Duration::from_millis(1), LONGEST_SLEEP)
    }
}

/// Waits until every app is given back and then, once `last` let go of what it waits for, for the work in the background:
/// for all of it until `deadline`, since what follows has to be over too before the process is killed.
async fn wind_down<T: 'static>(
    mut sessions: JoinSet<T>,
    last: impl FnOnce(),
    tasks: &TaskTracker,
    deadline: tokio::time::Instant,
) {
    let given_back = async { while sessions.join_next().await.is_some() {} };
    if tokio::time::timeout_at(deadline, given_back).await.is_err() {
        tracing::warn!(
            apps = sessions.len(),
            "some apps were not given back within the grace; their leases will expire"
        );
        sessions.shutdown().await;
    }
    last();
    tasks.close();
    if tokio::time::timeout_at(deadline, tasks.wait()).await.is_err() {
        tracing::warn!("background work did not end within the grace and is dropped");
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::work::{Generation, WorkRecord};
    use fabrique_ports::PortResult;
    use fabrique_ports::bus::{Board, BoardChange};
    use fabrique_ports::records::Swap;
    use futures::stream::BoxStream;

    use super::*;

    /// A board whose adapter has a defect.
    struct Defective;

    #[async_trait::async_trait]
    impl Board for Defective {
        async fn watch_board(&self) -> PortResult<BoxStream<'static, BoardChange>> {
            Ok(Box::pin(futures::stream::poll_fn(|_| panic!("a change that nobody expected"))))
        }

        async fn swap_work(&self, _: &AppName, _: &WorkRecord, _: u64) -> PortResult<Swap> {
            Ok(Swap::Lost)
        }

        async fn work_of(&self, _: &AppName) -> PortResult<(Generation, WorkRecord, u64)> {
            Ok(Default::default())
        }

        async fn all_work(&self) -> PortResult<Vec<(AppName, Generation, WorkRecord, u64)>> {
            Ok(vec![])
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_stops_the_worker_with_an_error_that_names_it() {
        let (mut supervisor, stop) = (Supervisor::new("worker"), CancellationToken::new());
        let retry = Duration::from_secs(1);
        let follow = BoardView::new().follow(Arc::new(Defective), retry, stop.clone());
        supervisor.start("follows the board", follow);
        let ended = supervisor.serve(std::future::pending(), &stop).await.unwrap_err().to_string();
        assert!(ended.contains("follows the board") && ended.contains("nobody expected"), "{ended}");
        assert!(stop.is_cancelled(), "what else runs is told to end");
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_stops_takes_its_grace_once_whatever_hangs() {
        let grace = Duration::from_secs(20);
        let began = tokio::time::Instant::now();
        let (mut sessions, tasks) = (JoinSet::new(), TaskTracker::new());
        sessions.spawn(std::future::pending::<()>());
        tasks.spawn(std::future::pending::<()>());
        wind_down(sessions, || {}, &tasks, began + grace).await;
        assert_eq!(began.elapsed(), grace);
    }

    #[tokio::test(start_paused = true)]
    async fn work_in_the_background_that_waits_for_the_sessions_to_end_has_what_is_left_of_the_grace() {
        let began = tokio::time::Instant::now();
        let (mut sessions, tasks) = (JoinSet::new(), TaskTracker::new());
        sessions.spawn(tokio::time::sleep(Duration::from_secs(5)));
        let stop = CancellationToken::new();
        let (stopped, flushed) = (stop.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let done = Arc::clone(&flushed);
        tasks.spawn(async move {
            stopped.cancelled().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        wind_down(sessions, || stop.cancel(), &tasks, began + Duration::from_secs(20)).await;
        assert!(flushed.load(std::sync::atomic::Ordering::SeqCst));
        assert_eq!(began.elapsed(), Duration::from_secs(8));
    }
}
