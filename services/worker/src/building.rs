//! One attempt at a build, from its place to its recorded digest.

use std::sync::Arc;

use fabrique_core::app::App;
use fabrique_core::build::BuildInputs;
use fabrique_core::decision::{Action, Reason, decide};
use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::{BuildId, BuildKey, Channel, Digest, InvalidId, Revision};
use fabrique_core::memory::{Memory, Running};
use fabrique_core::policy::Attempt;
use fabrique_core::work::Generation;
use fabrique_observer::Ahead;
use fabrique_ports::builder::{BuildFailure, BuildOutcome, BuildRequest, Condition, Need, Placed};
use fabrique_ports::records::{BuildEntry, BuildPhase, ImageRecord};
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use tokio_util::sync::CancellationToken;

use crate::committer::{Landed, Refused};
use crate::ending;
use crate::failing::{self, explain, from_port, infrastructure, remembered};
use crate::logging::BuildLog;
use crate::pending::Pending;
use crate::place::Place;
use crate::recording::{self, Done, Recorded};
use crate::session::{Context, Session};
use crate::status;
use crate::statuses::{self, open_status};
use crate::tagging;
use crate::writeback::Image;

/// How an attempt ended.
pub(crate) enum Ended {
    /// The digest is recorded: past the point of no return.
    Image(Image, Box<Finished>),
    /// It failed, and the memory says how.
    Failed,
    /// It was stopped: superseded, or not wanted any more.
    Stopped,
    /// Another worker holds the app.
    LeaseLost,
    /// This worker is stopping.
    ShuttingDown,
}

/// An attempt that has its digest.
pub(crate) struct Finished {
    pub(crate) entry: BuildEntry,
    /// The branch's head, asked for while the digest was recorded.
    pub(crate) head: Option<Ahead>,
    /// How the attempt before it failed, if that was one at the same build.
    pub(crate) earlier: Option<Failure>,
}

/// An attempt under way.
pub(crate) struct Build {
    entry: BuildEntry,
    inputs: BuildInputs,
    no_cache: bool,
    reason: Reason,
    /// What it exported for daemons that lack its steps.
    cache: Option<Digest>,
}

/// Why a running build was told to end.
enum Halt {
    Superseded(Option<Revision>),
    LeaseLost,
    ShuttingDown,
}

impl Build {
    /// Notes the attempt in memory and history.
    pub(crate) async fn prepare(
        session: &Session,
        app: &App,
        revision: &Revision,
        key: &BuildKey,
        no_cache: bool,
        reason: &Reason,
    ) -> PortResult<Self> {
        let context = &session.context;
        let build = BuildId::new(&app.name, &context.ambient.ulid()).map_err(|e| bad_id(&e))?;
        let now = context.ambient.now();
        let running = Running {
            build: build.clone(),
            key: key.clone(),
            revision: revision.clone(),
            token: session.lease.token(),
            started: now,
            pushed: false,
        };
        let source = app.source.repo.clone();
        session
            .memory
            .update(move |memory| {
                memory.running = Some(running.clone());
                open_status(memory, &source, &running.revision);
                // The pending status that follows hides the one that was reported.
                memory.reported = None;
            })
            .await?;
        let entry = BuildEntry {
            build,
            app: app.name.clone(),
            key: key.clone(),
            revision: revision.clone(),
            reason: reason.to_string(),
            phase: BuildPhase::Queued,
            daemon: None,
            queued: now,
            ended: None,
            egress: None,
        };
        let inputs = BuildInputs::of(app, revision, session.memory.get().await.rebuild);
        let mut build = Self { entry, inputs, no_cache, reason: reason.clone(), cache: None };
        build.enter(session, BuildPhase::Queued);
        Ok(build)
    }

    /// Runs the attempt to its end. While it runs, newer wakes are looked at and may stop it.
    pub(crate) async fn run(mut self, session: &Session, app: &App, noted: Generation) -> PortResult<Ended> {
        let cancel = CancellationToken::new();
        self.announce_pending(session, app).await;
        let guard = watch_for_halt(session, app, noted);
        let work = self.place_and_build(session, app, cancel.clone());
        let (outcome, halt) = {
            tokio::pin!(guard, work);
            tokio::select! {
                outcome = &mut work => (outcome, None),
                halt = &mut guard => {
                    cancel.cancel();
                    // The daemon may have pushed already: its answer decides, the halt only asks.
                    (work.await, Some(halt))
                }
            }
        };
        if let Some(pending) = session.pending.lock().await.as_ref() {
            pending.over();
        }
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => BuildOutcome::Failed(from_port(&error)),
        };
        match (outcome, halt) {
            (BuildOutcome::Pushed(digest), _) => self.record(session, app, digest).await,
            (_, Some(halt)) => self.halted(session, app, halt).await,
            (BuildOutcome::Failed(failure), None) => self.failed(session, failure, None).await,
            (BuildOutcome::Cancelled, None) => {
                let message = "the daemon says it was cancelled, and nobody here did".to_owned();
                let kind = FailureKind::Infrastructure;
                self.failed(session, BuildFailure::new(kind, message), None).await
            }
        }
    }

    /// Sets the pending status in the background, so that the build does not wait for it, and only if the build
    /// lasts.
    async fn announce_pending(&self, session: &Session, app: &App) {
        if !session.memory.get().await.pending_statuses.contains(&self.entry.revision) {
            tracing::warn!(app = %app.name, revision = %self.entry.revision, "no pending status: too many are not final yet");
            return;
        }
        let status = status::pending(&app.name, &self.reason, session.context.config.link.clone());
        let (context, revision) = (Arc::clone(&session.context), self.entry.revision.clone());
        let (name, repo, fence) = (app.name.clone(), app.source.repo.clone(), session.lease.fence());
        let pending = Pending::after(context.config.bounds.pending_after, async move {
            // A worker that was stopped meanwhile would hide how its successor's build ended.
            if !statuses::may_set(&name, &fence).await {
                return;
            }
            if let Err(error) = context.ports.forge.set_status(&repo, &revision, &status).await {
                tracing::warn!(app = %name, %error, "the pending status was not set");
            }
        });
        *session.pending.lock().await = Some(pending);
    }

    async fn place_and_build(
        &mut self,
        session: &Session,
        app: &App,
        cancel: CancellationToken,
    ) -> PortResult<BuildOutcome> {
        let ports = &session.context.ports;
        if let Some(refused) = self.refused(session, app).await {
            return Ok(BuildOutcome::Failed(refused));
        }
        let epoch = session.context.observer.commit_time(app, &self.entry.revision);
        let place = place(&session.context, app, &cancel);
        let (placed, epoch) = tokio::join!(place, epoch);
        let lease = match placed? {
            None => return Ok(BuildOutcome::Cancelled),
            Some(Placed::Refused(why)) => return Ok(BuildOutcome::Failed(infrastructure(why))),
            Some(Placed::Full(why)) => {
                return Ok(BuildOutcome::Failed(BuildFailure::new(FailureKind::Unplaced, why)));
            }
            Some(Placed::Lease(lease)) => Place::new(Arc::clone(&ports.placement), lease),
        };
        self.entry.daemon = Some(lease.daemon.to_string());
        self.enter(session, BuildPhase::Preparing);
        let request = match epoch {
            Ok(epoch) => self.request(app, epoch, session.memory.get().await.cache),
            Err(error) => {
                lease.give_back(Condition::Clean).await;
                return Err(error);
            }
        };
        self.enter(session, BuildPhase::Building);
        self.on_daemon(session, &request, lease, cancel).await
    }

    /// What every daemon would refuse about the Dockerfile, if it is another one than that of the newest image: no
    /// daemon is spent on it.
    async fn refused(&self, session: &Session, app: &App) -> Option<BuildFailure> {
        let built = session.memory.get().await.built.map(|built| built.revision);
        let observer = &session.context.observer;
        let dockerfile = observer.new_dockerfile(app, &self.entry.revision, built.as_ref()).await?;
        session.context.ports.builder.refuses(&self.inputs, &dockerfile)
    }

    async fn on_daemon(
        &mut self,
        session: &Session,
        request: &BuildRequest,
        lease: Place,
        cancel: CancellationToken,
    ) -> PortResult<BuildOutcome> {
        let context = &session.context;
        let (log, writer) = BuildLog::start(
            self.entry.build.clone(),
            session.trace.clone(),
            context.announcer.clone(),
            Arc::clone(&context.ports.logs),
        );
        let sink = Arc::clone(&log);
        let outcome = context.ports.builder.build(&lease.daemon, request, sink, cancel).await;
        self.entry.egress = log.egress(lease.daemon.isolation.clone(), context.ambient.now());
        self.cache = log.cache();
        drop(log);
        tokio::spawn(writer.finish(context.config.bounds.log_flush));
        let (outcome, condition) = match outcome {
            Ok(BuildOutcome::Failed(failure)) if failure.kind != FailureKind::Source || failure.killed => {
                let autopsy = context.ports.placement.autopsy(&lease.daemon, &failure).await;
                let failure = explain(failure, &lease.daemon.name, autopsy);
                let own = failure.kind == FailureKind::Source;
                let condition = if own { Condition::Clean } else { Condition::Doubt };
                (Ok(BuildOutcome::Failed(failure)), condition)
            }
            Ok(outcome) => (Ok(outcome), Condition::Clean),
            // It was lost before the build began: its end tells as much as that of one that was at work.
            Err(error) if error.transient() => {
                let failure = from_port(&error);
                let autopsy = context.ports.placement.autopsy(&lease.daemon, &failure).await;
                (Ok(BuildOutcome::Failed(explain(failure, &lease.daemon.name, autopsy))), Condition::Doubt)
            }
            Err(error) => (Err(error), Condition::Doubt),
        };
        lease.give_back(condition).await;
        outcome
    }

    fn request(&self, app: &App, epoch: i64, cache: Option<Digest>) -> BuildRequest {
        BuildRequest {
            build: self.entry.build.clone(),
            key: self.entry.key.clone(),
            app: app.name.clone(),
            inputs: self.inputs.clone(),
            image: app.image.clone(),
            no_cache: self.no_cache,
            cache,
            registry_cache: app.build.registry_cache,
            epoch,
            timeout: app.build.timeout,
        }
    }

    /// The point of no return: the digest is checked and recorded, then tagged.
    async fn record(mut self, session: &Session, app: &App, digest: Digest) -> PortResult<Ended> {
        let context = &session.context;
        let record = ImageRecord {
            key: self.entry.key.clone(),
            build: self.entry.build.clone(),
            revision: self.entry.revision.clone(),
            image: app.image.clone(),
            digest,
            at: context.ambient.now(),
        };
        let earlier = session.memory.get().await.failure.filter(|failure| failure.key == record.key);
        let finished = Done { record: &record, inputs: &self.inputs, cache: self.cache.take() };
        let recorded = recording::checked_and_recorded(session, finished);
        // What the guard at the commit wants to know next is asked meanwhile.
        let (recorded, head) = tokio::join!(recorded, tip_ahead(context, app));
        match recorded? {
            Recorded::Now => {}
            Recorded::Another(digest) => return self.came_second(session, &digest).await,
            Recorded::Failed(failure) => return self.failed(session, failure, earlier).await,
        }
        let ImageRecord { key, build, revision, digest, .. } = record;
        let image = Image { revision, key, build, digest };
        tokio::spawn(tagging::tag(Arc::clone(context), app.clone(), image.clone()));
        self.enter(session, BuildPhase::Pushed { digest: image.digest.clone() });
        Ok(Ended::Image(image, Box::new(Finished { entry: self.entry, head, earlier })))
    }

    /// Another image is recorded for the same build, and there: the next look commits that one.
    async fn came_second(mut self, session: &Session, recorded: &Digest) -> PortResult<Ended> {
        tracing::info!(build = %self.entry.build, %recorded, "another attempt was recorded first");
        session.memory.update(|memory| memory.running = None).await?;
        self.enter(session, BuildPhase::Superseded { by: None });
        Ok(Ended::Stopped)
    }

    /// `earlier` is how the attempt before failed, where recording this one has hidden that.
    async fn failed(
        mut self,
        session: &Session,
        failure: BuildFailure,
        earlier: Option<Failure>,
    ) -> PortResult<Ended> {
        let context = &session.context;
        let attempt = Attempt {
            key: self.entry.key.clone(),
            revision: self.entry.revision.clone(),
            build: Some(self.entry.build.clone()),
            kind: failure.kind,
            message: failure.message.clone(),
            log_tail: remembered(failure.log_tail),
        };
        let (now, jitter, policy) =
            (context.ambient.now(), context.ambient.jitter(), context.observer.policy().clone());
        session
            .memory
            .update(move |memory| {
                memory.running = None;
                memory.supersedes = 0;
                failing::note(memory, earlier.as_ref(), |before| {
                    policy.failure(before, attempt.clone(), now, jitter)
                });
            })
            .await?;
        self.enter(session, BuildPhase::Failed { kind: failure.kind, message: failure.message });
        Ok(Ended::Failed)
    }

    async fn halted(mut self, session: &Session, app: &App, halt: Halt) -> PortResult<Ended> {
        match halt {
            Halt::LeaseLost => Ok(Ended::LeaseLost),
            Halt::ShuttingDown => {
                session.memory.update(|memory| memory.running = None).await?;
                self.enter(session, BuildPhase::Superseded { by: None });
                Ok(Ended::ShuttingDown)
            }
            Halt::Superseded(by) => {
                let superseded = by.is_some();
                let memory = session
                    .memory
                    .update(move |memory| {
                        memory.running = None;
                        if superseded {
                            memory.supersedes += 1;
                        }
                    })
                    .await?;
                let status = status::superseded(&app.name, by.as_ref(), session.context.config.link.clone());
                session.close_status(app, &self.entry.revision, &status).await;
                let is_ours = |failure: &Failure| failure.key == self.entry.key;
                let cancelled = memory.failure.filter(|f| f.kind == FailureKind::Cancelled && is_ours(f));
                let phase = match cancelled {
                    Some(Failure { kind, message, .. }) => BuildPhase::Failed { kind, message },
                    None => BuildPhase::Superseded { by },
                };
                self.enter(session, phase);
                Ok(Ended::Stopped)
            }
        }
    }

    /// Moves on, in the history and in the events.
    fn enter(&mut self, session: &Session, phase: BuildPhase) {
        self.entry.enter(phase, session.context.ambient.now());
        session.context.announcer.enter(&self.entry, session.trace.clone());
    }
}

/// A place to build; nothing when it is cancelled before.
async fn place(context: &Context, app: &App, cancel: &CancellationToken) -> PortResult<Option<Placed>> {
    let (timeout, resources) = (app.build.timeout, app.build.resources);
    let (app, trust) = (app.name.clone(), app.build.trust.clone());
    let need = Need { app, trust, resources, timeout, patience: context.config.bounds.patience };
    tokio::select! {
        placed = context.ports.placement.acquire(&need) => placed.map(Some),
        () = cancel.cancelled() => Ok(None),
    }
}

async fn tip_ahead(context: &Context, app: &App) -> Option<Ahead> {
    context.observer.tip_ahead(app, context.apps.last_read()?.as_ref()).await
}

/// Ends the history of a build whose image went through the completion path: `finished`, or one that another
/// worker left and whose image is adopted. The commit that ended it is told once, since an image may be
/// adopted again much later.
pub(crate) async fn close(
    context: &Context,
    image: &Image,
    finished: Option<BuildEntry>,
    (commits, refused): (&[Landed], &[Refused]),
    trace: Option<String>,
) {
    let known = match finished {
        Some(entry) => Ok(Some(entry)),
        None => context.ports.history.build(&image.build).await,
    };
    let Ok(Some(entry)) = known else { return };
    if let BuildPhase::Committed { .. } = entry.phase {
        return;
    }
    let digest = image.digest.clone();
    let of_image = |landed: &&Landed| matches!(landed.automatic, Some((_, Channel::Image, _)));
    let commits: Vec<Revision> =
        commits.iter().filter(of_image).map(|landed| landed.commit.clone()).collect();
    let why = refused.iter().find(|(_, channel, _)| *channel == Channel::Image);
    let phase = match why {
        Some((environment, _, verdict)) if commits.is_empty() => {
            BuildPhase::NotCommitted { digest, reason: format!("{environment}: {verdict}") }
        }
        Some(_) | None => BuildPhase::Committed { digest, commits },
    };
    ending::tell(context, entry, phase, trace);
}

/// Looks again at every newer wake until the build has to end.
async fn watch_for_halt(session: &Session, app: &App, mut noted: Generation) -> Halt {
    let context = &session.context;
    loop {
        tokio::select! {
            () = session.lease.lost().cancelled() => return Halt::LeaseLost,
            () = context.stop.cancelled() => return Halt::ShuttingDown,
            () = context.board.newer_than(&app.name, noted) => {}
        }
        let newest = context.board.wanted(&app.name).generation;
        let look = tokio::select! {
            () = session.lease.lost().cancelled() => return Halt::LeaseLost,
            () = context.stop.cancelled() => return Halt::ShuttingDown,
            look = look_again(session, app) => look,
        };
        match look {
            Ok(Action::Stop { superseded_by }) => return Halt::Superseded(superseded_by),
            Ok(_) => noted = newest,
            Err(error) => {
                tracing::warn!(app = %app.name, %error, "could not look again; the build goes on for now");
                tokio::select! {
                    () = session.lease.lost().cancelled() => return Halt::LeaseLost,
                    () = tokio::time::sleep(context.config.bounds.backoff_base) => {}
                }
            }
        }
    }
}

async fn look_again(session: &Session, app: &App) -> PortResult<Action> {
    let context = &session.context;
    let memory = session.memory.refresh().await?;
    let newest = context.apps.read().await?;
    let Some(app) = newest.registrations.apps.get(&app.name) else {
        let is_wrong = newest.registrations.wrong.contains_key(&app.name);
        return Ok(without_registration(is_wrong, &memory));
    };
    let view = context.observer.observe(app, &newest, &memory, context.ambient.now()).await?;
    let decision = decide(&view);
    session.announce(&app.name, &view, &decision);
    Ok(decision.action)
}

/// What becomes of a build whose app is not among the registered ones. The registration is the allow-list: without it nothing
/// is pushed. One that cannot be used takes nothing back, and a person may.
fn without_registration(is_wrong: bool, memory: &Memory) -> Action {
    if is_wrong && memory.cancelled().is_none() {
        return Action::Continue;
    }
    Action::Stop { superseded_by: None }
}

fn bad_id(error: &InvalidId) -> PortError {
    PortError::new(Peer::Builder, Fault::Unexpected, error.to_string())
}

#[cfg(test)]
mod tests;
