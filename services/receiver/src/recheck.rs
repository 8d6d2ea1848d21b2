//! Pushes that were answered by the registrations at hand, looked at once more after the next reading.
//!
//! Of several receivers one hears of a push to `cluster/apps`, and even that one may hear of it after a push to the
//! repository of an app that it registers. A push to a known repository waits for no reading all the same: it is
//! answered from memory, and its branch is noted here. The next reading tells whether an app follows the branch that
//! was not known to, and such an app is woken then, for the same cause. So is the app of a push that could not be
//! answered because the registrations were not read in time: its 503 promises nothing, and the forge delivers once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabrique_core::id::{AppName, BranchName, RepoName};
use fabrique_ports::bus::WakeCause;
use fabrique_ports::delivery::Push;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::intake::Intake;
use crate::subscriptions::Followers;

/// The most branches that wait for a reading. A push to one more is left to the reconciler, should it be needed.
const MOST: usize = 4096;

type Branch = (RepoName, BranchName);

/// The newest push to a branch.
struct Answered {
    at: Instant,
    /// The apps that were known to follow the branch.
    known: Vec<AppName>,
    cause: WakeCause,
}

/// The branches that wait for a reading.
#[derive(Default)]
pub(crate) struct Rechecks {
    waiting: Mutex<BTreeMap<Branch, Answered>>,
    came: Notify,
}

impl Rechecks {
    /// Notes a push for which these followers, and no others, are known just now.
    pub(crate) fn note(&self, push: &Push, followers: &Followers, cause: &WakeCause) {
        let known = match followers {
            Followers::Apps(apps) => apps.clone(),
            Followers::OtherBranch | Followers::UnknownRepository => Vec::new(),
        };
        let branch = (push.repo.clone(), push.branch.clone());
        let mut waiting = self.waiting();
        if waiting.len() < MOST || waiting.contains_key(&branch) {
            waiting.insert(branch, Answered { at: Instant::now(), known, cause: cause.clone() });
            self.came.notify_one();
        }
    }

    /// When the one that waits longest was answered.
    fn oldest(&self) -> Option<Instant> {
        self.waiting().values().map(|answered| answered.at).min()
    }

    /// Takes the pushes that were answered before `reading` began.
    fn before(&self, reading: Instant) -> BTreeMap<Branch, Answered> {
        let mut waiting = self.waiting();
        let (before, since) = std::mem::take(&mut *waiting).into_iter().partition(|(_, it)| it.at <= reading);
        *waiting = since;
        before
    }

    fn put_back(&self, branch: Branch, answered: Answered) {
        self.waiting().entry(branch).or_insert(answered);
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Branch, Answered>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the registrations again for the pushes that wait for it, each time when the last reading and the push that
/// waits longest have their age, until `closing`; then at once, if any wait by then.
pub(crate) async fn keep_up(intake: Arc<Intake>, closing: CancellationToken) {
    while !closing.is_cancelled() {
        tokio::select! {
            () = intake.rechecks.came.notified() => {}
            () = closing.cancelled() => {}
        }
        while let Some(oldest) = intake.rechecks.oldest() {
            let due = intake.reloads.due(oldest).await;
            tokio::select! {
                () = sleep_until(due) => {}
                () = closing.cancelled() => {}
            }
            intake.recheck().await;
            if closing.is_cancelled() {
                return;
            }
        }
    }
}

impl Intake {
    async fn recheck(&self) {
        let began = Instant::now();
        if self.reloads.fresh(began + self.reloads.patience()).await.is_err() {
            return;
        }
        for (branch, mut answered) in self.rechecks.before(began) {
            let Followers::Apps(now) = self.reloads.subscriptions().followers(&branch.0, &branch.1) else {
                continue;
            };
            let missed: Vec<AppName> = now.into_iter().filter(|app| !answered.known.contains(app)).collect();
            if missed.is_empty() {
                continue;
            }
            let owing = self.reloads.owing();
            let targets = missed.into_iter().map(|app| {
                let reading = owing.get(&app).copied();
                (app, reading)
            });
            let until = Instant::now() + self.config.wake_timeout;
            let outcomes = self.wake_all(targets.collect(), &answered.cause, until).await;
            let failed = outcomes.iter().any(|(_, problem)| problem.is_some());
            for (app, problem) in outcomes {
                let (repo, branch) = (&branch.0, &branch.1);
                match problem {
                    None => {
                        tracing::info!(%app, %repo, %branch, trace = answered.cause.trace, "woken, by newer registrations");
                        answered.known.push(app);
                    }
                    Some(problem) => {
                        tracing::warn!(%app, %repo, %branch, ?problem, "not woken; trying again")
                    }
                }
            }
            if failed {
                self.rechecks.put_back(branch, answered);
            }
        }
    }
}
