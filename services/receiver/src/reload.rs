//! Reading the registrations again, without doing it more often than it helps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fabrique_core::id::AppName;
use fabrique_ports::delivery::Push;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::config::ReceiverConfig;
use crate::measure;
use crate::subscriptions::Subscriptions;

/// The last reading.
struct Last {
    started: Instant,
    problem: Option<String>,
}

/// The door to [`Subscriptions::reload`]: one reading at a time, each spaced from the last, and whoever asks
/// while one runs shares the next.
pub(crate) struct Reloads {
    subscriptions: Arc<dyn Subscriptions>,
    spacing: Duration,
    timeout: Duration,
    /// How old the registrations may become while deliveries are answered by them, and how long such a delivery's
    /// own way to its commit is left alone.
    age: Duration,
    last: tokio::sync::Mutex<Option<Last>>,
    /// Apps that a reading told as changed and whose wake is not acknowledged yet: a reading tells each
    /// change once, to whomever asked, and that delivery may fail.
    owed: Mutex<Owed>,
}

/// Each app with the number of the reading that told it last.
#[derive(Default)]
struct Owed {
    readings: u64,
    apps: BTreeMap<AppName, u64>,
}

impl Reloads {
    pub(crate) fn new(subscriptions: Arc<dyn Subscriptions>, config: &ReceiverConfig) -> Self {
        Self {
            subscriptions,
            spacing: config.reload_spacing,
            timeout: config.reload_timeout,
            age: config.reload_age,
            last: tokio::sync::Mutex::default(),
            owed: Mutex::default(),
        }
    }

    pub(crate) fn subscriptions(&self) -> &dyn Subscriptions {
        &*self.subscriptions
    }

    /// The longest that a reading asked for now can take, with the one before it.
    pub(crate) fn patience(&self) -> Duration {
        self.timeout * 2 + self.spacing
    }

    /// When to read for a delivery that was `answered` by the registrations at hand: when the last reading, the one
    /// under way included, has its age, and not beside the worker that begins to look for the delivery now.
    pub(crate) async fn due(&self, answered: Instant) -> Instant {
        let last = self.last.lock().await;
        last.as_ref().map_or(answered, |last| last.started.max(answered)) + self.age
    }

    /// Waits for a reading that starts after this call, at most until `deadline`.
    ///
    /// The reading itself goes on past the deadline: the next delivery profits from it.
    pub(crate) async fn fresh(self: &Arc<Self>, deadline: Instant) -> Result<(), String> {
        let reloads = Arc::clone(self);
        let asked = Instant::now();
        let reading = tokio::spawn(async move { reloads.read_after(asked).await });
        match timeout_at(deadline, reading).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err("reading the registrations broke off".to_owned()),
            Err(_) => Err("the registrations are still being read".to_owned()),
        }
    }

    async fn read_after(&self, asked: Instant) -> Result<(), String> {
        let mut last = self.last.lock().await;
        if let Some(last) = &*last {
            if last.started >= asked {
                return last.problem.clone().map_or(Ok(()), Err);
            }
            sleep_until(last.started + self.spacing).await;
        }
        let started = Instant::now();
        let problem = match timeout(self.timeout, self.subscriptions.reload()).await {
            Ok(Ok(touched)) => {
                self.owe(touched);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("reading took more than {:?}", self.timeout)),
        };
        measure::reload(problem.is_none());
        if let Some(problem) = &problem {
            tracing::warn!(?problem, "the registrations could not be read");
        }
        *last = Some(Last { started, problem: problem.clone() });
        problem.map_or(Ok(()), Err)
    }

    /// Asks what a push to `cluster/apps` changed that the first reading had seen already, at most until `deadline`.
    /// After a reading, since that may have been the first.
    pub(crate) async fn catch_up(&self, push: &Push, deadline: Instant) -> Result<(), String> {
        match timeout_at(deadline, self.subscriptions.missed(push)).await {
            Ok(Ok(missed)) => {
                self.owe(missed);
                Ok(())
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("what the push changed is still being read".to_owned()),
        }
    }

    fn owe(&self, apps: BTreeSet<AppName>) {
        let mut owed = self.owed();
        owed.readings += 1;
        let reading = owed.readings;
        owed.apps.extend(apps.into_iter().map(|app| (app, reading)));
    }

    /// The apps that changed and are not woken yet, each with the reading that told it.
    pub(crate) fn owing(&self) -> BTreeMap<AppName, u64> {
        self.owed().apps.clone()
    }

    /// Notes that an app's wake is durable which was sent for this reading's change. A change that a later
    /// reading told stays owed: the worker may have looked before it was made.
    pub(crate) fn paid(&self, app: &AppName, reading: u64) {
        let mut owed = self.owed();
        if owed.apps.get(app).is_some_and(|told| *told <= reading) {
            owed.apps.remove(app);
        }
    }

    fn owed(&self) -> std::sync::MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
