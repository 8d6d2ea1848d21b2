//! One attempt at a build, from its place to its recorded digest.

use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use fabrique_core::app::App;
use fabrique_core::build::BuildInputs;
use fabrique_core::decision::{Action, Reason, decide};
use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::{BuildId, BuildKey, Channel, ImageRepository, InvalidId, Revision};
use fabrique_core::memory::{Built, Running};
use fabrique_core::policy::Attempt;
use fabrique_core::work::Generation;
use fabrique_observer::Ahead;
use fabrique_ports::builder::{
    Autopsy, BuildFailure, BuildOutcome, BuildRequest, Condition, Need, Placed, PlacementLease,
};
use fabrique_ports::records::{BuildEntry, BuildPhase, ImageRecord};
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use tokio_util::sync::CancellationToken;

use crate::attend::{Attendance, Shop};
use crate::committer::{Landed, Refused};
use crate::logging::BuildLog;
use crate::pending::Pending;
use crate::status;
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
        attendance: &Attendance,
        app: &App,
        revision: &Revision,
        key: &BuildKey,
        no_cache: bool,
        reason: &Reason,
    ) -> PortResult<Self> {
        let shop = &attendance.shop;
        let build = BuildId::new(&app.name, &shop.ambient.ulid()).map_err(|e| bad_id(&e))?;
        let now = shop.ambient.now();
        let running = Running {
            build: build.clone(),
            key: key.clone(),
            revision: revision.clone(),
            token: attendance.lease.token(),
            started: now,
            pushed: false,
        };
        let source = app.source.repo.clone();
        attendance
            .memory
            .update(move |memory| {
                memory.running = Some(running.clone());
                memory.pending_statuses.insert(running.revision.clone());
                memory.source = Some(source.clone());
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
        };
        let inputs = BuildInputs::of(app, revision, attendance.memory.get().await.rebuild);
        let mut build = Self { entry, inputs, no_cache, reason: reason.clone() };
        build.enter(attendance, BuildPhase::Queued);
        Ok(build)
    }

    /// Runs the attempt to its end. While it runs, newer wakes are looked at and may stop it.
    pub(crate) async fn run(
        mut self,
        attendance: &Attendance,
        app: &App,
        noted: Generation,
    ) -> PortResult<Ended> {
        let cancel = CancellationToken::new();
        self.announce_pending(attendance, app).await;
        let guard = watch_for_halt(attendance, app, noted);
        let work = self.place_and_build(attendance, app, cancel.clone());
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
        if let Some(pending) = attendance.pending.lock().await.as_ref() {
            pending.over();
        }
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => BuildOutcome::Failed(from_port(&error)),
        };
        match (outcome, halt) {
            (BuildOutcome::Pushed(digest), _) => self.record(attendance, app, digest).await,
            (_, Some(halt)) => self.halted(attendance, app, halt).await,
            (BuildOutcome::Failed(failure), None) => self.failed(attendance, failure).await,
            (BuildOutcome::Cancelled, None) => {
                let message = "the daemon says it was cancelled, and nobody here did".to_owned();
                let kind = FailureKind::Infrastructure;
                self.failed(attendance, BuildFailure { kind, message, log_tail: Vec::new() }).await
            }
        }
    }

    /// Sets the pending status in the background, so that the build does not wait for it, and only if the build
    /// lasts.
    async fn announce_pending(&self, attendance: &Attendance, app: &App) {
        let status = status::pending(&app.name, &self.reason, attendance.shop.config.link.clone());
        let (shop, revision) = (Arc::clone(&attendance.shop), self.entry.revision.clone());
        let (name, repo) = (app.name.clone(), app.source.repo.clone());
        let pending = Pending::soon(async move {
            if let Err(error) = shop.ports.forge.set_status(&repo, &revision, &status).await {
                tracing::warn!(app = %name, %error, "the pending status was not set");
            }
        });
        *attendance.pending.lock().await = Some(pending);
    }

    async fn place_and_build(
        &mut self,
        attendance: &Attendance,
        app: &App,
        cancel: CancellationToken,
    ) -> PortResult<BuildOutcome> {
        let ports = &attendance.shop.ports;
        let epoch = attendance.shop.observer.commit_time(app, &self.entry.revision);
        let place = place(&attendance.shop, app, &cancel);
        let (placed, epoch) = tokio::join!(place, epoch);
        let lease = match placed? {
            None => return Ok(BuildOutcome::Cancelled),
            Some(Placed::Full(why)) => return Ok(BuildOutcome::Failed(infrastructure(why))),
            Some(Placed::Lease(lease)) => lease,
        };
        self.entry.daemon = Some(lease.daemon.to_string());
        self.enter(attendance, BuildPhase::Preparing);
        let request = match epoch {
            Ok(epoch) => self.request(app, epoch),
            Err(error) => {
                ports.placement.release(lease, Condition::Clean).await;
                return Err(error);
            }
        };
        self.enter(attendance, BuildPhase::Building);
        self.on_daemon(attendance, &request, lease, cancel).await
    }

    async fn on_daemon(
        &self,
        attendance: &Attendance,
        request: &BuildRequest,
        lease: PlacementLease,
        cancel: CancellationToken,
    ) -> PortResult<BuildOutcome> {
        let shop = &attendance.shop;
        let (log, writer) = BuildLog::start(
            self.entry.build.clone(),
            attendance.trace.clone(),
            shop.announcer.clone(),
            Arc::clone(&shop.ports.logs),
        );
        let outcome = shop.ports.builder.build(&lease.daemon, request, log, cancel).await;
        tokio::spawn(writer.finish());
        let (outcome, condition) = match outcome {
            Ok(BuildOutcome::Failed(failure)) if failure.kind != FailureKind::Source => {
                let autopsy = shop.ports.placement.autopsy(&lease.daemon).await;
                (Ok(BuildOutcome::Failed(explain(failure, &lease.daemon.name, autopsy))), Condition::Doubt)
            }
            Ok(outcome) => (Ok(outcome), Condition::Clean),
            Err(error) => (Err(error), Condition::Doubt),
        };
        shop.ports.placement.release(lease, condition).await;
        outcome
    }

    fn request(&self, app: &App, epoch: i64) -> BuildRequest {
        BuildRequest {
            build: self.entry.build.clone(),
            key: self.entry.key.clone(),
            app: app.name.clone(),
            inputs: self.inputs.clone(),
            image: app.image.clone(),
            no_cache: self.no_cache,
            epoch,
            timeout: app.build.timeout,
        }
    }

    /// The point of no return: the digest is checked and recorded, then tagged.
    async fn record(
        mut self,
        attendance: &Attendance,
        app: &App,
        digest: fabrique_core::id::Digest,
    ) -> PortResult<Ended> {
        let shop = &attendance.shop;
        let ports = &shop.ports;
        let there = async {
            let answers = || ports.registry.has(&app.image, &digest);
            answers.retry(patient()).when(PortError::transient).await
        };
        // What the guard at the commit wants to know next is asked meanwhile.
        let (there, head) = tokio::join!(there, tip_ahead(shop, app));
        match there {
            Ok(true) => {}
            Ok(false) => {
                let message = format!("the daemon pushed {digest}, and the registry does not have it");
                return self.failed(attendance, infrastructure(message)).await;
            }
            Err(error) => return self.failed(attendance, from_port(&error)).await,
        }
        let record = ImageRecord {
            key: self.entry.key.clone(),
            build: self.entry.build.clone(),
            revision: self.entry.revision.clone(),
            image: app.image.clone(),
            digest: digest.clone(),
            at: shop.ambient.now(),
        };
        let put = || ports.records.put_record(&record);
        put.retry(patient()).when(PortError::transient).await?;
        let built = Built {
            build: record.build.clone(),
            key: record.key.clone(),
            revision: record.revision.clone(),
            digest: digest.clone(),
        };
        let earlier = attendance.memory.get().await.failure.filter(|failure| failure.key == record.key);
        attendance
            .memory
            .update(move |memory| {
                if let Some(running) = memory.running.as_mut().filter(|r| r.build == built.build) {
                    running.pushed = true;
                }
                memory.built = Some(built.clone());
                memory.supersedes = 0;
                memory.failure = None;
                memory.no_cache = false;
            })
            .await?;
        let image = Image { revision: record.revision, key: record.key, build: record.build, digest };
        tokio::spawn(tag(Arc::clone(shop), app.image.clone(), image.clone()));
        self.enter(attendance, BuildPhase::Pushed { digest: image.digest.clone() });
        Ok(Ended::Image(image, Box::new(Finished { entry: self.entry, head, earlier })))
    }

    async fn failed(mut self, attendance: &Attendance, failure: BuildFailure) -> PortResult<Ended> {
        let shop = &attendance.shop;
        let attempt = Attempt {
            key: self.entry.key.clone(),
            revision: self.entry.revision.clone(),
            build: Some(self.entry.build.clone()),
            kind: failure.kind,
            message: failure.message.clone(),
        };
        let (now, jitter, policy) =
            (shop.ambient.now(), shop.ambient.jitter(), shop.observer.policy().clone());
        attendance
            .memory
            .update(move |memory| {
                memory.running = None;
                memory.supersedes = 0;
                memory.failure = Some(policy.failure(memory.failure.as_ref(), attempt.clone(), now, jitter));
            })
            .await?;
        self.enter(attendance, BuildPhase::Failed { kind: failure.kind, message: failure.message });
        Ok(Ended::Failed)
    }

    async fn halted(mut self, attendance: &Attendance, app: &App, halt: Halt) -> PortResult<Ended> {
        match halt {
            Halt::LeaseLost => Ok(Ended::LeaseLost),
            Halt::ShuttingDown => {
                attendance.memory.update(|memory| memory.running = None).await?;
                self.enter(attendance, BuildPhase::Superseded { by: None });
                Ok(Ended::ShuttingDown)
            }
            Halt::Superseded(by) => {
                let superseded = by.is_some();
                let memory = attendance
                    .memory
                    .update(move |memory| {
                        memory.running = None;
                        if superseded {
                            memory.supersedes += 1;
                        }
                    })
                    .await?;
                let status = status::superseded(&app.name, by.as_ref(), attendance.shop.config.link.clone());
                attendance.close_status(app, &self.entry.revision, &status).await;
                let is_ours = |failure: &Failure| failure.key == self.entry.key;
                let cancelled = memory.failure.filter(|f| f.kind == FailureKind::Cancelled && is_ours(f));
                let phase = match cancelled {
                    Some(Failure { kind, message, .. }) => BuildPhase::Failed { kind, message },
                    None => BuildPhase::Superseded { by },
                };
                self.enter(attendance, phase);
                Ok(Ended::Stopped)
            }
        }
    }

    /// Moves on, in the history and in the events.
    fn enter(&mut self, attendance: &Attendance, phase: BuildPhase) {
        self.entry.ended = phase.is_final().then(|| attendance.shop.ambient.now());
        self.entry.phase = phase;
        attendance.shop.announcer.enter(&self.entry, attendance.trace.clone());
    }
}

/// A place to build; nothing when it is cancelled before.
async fn place(shop: &Shop, app: &App, cancel: &CancellationToken) -> PortResult<Option<Placed>> {
    let (app, trust) = (app.name.clone(), app.build.trust.clone());
    let need = Need { app, trust, patience: shop.config.patience };
    tokio::select! {
        placed = shop.ports.placement.acquire(&need) => placed.map(Some),
        () = cancel.cancelled() => Ok(None),
    }
}

async fn tip_ahead(shop: &Shop, app: &App) -> Option<Ahead> {
    shop.observer.tip_ahead(app, shop.apps.last_read()?.as_ref()).await
}

/// Ends the history of a build whose image went through the completion path: `finished`, or one that another
/// worker left and whose image is adopted. The commit that ended it is told once, since an image may be
/// adopted again much later.
pub(crate) async fn close(
    shop: &Shop,
    image: &Image,
    finished: Option<BuildEntry>,
    (commits, refused): (&[Landed], &[Refused]),
    trace: Option<String>,
) {
    let known = match finished {
        Some(entry) => Ok(Some(entry)),
        None => shop.ports.history.build(&image.build).await,
    };
    let Ok(Some(mut entry)) = known else { return };
    if let BuildPhase::Committed { .. } = entry.phase {
        return;
    }
    let digest = image.digest.clone();
    let of_image = |landed: &&Landed| matches!(landed.automatic, Some((_, Channel::Image, _)));
    let commits: Vec<Revision> =
        commits.iter().filter(of_image).map(|landed| landed.commit.clone()).collect();
    let why = refused.iter().find(|(_, channel, _)| *channel == Channel::Image);
    entry.phase = match why {
        Some((environment, _, verdict)) if commits.is_empty() => {
            BuildPhase::NotCommitted { digest, reason: format!("{environment}: {verdict}") }
        }
        Some(_) | None => BuildPhase::Committed { digest, commits },
    };
    entry.ended = Some(shop.ambient.now());
    shop.announcer.enter(&entry, trace);
}

/// Looks again at every newer wake until the build has to end.
async fn watch_for_halt(attendance: &Attendance, app: &App, mut noted: Generation) -> Halt {
    let shop = &attendance.shop;
    loop {
        tokio::select! {
            () = attendance.lease.lost().cancelled() => return Halt::LeaseLost,
            () = shop.stop.cancelled() => return Halt::ShuttingDown,
            () = shop.board.newer_than(&app.name, noted) => {}
        }
        let newest = shop.board.wanted(&app.name).generation;
        let look = tokio::select! {
            () = attendance.lease.lost().cancelled() => return Halt::LeaseLost,
            () = shop.stop.cancelled() => return Halt::ShuttingDown,
            look = look_again(attendance, app) => look,
        };
        match look {
            Ok(Action::Stop { superseded_by }) => return Halt::Superseded(superseded_by),
            Ok(_) => noted = newest,
            Err(error) => {
                tracing::warn!(app = %app.name, %error, "could not look again; the build goes on for now");
                tokio::select! {
                    () = attendance.lease.lost().cancelled() => return Halt::LeaseLost,
                    () = tokio::time::sleep(shop.config.backoff_base) => {}
                }
            }
        }
    }
}

async fn look_again(attendance: &Attendance, app: &App) -> PortResult<Action> {
    let shop = &attendance.shop;
    let memory = attendance.memory.refresh().await?;
    let newest = shop.apps.read().await?;
    // The registration is the allow-list: without it nothing is pushed.
    let Some(app) = newest.registrations.apps.get(&app.name) else {
        return Ok(Action::Stop { superseded_by: None });
    };
    let view = shop.observer.observe(app, &newest, &memory, shop.ambient.now()).await?;
    let decision = decide(&view);
    attendance.announce(&app.name, &view, &decision);
    Ok(decision.action)
}

/// Sets the readable tag and the one that keeps the image from garbage collection.
pub(crate) async fn tag(shop: Arc<Shop>, repository: ImageRepository, image: Image) {
    for tag in [image.key.keep_tag(), image.revision.short().to_owned()] {
        if let Err(error) = shop.ports.registry.tag(&repository, &image.digest, &tag).await {
            tracing::warn!(image = %repository, tag, %error, "the tag was not set; the reconciler will");
        }
    }
}

/// An image that is pushed is worth a few attempts at recording it.
fn patient() -> ExponentialBuilder {
    ExponentialBuilder::default().with_jitter().with_min_delay(Duration::from_millis(100)).with_max_times(5)
}

fn explain(mut failure: BuildFailure, daemon: &str, autopsy: Autopsy) -> BuildFailure {
    match autopsy {
        Autopsy::Alive => {}
        Autopsy::Died { kind, why } => {
            // What the daemon itself said of its machine is not undone by how it ended.
            if failure.kind == FailureKind::Infrastructure {
                failure.kind = kind;
            }
            failure.message = format!("{daemon} {why}: {}", failure.message);
        }
        Autopsy::OutOfMemory => {
            failure.kind = FailureKind::Environment;
            failure.message = format!("{daemon} ran out of memory: {}", failure.message);
        }
    }
    failure
}

fn infrastructure(message: String) -> BuildFailure {
    BuildFailure { kind: FailureKind::Infrastructure, message, log_tail: Vec::new() }
}

fn from_port(error: &PortError) -> BuildFailure {
    infrastructure(error.to_string())
}

fn bad_id(error: &InvalidId) -> PortError {
    PortError::new(Peer::Builder, Fault::Unexpected, error.to_string())
}
