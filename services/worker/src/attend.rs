//! Attending to one claimed app: look, decide, act, until nothing is left to do.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabrique_core::app::App;
use fabrique_core::decision::{Action, Advance, Decision, Reason, decide};
use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::{AppName, Revision};
use fabrique_core::policy::Attempt;
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::Verdict;
use fabrique_core::view::{Target, View};
use fabrique_core::work::{Desk, Generation};
use fabrique_observer::{Ahead, Apps, AppsReader, Observer};
use fabrique_ports::bus::EventBody;
use fabrique_ports::records::{BuildEntry, BuildPhase};
use fabrique_ports::{Ambient, Fault, Peer, PortError, PortResult};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::announce::Announcer;
use crate::board::BoardView;
use crate::building::{self, Build, Ended, Finished};
use crate::committer::{Committer, Landed, Refused, Task, Written};
use crate::config::{Ports, WorkerConfig};
use crate::lease::Lease;
use crate::memory::AppMemory;
use crate::pending::Pending;
use crate::settle::settle;
use crate::slots::{Slot, Slots};
use crate::status;
use crate::writeback::Image;

/// Looks at one app in a row before others get their turn.
const LOOKS: usize = 30;

/// What every attendance shares.
pub(crate) struct Shop {
    pub(crate) config: WorkerConfig,
    pub(crate) ports: Ports,
    pub(crate) observer: Observer,
    pub(crate) apps: Arc<AppsReader>,
    pub(crate) ambient: Arc<dyn Ambient>,
    pub(crate) board: Arc<BoardView>,
    pub(crate) committer: Committer,
    pub(crate) announcer: Announcer,
    /// For the builds that may run here.
    pub(crate) slots: Slots,
    /// Cancelled when running builds have to end.
    pub(crate) stop: CancellationToken,
}

/// How an attendance ended.
#[derive(Debug)]
pub(crate) enum Left {
    /// The app was given back, or lost to another worker.
    Settled,
    /// Another worker claimed it first; the board will show it in a moment.
    Overtaken,
    /// A build is wanted and its slot is waited for: to be claimed again when it gets one, or when a newer wake may
    /// ask for something else.
    NeedsSlot,
    /// A peer did not answer; the app has to wait.
    Troubled(PortError),
}

/// One claimed app.
pub(crate) struct Attendance {
    pub(crate) shop: Arc<Shop>,
    pub(crate) lease: Lease,
    pub(crate) memory: Arc<AppMemory>,
    /// The trace of the wake that is being served.
    pub(crate) trace: Option<String>,
    slot: Option<Slot>,
    /// The pending status on its way: others wait for it, so that it cannot come last.
    pub(crate) pending: Mutex<Option<Pending>>,
}

/// What was asked for ahead of a look.
struct News {
    tip: Option<Ahead>,
    /// The commit that a push named.
    named: Revision,
}

/// What follows a look.
enum Next {
    Again,
    Leave(Leave),
}

enum Leave {
    Done(Generation),
    Wait(Generation, Timestamp),
    Undone(Left),
    Lost,
}

/// Claims the app at `desk` and attends to it. `slot` is for its build, where it was handed one.
pub(crate) async fn attend(shop: Arc<Shop>, desk: Desk, slot: Option<Slot>) -> Left {
    let app = desk.app.clone();
    let config = &shop.config;
    let lease = match Lease::claim(Arc::clone(&shop.ports.board), &desk, &config.name, config.lease).await {
        Ok(Some(lease)) => lease,
        Ok(None) => return Left::Overtaken,
        Err(error) => return Left::Troubled(error),
    };
    let memory = match AppMemory::read(Arc::clone(&shop.ports.memories), &app, Some(lease.fence())).await {
        Ok(memory) => memory,
        Err(error) => {
            drop(lease.release_undone().await);
            return Left::Troubled(error);
        }
    };
    let trace = shop.board.wanted(&app).trace;
    Attendance { shop, lease, memory, trace, slot, pending: Mutex::default() }.run(&app).await
}

impl Attendance {
    async fn run(mut self, app: &AppName) -> Left {
        let leave = match self.work(app).await {
            Ok(leave) => leave,
            Err(error) => Leave::Undone(Left::Troubled(error)),
        };
        let given_back = match leave {
            Leave::Lost => return Left::Settled,
            Leave::Done(noted) => self.lease.release(noted).await,
            Leave::Wait(noted, until) => self.lease.release_to_wait(noted, until).await,
            Leave::Undone(left) => {
                if let Err(error) = self.lease.release_undone().await {
                    tracing::warn!(%app, %error, "the app could not be given back; its lease will expire");
                }
                return left;
            }
        };
        match given_back {
            Ok(()) => Left::Settled,
            Err(error) => Left::Troubled(error),
        }
    }

    async fn work(&mut self, name: &AppName) -> PortResult<Leave> {
        let mut said = None;
        for look in 0..LOOKS {
            if self.lease.lost().is_cancelled() {
                return Ok(Leave::Lost);
            }
            if self.shop.stop.is_cancelled() {
                return Ok(Leave::Undone(Left::Settled));
            }
            // Noted before anything is read: a wake that comes later makes the app due again.
            let wanted = self.shop.board.wanted(name);
            let noted = wanted.generation;
            self.trace = wanted.trace.or(self.trace.take());
            let (apps, news) = match look {
                0 => self.first_read(name, wanted.named).await?,
                _ => (self.shop.apps.read().await?, None),
            };
            let Some(app) = apps.registrations.apps.get(name) else {
                return self.unregistered(name, noted).await;
            };
            if look == 0 {
                let (config, claim) = (&self.shop.config, (self.lease.token(), self.shop.ambient.now()));
                settle(&self.shop.ports, &config.apps_repo, app, &apps, &self.memory, claim).await?;
            }
            let (view, decision) = self.look(app, &apps, news).await?;
            if said.as_ref() != Some(&decision) {
                self.announce(name, &view, &decision);
            }
            match self.act(app, &view, &decision, noted).await? {
                Next::Again => {}
                Next::Leave(leave) => return Ok(leave),
            }
            said = Some(decision);
        }
        // Nothing settles what this decision and its outcome disagree about: back off, and let others go first.
        let message = format!("{LOOKS} looks at {name} in a row led nowhere");
        let error = PortError::new(Peer::Git, Fault::Transient, message);
        Ok(Leave::Undone(Left::Troubled(error)))
    }

    /// Reads the registrations. A push that named a commit is news of the source too, which is asked for meanwhile.
    async fn first_read(
        &self,
        name: &AppName,
        named: Option<Revision>,
    ) -> PortResult<(Arc<Apps>, Option<News>)> {
        let shop = &self.shop;
        let known = shop.apps.last_read();
        let app = known.as_ref().and_then(|apps| Some((apps, apps.registrations.apps.get(name)?)));
        let (Some((known, app)), Some(named)) = (app, named) else {
            return Ok((shop.apps.read().await?, None));
        };
        let (apps, tip) = tokio::join!(shop.apps.read_if_moved(), shop.observer.tip_ahead(app, known));
        Ok((apps?, Some(News { tip, named })))
    }

    fn free_slot(&mut self) {
        self.slot = None;
        self.shop.slots.freed.notify_one();
    }

    async fn look(&self, app: &App, apps: &Apps, news: Option<News>) -> PortResult<(View, Decision)> {
        let (memory, now) = (self.memory.get().await, self.shop.ambient.now());
        let observer = &self.shop.observer;
        let (tip, named) = news.map(|news| (news.tip, news.named)).unzip();
        let tip = tip.flatten();
        let glimpse = match &tip {
            Some(tip) => observer.glimpse(tip, app, apps, &memory, now).await,
            None => None,
        };
        let view = match glimpse {
            Some(view) => view,
            None => {
                if let Some(named) = &named {
                    observer.history_ahead(app, named).await;
                }
                observer.observe_from(tip.as_ref(), app, apps, &memory, now).await?
            }
        };
        let decision = decide(&view);
        self.end_release(&view, &decision).await?;
        Ok((view, decision))
    }

    /// A release is for one target and one deployment of it: what a person removes after that stays removed.
    async fn end_release(&self, view: &View, decision: &Decision) -> PortResult<()> {
        let Some(released) = &view.memory.released else { return Ok(()) };
        let is_target = matches!(&view.target, Target::At { revision, .. } if revision == released);
        let is_over = matches!(decision.reason, Reason::Settled(_) | Reason::Built(_));
        if is_target && !is_over {
            return Ok(());
        }
        // A newer release may have come meanwhile.
        self.memory
            .update(|memory| memory.released = memory.released.take().filter(|newer| newer != released))
            .await
            .map(drop)
    }

    async fn act(
        &mut self,
        app: &App,
        view: &View,
        decision: &Decision,
        noted: Generation,
    ) -> PortResult<Next> {
        match &decision.action {
            Action::Build { revision, key, no_cache } => {
                if self.slot.is_none() {
                    self.slot = self.shop.slots.take(&app.name, noted);
                }
                if self.slot.is_none() {
                    return Ok(Next::Leave(Leave::Undone(Left::NeedsSlot)));
                }
                let build = Build::prepare(self, app, revision, key, *no_cache, &decision.reason).await?;
                self.build(app, build, noted).await
            }
            Action::Commit(advances) => self.commit(app, advances).await,
            Action::WaitUntil(until) => {
                self.report(app, view, decision).await;
                Ok(Next::Leave(Leave::Wait(noted, *until)))
            }
            Action::Nothing => {
                self.report(app, view, decision).await;
                Ok(Next::Leave(Leave::Done(noted)))
            }
            // Only a running build is continued or stopped, and here none runs: what the memory says was
            // settled by the claim, so this is a build of our own whose end could not be written.
            Action::Continue | Action::Stop { .. } => {
                self.memory.update(|memory| memory.running = None).await?;
                Ok(Next::Again)
            }
        }
    }

    async fn build(&mut self, app: &App, build: Build, noted: Generation) -> PortResult<Next> {
        let ended = build.run(self, app, noted).await;
        // What follows needs no daemon: the next build may begin.
        self.free_slot();
        self.lease.served();
        match ended? {
            Ended::Image(image, finished) => {
                self.write_back(app, Some(image), Some(*finished)).await?;
                Ok(Next::Again)
            }
            Ended::Failed | Ended::Stopped => Ok(Next::Again),
            Ended::LeaseLost => Ok(Next::Leave(Leave::Lost)),
            Ended::ShuttingDown => Ok(Next::Leave(Leave::Undone(Left::Settled))),
        }
    }

    /// Commits what is recorded already, and overlays.
    async fn commit(&mut self, app: &App, advances: &[Advance]) -> PortResult<Next> {
        let image = advances.iter().find_map(|advance| match advance {
            Advance::Image { revision, image, key, .. } => Some(Image {
                revision: revision.clone(),
                key: key.clone(),
                build: image.build.clone(),
                digest: image.digest.clone(),
            }),
            Advance::Infra { .. } => None,
        });
        self.write_back(app, image, None).await?;
        Ok(Next::Again)
    }

    /// The one completion path. `finished` is the build that ends with it.
    async fn write_back(
        &mut self,
        app: &App,
        image: Option<Image>,
        mut finished: Option<Finished>,
    ) -> PortResult<()> {
        let head = finished.as_mut().and_then(|finished| finished.head.take());
        let task = Task::Complete(image.clone(), head.map(Box::new));
        match self.shop.committer.write(task, Arc::clone(&self.memory)).await? {
            Written::Done { commits, refused } => {
                self.announce_commits(&commits);
                self.memory.update(|memory| memory.running = None).await?;
                if commits.is_empty() && finished.is_none() {
                    self.nothing_written(&refused);
                }
                let Some(image) = image else { return Ok(()) };
                if finished.is_some() {
                    self.close_built(app, &image, &refused).await;
                } else if commits.is_empty() {
                    return Ok(());
                } else {
                    // Adopted: the worker that built it may have died before it could tag it.
                    tokio::spawn(building::tag(Arc::clone(&self.shop), app.image.clone(), image.clone()));
                }
                let finished = finished.map(|finished| finished.entry);
                building::close(&self.shop, &image, finished, (&commits, &refused), self.trace.clone()).await;
                Ok(())
            }
            Written::Unregistered => {
                self.memory.update(|memory| memory.running = None).await?;
                if let (Some(image), Some(finished)) = (&image, finished) {
                    self.disown(app, image, finished.entry).await;
                }
                Ok(())
            }
            Written::Lost => match image {
                Some(image) => self.lose(&image, finished).await,
                None => Ok(()),
            },
            Written::Denied(why) => {
                let why = format!("{why} (check `gitea.apps_token` and what its user may do)");
                self.warn(&why);
                match image {
                    Some(image) => self.fail(&image, None, &why).await,
                    None => Err(PortError::new(Peer::Git, Fault::Denied, why)),
                }
            }
        }
    }

    /// A build whose app was unregistered meanwhile: recorded, and deployed nowhere.
    async fn disown(&self, app: &App, image: &Image, mut entry: BuildEntry) {
        let reason = status::UNREGISTERED.to_owned();
        let status = status::disowned(&app.name, true, self.shop.config.link.clone());
        self.close_status(app, &image.revision, &status).await;
        entry.phase = BuildPhase::NotCommitted { digest: image.digest.clone(), reason };
        entry.ended = Some(self.shop.ambient.now());
        self.shop.announcer.enter(&entry, self.trace.clone());
    }

    /// Says what was refused. The committer has noted it, so that the same is not decided again at once.
    fn nothing_written(&self, refused: &[Refused]) {
        for (environment, channel, verdict) in refused {
            if let Verdict::Trouble(why) = verdict {
                self.warn(&format!("{environment} ({channel}): {why}"));
            }
        }
    }

    /// An image that the registry lost before its commit: nothing is left of the attempt, and the next look finds
    /// nothing to adopt.
    async fn lose(&self, image: &Image, finished: Option<Finished>) -> PortResult<()> {
        let message = format!("the registry lost {} before it was committed", image.digest);
        let (entry, earlier) = finished.map(|finished| (finished.entry, finished.earlier)).unzip();
        self.memory
            .update(|memory| {
                memory.built = memory.built.take().filter(|built| built.digest != image.digest);
            })
            .await?;
        self.fail(image, earlier.flatten(), &message).await?;
        let Some(mut entry) = entry else { return Ok(()) };
        entry.phase = BuildPhase::Failed { kind: FailureKind::Infrastructure, message };
        entry.ended = Some(self.shop.ambient.now());
        self.shop.announcer.enter(&entry, self.trace.clone());
        Ok(())
    }

    /// Notes that what was built could not be committed. `earlier` is a failure that the build has hidden since, and
    /// that counts on: who builds and loses again and again is to give up.
    async fn fail(&self, image: &Image, earlier: Option<Failure>, message: &str) -> PortResult<()> {
        let attempt = Attempt {
            key: image.key.clone(),
            revision: image.revision.clone(),
            build: Some(image.build.clone()),
            kind: FailureKind::Infrastructure,
            message: message.to_owned(),
        };
        let (now, jitter) = (self.shop.ambient.now(), self.shop.ambient.jitter());
        let policy = self.shop.observer.policy().clone();
        self.memory
            .update(move |memory| {
                memory.running = None;
                let before = memory.failure.as_ref().or(earlier.as_ref());
                memory.failure = Some(policy.failure(before, attempt.clone(), now, jitter));
            })
            .await
            .map(drop)
    }

    /// An app that is not registered (any more): whatever it was doing is over.
    async fn unregistered(&self, name: &AppName, noted: Generation) -> PortResult<Leave> {
        tracing::info!(app = %name, "not registered, nothing to do");
        let open = self.disown_statuses(name).await;
        self.memory
            .update(|memory| {
                memory.running = None;
                memory.pending_statuses.clone_from(&open);
            })
            .await?;
        Ok(Leave::Done(noted))
    }

    /// Closes the statuses that an app without a registration left pending. Returns those that could not be closed,
    /// for which the reconciler wakes the app again.
    async fn disown_statuses(&self, name: &AppName) -> BTreeSet<Revision> {
        let memory = self.memory.get().await;
        let mut open = BTreeSet::new();
        // A memory of an earlier version does not know in which repository they are.
        let Some(source) = &memory.source else { return open };
        for revision in memory.pending_statuses {
            let is_built = memory.built.as_ref().is_some_and(|built| built.revision == revision);
            let status = status::disowned(name, is_built, self.shop.config.link.clone());
            if !self.set_status(source, &revision, &status).await {
                open.insert(revision);
            }
        }
        open
    }

    pub(crate) fn announce(&self, app: &AppName, view: &View, decision: &Decision) {
        let action = match &decision.action {
            Action::Build { .. } => "build",
            Action::Continue => "continue",
            Action::Stop { .. } => "supersede",
            Action::Commit(_) => "commit",
            Action::WaitUntil(_) => "wait",
            Action::Nothing => "nothing",
        };
        let target = match &view.target {
            Target::At { revision, .. } => Some(revision.clone()),
            Target::Nothing(_) => None,
        };
        tracing::info!(%app, target = target.as_ref().map(Revision::short), action, reason = %decision.reason, "decided");
        metrics::counter!("fabrique_decisions_total", "action" => action).increment(1);
        // A sweep that finds nothing to do is silent.
        if matches!(decision.reason, Reason::Settled(Verdict::UpToDate)) && self.trace.is_none() {
            return;
        }
        self.shop.announcer.say(
            self.trace.clone(),
            EventBody::Decision {
                app: app.clone(),
                target,
                action: action.to_owned(),
                reason: decision.reason.to_string(),
            },
        );
    }

    fn announce_commits(&self, commits: &[Landed]) {
        for landed in commits {
            let Some((environment, channel, committed)) = &landed.automatic else { continue };
            metrics::counter!("fabrique_commits_total", "channel" => channel.as_str()).increment(1);
            self.shop.announcer.say(
                self.trace.clone(),
                EventBody::Commit {
                    app: self.memory.app().clone(),
                    environment: environment.clone(),
                    channel: channel.to_string(),
                    commit: landed.commit.clone(),
                    revision: committed.revision.clone(),
                    digest: committed.digest.clone(),
                },
            );
        }
    }

    fn warn(&self, message: &str) {
        tracing::warn!(app = %self.memory.app(), message, "needs a person");
        let body = EventBody::Warning { app: Some(self.memory.app().clone()), message: message.to_owned() };
        self.shop.announcer.say(self.trace.clone(), body);
    }
}
