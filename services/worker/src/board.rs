//! The board as this worker sees it: every app's newest wake and work record, with the observer's own
//! clock for leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fabrique_core::id::{AppName, Revision};
use fabrique_core::work::{Generation, WorkItem, WorkRecord};
use fabrique_ports::bus::{Board, BoardChange};
use futures::StreamExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The newest wake of an app.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) generation: Generation,
    /// The trace that came with it.
    pub(crate) trace: Option<String>,
    /// The commit of the app's source that it named.
    pub(crate) named: Option<Revision>,
}

struct Seen {
    wanted: Wanted,
    record: WorkRecord,
    revision: u64,
    /// When `revision` last changed, by this process's monotonic clock.
    since: Instant,
}

impl Default for Seen {
    fn default() -> Self {
        Self { wanted: Wanted::default(), record: WorkRecord::default(), revision: 0, since: Instant::now() }
    }
}

/// The followed board. Cheap to share; every change is signalled.
pub(crate) struct BoardView {
    seen: Mutex<HashMap<AppName, Seen>>,
    changes: watch::Sender<u64>,
}

impl BoardView {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { seen: Mutex::default(), changes: watch::Sender::new(0) })
    }

    /// Follows the board until `stop`; a stream that ends or cannot be had is opened again.
    pub(crate) async fn follow(
        self: Arc<Self>,
        board: Arc<dyn Board>,
        retry: Duration,
        stop: CancellationToken,
    ) {
        while !stop.is_cancelled() {
            match board.watch_board().await {
                Err(error) => tracing::warn!(%error, "the board cannot be watched; trying again"),
                Ok(mut changes) => loop {
                    tokio::select! {
                        () = stop.cancelled() => return,
                        change = changes.next() => match change {
                            Some(change) => self.apply(change),
                            None => break,
                        },
                    }
                },
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(retry) => {}
            }
        }
    }

    fn apply(&self, change: BoardChange) {
        {
            let mut seen = self.lock();
            match change {
                BoardChange::Wanted { app, generation, cause } => {
                    let seen = seen.entry(app).or_default();
                    if generation > seen.wanted.generation {
                        let (trace, named) = cause.map(|c| (c.trace, c.named)).unwrap_or_default();
                        seen.wanted = Wanted { generation, trace, named };
                    }
                }
                BoardChange::Work { app, record, revision } => {
                    let seen = seen.entry(app).or_default();
                    if revision > seen.revision {
                        seen.record = record;
                        seen.revision = revision;
                        seen.since = Instant::now();
                    }
                }
                BoardChange::Current => {}
                // Sequences may start over with a new stream: nothing known before can be compared.
                BoardChange::Restarted => seen.clear(),
            }
        }
        self.changes.send_modify(|n| *n += 1);
    }

    /// Every app, with leases judged dead after `lease`.
    pub(crate) fn items(&self, lease: Duration) -> Vec<WorkItem> {
        self.lock()
            .iter()
            .map(|(app, seen)| WorkItem {
                app: app.clone(),
                wanted: seen.wanted.generation,
                record: seen.record.clone(),
                revision: seen.revision,
                lease_expired: seen.record.holder.is_some() && seen.since.elapsed() >= lease,
            })
            .collect()
    }

    /// When the next lease dies unless it is renewed, apart from those of apps to `skip`.
    pub(crate) fn next_expiry(&self, lease: Duration, skip: impl Fn(&AppName) -> bool) -> Option<Duration> {
        self.lock()
            .iter()
            .filter(|(app, seen)| seen.record.holder.is_some() && !skip(app))
            .map(|(_, seen)| lease.saturating_sub(seen.since.elapsed()))
            .min()
    }

    /// The newest wake of an app.
    pub(crate) fn wanted(&self, app: &AppName) -> Wanted {
        self.lock().get(app).map(|seen| seen.wanted.clone()).unwrap_or_default()
    }

    /// Told of every change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until something else than `noted` is wanted of `app`: something newer, whose generation is smaller where the
    /// stream of wakes was made anew. While the board is read again nothing is known to be.
    pub(crate) async fn newer_than(&self, app: &AppName, noted: Generation) {
        let mut changes = self.changes();
        let nothing = Generation::default();
        while [noted, nothing].contains(&self.wanted(app).generation) {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<AppName, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn held(view: &BoardView, app: &str, ago: Duration) {
        let app = AppName::parse(app).unwrap();
        let record = WorkRecord { holder: Some("bk".to_owned()), ..WorkRecord::default() };
        view.apply(BoardChange::Work { app: app.clone(), record, revision: 1 });
        if let Some(seen) = view.lock().get_mut(&app) {
            seen.since = Instant::now().checked_sub(ago).unwrap();
        }
    }

    fn wake(view: &BoardView, app: &AppName, generation: u64) {
        let (app, generation) = (app.clone(), Generation(generation));
        view.apply(BoardChange::Wanted { app, generation, cause: None });
    }

    #[tokio::test]
    async fn a_wake_is_newer_than_what_was_noted_of_a_stream_that_is_gone() {
        let (view, app) = (BoardView::new(), AppName::parse("citation").unwrap());
        wake(&view, &app, 50);
        let newer = view.newer_than(&app, Generation(50));
        tokio::pin!(newer);
        for change in [None, Some(BoardChange::Restarted)] {
            if let Some(change) = change {
                view.apply(change);
            }
            assert!(futures::poll!(newer.as_mut()).is_pending());
        }
        wake(&view, &app, 1);
        assert!(futures::poll!(newer.as_mut()).is_ready());
        // The same stream, read again after a lost connection.
        view.apply(BoardChange::Restarted);
        wake(&view, &app, 1);
        let newer = view.newer_than(&app, Generation(1));
        tokio::pin!(newer);
        assert!(futures::poll!(newer.as_mut()).is_pending());
    }

    #[test]
    fn the_next_lease_that_dies_is_the_one_that_was_renewed_longest_ago() {
        let view = BoardView::new();
        assert_eq!(view.next_expiry(LEASE, |_| false), None);
        held(&view, "citation", LEASE * 2);
        held(&view, "ledger", LEASE / 2);
        assert_eq!(view.next_expiry(LEASE, |_| false), Some(Duration::ZERO), "it died just now");
        let left = view.next_expiry(LEASE, |app| app.as_str() == "citation").unwrap();
        assert!(!left.is_zero() && left <= LEASE / 2, "{left:?}");
    }
}
