//! The session of one claimed app: look, decide, act, until nothing is left to do.

use std::sync::Arc;
use std::time::Duration;

use fabrique_core::app::App;
use fabrique_core::decision::{Action, Advance, Decision, Reason, decide};
use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::{AppName, BuildKey, Channel, Revision};
use fabrique_core::policy::Attempt;
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::Verdict;
use fabrique_core::view::{Target, View};
use fabrique_core::work::{Generation, Seen, WorkItem};
use fabrique_observer::{Ahead, Apps, AppsReader, Observer};
use fabrique_ports::bus::EventBody;
use fabrique_ports::records::BuildPhase;
use fabrique_ports::{Ambient, Fault, Peer, PortError, PortResult};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::announce::Announcer;
use crate::board::BoardView;
use crate::building::{self, Build, Ended, Finished};
use crate::committer::{Committer, Landed, Refused, Task, Written};
use crate::config::{Ports, WorkerConfig};
use crate::ending;
use crate::follow::{Followed, Moved};
use crate::lease::Lease;
use crate::measure;
use crate::memory::AppMemory;
use crate::pending::Pending;
use crate::settle::settle;
use crate::slots::{Slot, Slots};
use crate::tagging;
use crate::unregistered::seen_wrong;
use crate::writeback::Image;

/// Looks at one app in a row before others get their turn.
const LOOKS: usize = 30;

/// How long a build waits for the status of its declaration.
const STATUS_FIRST: Duration = Duration::from_secs(1);

/// What all sessions of a worker share.
pub(crate) struct Context {
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

/// How a session ended.
#[derive(Debug)]
pub(crate) enum SessionEnd {
    /// The app was given back, or lost to another worker.
    Settled,
    /// Another worker claimed it first; the board will show it in a moment.
    Overtaken,
    /// A build is wanted and its slot is waited for: to be claimed again when it gets one, or when a newer wake may
    /// ask for something else.
    NeedsSlot,
    /// A peer did not answer; the app has to wait.
    Failed(PortError),
}

/// One claimed app.
pub(crate) struct Session {
    pub(crate) context: Arc<Context>,
    pub(crate) lease: Lease,
    pub(crate) memory: Arc<AppMemory>,
    /// The trace of the wake that is being served.
    pub(crate) trace: Option<String>,
    slot: Option<Slot>,
    /// The pending status on its way: others wait for it, so that it cannot come last.
    pub(crate) pending: Mutex<Option<Pending>>,
    /// The head at which those that wait for this app's declaration were told to go on.
    pub(crate) told: Option<Revision>,
    /// The edited compositions that were refused at the last look, and why.
    pub(crate) unfollowed: Vec<Refused>,
    /// What the last look read of the app in `cluster/apps`, whoever's that was.
    seen: Option<Seen>,
}

/// What was asked for ahead of a look.
struct ReadAhead {
    tip: Option<Ahead>,
    /// The commit that a push named.
    named: Revision,
}

/// What follows a look.
enum Next {
    Again,
    End(Release),
}

/// What is written back.
enum Writing<'d> {
    /// An image, and the build that ends with it.
    Image(Image, Option<Box<Finished>>),
    /// What needs no build, as it was decided.
    Overlays(&'d [Advance]),
}

/// How the app is given back.
enum Release {
    Done(Generation),
    Wait(Generation, Timestamp),
    Undone(SessionEnd),
    Lost,
}

impl Release {
    /// Looked at again before long when a peer left something open.
    fn unless(self, unanswered: Option<PortError>) -> Self {
        match (self, unanswered) {
            (Self::Done(_) | Self::Wait(..), Some(error)) => Self::Undone(SessionEnd::Failed(error)),
            (release, _) => release,
        }
    }
}

/// Claims the app of `item` and works on it until it is given back. `slot` is for its build, where it was handed one.
pub(crate) async fn run(context: Arc<Context>, item: WorkItem, slot: Option<Slot>) -> SessionEnd {
    let app = item.app.clone();
    let config = &context.config;
    let lease = match Lease::claim(Arc::clone(&context.ports.board), &item, &config.name, config.bounds.lease)
        .await
    {
        Ok(Some(lease)) => lease,
        Ok(None) => return SessionEnd::Overtaken,
        Err(error) => return SessionEnd::Failed(error),
    };
    let memory = match AppMemory::read(Arc::clone(&context.ports.memories), &app, Some(lease.fence())).await {
        Ok(memory) => memory,
        Err(error) => {
            let seen = lease.seen().cloned();
            drop(lease.release_undone(seen).await);
            return SessionEnd::Failed(error);
        }
    };
    let (trace, seen) = (context.board.wanted(&app).trace, lease.seen().cloned());
    Session {
        context,
        lease,
        memory,
        trace,
        slot,
        pending: Mutex::default(),
        told: None,
        unfollowed: Vec::new(),
        seen,
    }
    .run(&app)
    .await
}

impl Session {
    async fn run(mut self, app: &AppName) -> SessionEnd {
        let release = match Box::pin(self.work(app)).await {
            Ok(release) => release,
            Err(error) => Release::Undone(SessionEnd::Failed(error)),
        };
        let given_back = match release {
            Release::Lost => return SessionEnd::Settled,
            Release::Done(noted) => self.lease.release(noted, self.seen).await,
            Release::Wait(noted, until) => self.lease.release_to_wait(noted, until, self.seen).await,
            Release::Undone(end) => {
                if let Err(error) = self.lease.release_undone(self.seen).await {
                    tracing::warn!(%app, %error, "the app could not be given back; its lease will expire");
                }
                return end;
            }
        };
        match given_back {
            Ok(()) => SessionEnd::Settled,
            Err(error) => SessionEnd::Failed(error),
        }
    }

    async fn work(&mut self, name: &AppName) -> PortResult<Release> {
        let mut said = None;
        for look in 0..LOOKS {
            if self.lease.lost().is_cancelled() {
                return Ok(Release::Lost);
            }
            if self.context.stop.is_cancelled() {
                return Ok(Release::Undone(SessionEnd::Settled));
            }
            // Noted before anything is read: a wake that comes later makes the app due again.
            let wanted = self.context.board.wanted(name);
            let noted = wanted.generation;
            self.trace = wanted.trace.or(self.trace.take());
            let (apps, ahead) = match look {
                0 => self.first_read(name, wanted.named.clone()).await?,
                _ => (self.context.apps.read().await?, None),
            };
            let Some(app) = apps.registrations.apps.get(name) else {
                let wrong = apps.registrations.wrong.get(name);
                let last = self.seen.take();
                self.seen = wrong.and_then(|wrong| seen_wrong(last, wrong));
                self.without_registration(name, wrong, wanted.named).await?;
                return Ok(Release::Done(noted));
            };
            let seen = apps.seen_of(app);
            if look == 0 {
                let (config, claim) =
                    (&self.context.config, (self.lease.token(), self.context.ambient.now()));
                settle(&self.context.ports, &config.apps_repo, app, &apps, &self.memory, claim).await?;
                self.leave_source(app).await;
            }
            let moved = Moved::since(self.seen.as_ref(), &seen);
            let followed = self.follow(app, &apps, moved).await;
            self.seen = Some(followed.noted_in(seen));
            if followed.landed {
                continue;
            }
            let (view, decision) = self.look(app, &apps, ahead, &followed).await?;
            if said.as_ref() != Some(&decision) {
                self.announce(name, &view, &decision);
            }
            self.wake_dependants(app, &view).await;
            match self.act(app, &view, &decision, noted).await? {
                Next::Again => {}
                Next::End(release) => return Ok(release.unless(followed.unanswered)),
            }
            said = Some(decision);
        }
        // Nothing settles what this decision and its outcome disagree about: back off, and let others go first.
        let message = format!("{LOOKS} looks at {name} in a row led nowhere");
        let error = PortError::new(Peer::Git, Fault::Transient, message);
        Ok(Release::Undone(SessionEnd::Failed(error)))
    }

    /// Reads the registrations. A push that named a commit moved the source too, which is asked for meanwhile.
    async fn first_read(
        &self,
        name: &AppName,
        named: Option<Revision>,
    ) -> PortResult<(Arc<Apps>, Option<ReadAhead>)> {
        let context = &self.context;
        let known = context.apps.last_read();
        let app = known.as_ref().and_then(|apps| Some((apps, apps.registrations.apps.get(name)?)));
        let (Some((known, app)), Some(named)) = (app, named) else {
            return Ok((context.apps.read().await?, None));
        };
        let (apps, tip) = tokio::join!(context.apps.read_if_moved(), context.observer.tip_ahead(app, known));
        Ok((apps?, Some(ReadAhead { tip, named })))
    }

    fn free_slot(&mut self) {
        self.slot = None;
        self.context.slots.freed.notify_one();
    }

    async fn look(
        &self,
        app: &App,
        apps: &Apps,
        ahead: Option<ReadAhead>,
        followed: &Followed,
    ) -> PortResult<(View, Decision)> {
        let (memory, now) = (self.memory.get().await, self.context.ambient.now());
        let observer = &self.context.observer;
        let (tip, named) = ahead.map(|ahead| (ahead.tip, ahead.named)).unzip();
        let tip = tip.flatten();
        let glimpse = match &tip {
            Some(tip) => observer.glimpse(tip, app, apps, &memory, now).await,
            None => None,
        };
        let mut view = match glimpse {
            Some(view) => view,
            None => {
                if let Some(named) = &named {
                    observer.history_ahead(app, named).await;
                }
                observer.observe_from(tip.as_ref(), app, apps, &memory, now).await?
            }
        };
        followed.show_in(&mut view.environments);
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
        let rests = matches!(decision.action, Action::WaitUntil(_) | Action::Nothing);
        if rests && self.wait_for_others(app, view).await? {
            return Ok(Next::Again);
        }
        match &decision.action {
            Action::Build { revision, key, no_cache } => {
                if self.slot.is_none() {
                    self.slot = self.context.slots.take(&app.name, noted);
                }
                if self.slot.is_none() {
                    return Ok(Next::End(Release::Undone(SessionEnd::NeedsSlot)));
                }
                let build = Build::prepare(self, app, revision, key, *no_cache, &decision.reason);
                // A forge that is slow with it keeps no build waiting: the next look tries again.
                let declared = tokio::time::timeout(STATUS_FIRST, self.report_declaration(app, view));
                let (build, _) = tokio::join!(build, declared);
                self.build(app, build?, noted).await
            }
            Action::Commit(advances) => self.commit(app, advances).await,
            Action::WaitUntil(until) => {
                self.report(app, view, decision).await;
                Ok(Next::End(Release::Wait(noted, *until)))
            }
            Action::Nothing => {
                self.report(app, view, decision).await;
                Ok(Next::End(Release::Done(noted)))
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
                self.write_back(app, Writing::Image(image, Some(finished))).await?;
                Ok(Next::Again)
            }
            Ended::Failed | Ended::Stopped => Ok(Next::Again),
            Ended::LeaseLost => Ok(Next::End(Release::Lost)),
            Ended::ShuttingDown => Ok(Next::End(Release::Undone(SessionEnd::Settled))),
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
        let writing = match image {
            Some(image) => Writing::Image(image, None),
            None => Writing::Overlays(advances),
        };
        self.write_back(app, writing).await?;
        Ok(Next::Again)
    }

    /// The one completion path.
    async fn write_back(&mut self, app: &App, writing: Writing<'_>) -> PortResult<()> {
        let (image, mut finished, overlays) = match writing {
            Writing::Image(image, finished) => (Some(image), finished.map(|finished| *finished), &[][..]),
            Writing::Overlays(overlays) => (None, None, overlays),
        };
        let head = finished.as_mut().and_then(|finished| finished.head.take());
        // What the guard compares is fetched here, where a slow source keeps nobody else from committing.
        if let (Some(head), Some(image)) = (&head, &image)
            && let Some(moved) = head.moved_from(&image.revision)
        {
            self.context.observer.history_ahead(app, moved).await;
        }
        let task = Task::Complete(image.clone(), head.map(Box::new));
        match self.context.committer.write(task, Arc::clone(&self.memory)).await? {
            Written::Done { commits, refused, image_cut } => {
                self.announce_commits(&commits);
                // They may have brought the Application that others wait for: the next look tells them.
                self.told = self.told.take().filter(|_| commits.is_empty());
                self.memory.update(|memory| memory.running = None).await?;
                if commits.is_empty() && finished.is_none() {
                    self.nothing_written(&refused);
                }
                let Some(image) = image else { return Ok(()) };
                // It is not deployed everywhere yet: the next look commits the rest and ends the build.
                if image_cut {
                    return Ok(());
                }
                if finished.is_some() {
                    self.close_built(app, &image, &refused).await;
                } else if commits.is_empty() {
                    return Ok(());
                } else {
                    // Adopted: the worker that built it may have died before it could tag it.
                    tokio::spawn(tagging::tag(Arc::clone(&self.context), app.clone(), image.clone()));
                }
                let finished = finished.map(|finished| finished.entry);
                building::close(&self.context, &image, finished, (&commits, &refused), self.trace.clone())
                    .await;
                Ok(())
            }
            Written::Unregistered(why) => {
                self.memory.update(|memory| memory.running = None).await?;
                if let (Some(image), Some(finished)) = (&image, finished) {
                    self.disown(app, image, finished.entry, &why).await;
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
                    None => self.fail_overlays(overlays, &why).await,
                }
            }
        }
    }

    /// Says what was refused. The committer has noted it, so that the same is not decided again at once.
    pub(crate) fn nothing_written(&self, refused: &[Refused]) {
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
        if let Some(entry) = entry {
            let phase = BuildPhase::Failed { kind: FailureKind::Infrastructure, message };
            ending::tell(&self.context, entry, phase, self.trace.clone());
        }
        Ok(())
    }

    /// Notes that what was built could not be committed. `earlier` is a failure that the build has hidden since, and
    /// that counts on: who builds and loses again and again is to give up.
    async fn fail(&self, image: &Image, earlier: Option<Failure>, message: &str) -> PortResult<()> {
        let mut attempt = unwritten(&image.key, &image.revision, message.to_owned());
        attempt.build = Some(image.build.clone());
        let next = self.counting(attempt);
        self.memory
            .update(move |memory| {
                memory.running = None;
                let before = memory.failure.as_ref().or(earlier.as_ref());
                memory.failure = Some(next(before));
            })
            .await
            .map(drop)
    }

    /// Notes that the forge refused a push of overlays alone. It is counted apart from the build's failures: a cancelled
    /// build, or one that its source fails, stays so.
    async fn fail_overlays(&self, overlays: &[Advance], why: &str) -> PortResult<()> {
        let failed = overlays.iter().filter_map(|overlay| match overlay {
            Advance::Infra { environment, revision, key } => {
                let message = format!("the overlay of {environment} is not written: {why}");
                Some((environment, self.counting(unwritten(key, revision, message))))
            }
            Advance::Image { .. } => None,
        });
        let failed: Vec<_> = failed.collect();
        self.memory
            .update(|memory| {
                for (environment, next) in &failed {
                    let channel = memory.channel_mut(environment, Channel::Infra);
                    channel.failure = Some(next(channel.failure.as_ref()));
                }
            })
            .await
            .map(drop)
    }

    /// The failure that `attempt` comes to after the one before.
    fn counting(&self, attempt: Attempt) -> impl Fn(Option<&Failure>) -> Failure + Send + Sync + 'static {
        let (now, jitter) = (self.context.ambient.now(), self.context.ambient.jitter());
        let policy = self.context.observer.policy().clone();
        move |before| policy.failure(before, attempt.clone(), now, jitter)
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
        measure::decision(action);
        // A sweep that finds nothing to do is silent.
        if matches!(decision.reason, Reason::Settled(Verdict::UpToDate)) && self.trace.is_none() {
            return;
        }
        self.context.announcer.say(
            self.trace.clone(),
            EventBody::Decision {
                app: app.clone(),
                target,
                action: action.to_owned(),
                reason: decision.reason.to_string(),
                dead_letter: decision.reason.is_dead_letter(),
            },
        );
    }

    fn announce_commits(&self, commits: &[Landed]) {
        for landed in commits {
            let Some((environment, channel, committed)) = &landed.automatic else { continue };
            measure::commit(*channel);
            self.context.announcer.say(
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

    pub(crate) fn warn(&self, message: &str) {
        tracing::warn!(app = %self.memory.app(), message, "needs a person");
        let body = EventBody::Warning { app: Some(self.memory.app().clone()), message: message.to_owned() };
        self.context.announcer.say(self.trace.clone(), body);
    }
}

/// An attempt that came to its commit and no further.
fn unwritten(key: &BuildKey, revision: &Revision, message: String) -> Attempt {
    Attempt {
        key: key.clone(),
        revision: revision.clone(),
        build: None,
        kind: FailureKind::Infrastructure,
        message,
        log_tail: Vec::new(),
    }
}
