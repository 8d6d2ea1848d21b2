//! One look at every app.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fabrique_core::app::App;
use fabrique_core::decision::decide;
use fabrique_core::id::{AppName, BuildId, Digest};
use fabrique_core::memory::Memory;
use fabrique_core::time::Timestamp;
use fabrique_core::work::WorkItem;
use fabrique_observer::{Apps, AppsReader, Observer};
use fabrique_ports::bus::{Event, EventBody, WakeCause};
use fabrique_ports::records::{BuildPhase, Swap, Versioned};
use fabrique_ports::{Ambient, Fault, PortError, PortResult};
use futures::{StreamExt as _, stream};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, Ports};
use crate::history::Attempt;
use crate::images;
use crate::judge::{self, Standing, unregistered, unusable};
use crate::leases::{Holder, Leases};
use crate::measure;

mod alone;

/// Failures that are told one by one; of the others only the number is.
const TOLD: usize = 5;

/// How much a sweep looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Heads against what is deployed, and what was left unfinished.
    Heads,
    /// That, whether the registry still has the images and their tags, and what the history left open.
    Full,
}

/// What a sweep found and did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Sweep {
    /// How many apps are registered and were looked at.
    pub looked: usize,
    /// Those that were woken.
    pub woken: Vec<Woken>,
    /// What a person should look at.
    pub findings: Vec<Finding>,
    /// Tags that were set again.
    pub restored: Vec<Restored>,
    /// Attempts that nobody had ended.
    pub closed: Vec<Closed>,
    /// Apps that could not be looked at.
    pub failed: Vec<Failed>,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
}

/// A woken app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Woken {
    /// Which.
    pub app: AppName,
    /// Why.
    pub reason: String,
}

/// Something a person should look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The app, where it is about one.
    pub app: Option<AppName>,
    /// What is wrong, with its place where it is in a file.
    pub what: String,
    /// What to do next.
    pub remedy: String,
}

/// A tag that keeps an image from garbage collection and is there again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The app.
    pub app: AppName,
    /// The tag.
    pub tag: String,
    /// What it points to.
    pub digest: Digest,
}

/// An attempt whose worker went away, as the history shows it from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Closed {
    /// The attempt.
    pub build: BuildId,
    /// How it ended, by what its app remembers.
    #[serde(flatten)]
    pub phase: BuildPhase,
}

/// An app that could not be looked at; the next sweep tries again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// Which.
    pub app: AppName,
    /// Why.
    pub error: String,
}

/// Compares every app with what is deployed, and wakes those that differ.
pub struct Reconciler {
    config: Config,
    ports: Ports,
    observer: Observer,
    apps: Arc<AppsReader>,
    ambient: Arc<dyn Ambient>,
    leases: Mutex<Leases>,
    /// Which image of an app the next full sweep asks for first. It starts anywhere, so that sweeps of processes that
    /// make only one come around too.
    turn: AtomicUsize,
}

/// What is read once for all apps of a sweep.
struct Round {
    depth: Depth,
    apps: Arc<Apps>,
    observer: Observer,
    items: BTreeMap<AppName, (WorkItem, Holder)>,
    memories: BTreeMap<AppName, Memory>,
    /// See [`Reconciler`].
    turn: usize,
}

/// What one app added.
#[derive(Default)]
struct Look {
    woken: Option<Woken>,
    findings: Vec<Finding>,
    restored: Vec<Restored>,
}

impl Reconciler {
    /// A reconciler that looks through `observer` and acts through `ports`.
    #[must_use]
    pub fn new(
        config: Config,
        ports: Ports,
        observer: Observer,
        apps: Arc<AppsReader>,
        ambient: Arc<dyn Ambient>,
    ) -> Self {
        let turn = AtomicUsize::new(usize::from(ambient.random()[0]));
        Self { config, ports, observer, apps, ambient, leases: Mutex::default(), turn }
    }

    /// Looks at every registered app once.
    ///
    /// A holder counts as silent only when an earlier sweep of this reconciler saw the same record, so a
    /// single sweep finds none: [`sweep_alone`](Self::sweep_alone) does.
    ///
    /// # Errors
    /// When `cluster/apps` or the bus cannot be read: then nothing can be said about any app. What goes
    /// wrong with single apps is in [`Sweep::failed`].
    pub async fn sweep(&self, depth: Depth) -> PortResult<Sweep> {
        let started = Instant::now();
        let round = self.read(depth).await?;
        let round = &round;
        let registrations = &round.apps.registrations;
        let mut sweep = Sweep { looked: registrations.apps.len(), ..Sweep::default() };
        sweep.findings.extend(registrations.findings.iter().map(|finding| Finding {
            app: registered_by(&finding.file),
            what: format!("{}:{}:{}: {}", finding.file, finding.line, finding.column, finding.what),
            remedy: finding.remedy.clone(),
        }));
        // Owned names: a closure over borrowed apps could not be sent to another thread.
        let mut looks = stream::iter(registrations.apps.keys().cloned())
            .map(|name| self.look_at(name, round))
            .buffer_unordered(self.config.concurrency.get());
        while let Some((name, look)) = looks.next().await {
            match look {
                Ok(look) => {
                    sweep.woken.extend(look.woken);
                    sweep.findings.extend(look.findings);
                    sweep.restored.extend(look.restored);
                }
                Err(error) => sweep.failed.push(Failed { app: name, error: error.to_string() }),
            }
        }
        drop(looks);
        self.wake_removed(round, &mut sweep).await;
        if depth == Depth::Full
            && let Err(error) = self.end_abandoned(round, &mut sweep).await
        {
            sweep.findings.push(unwritten(&error));
        }
        sweep.woken.sort_by(|a, b| a.app.cmp(&b.app));
        sweep.failed.sort_by(|a, b| a.app.cmp(&b.app));
        sweep.took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        measure::sweep(&sweep);
        Ok(sweep)
    }

    /// Sweeps now and then every `interval`, give or take a tenth, until `stop`.
    pub async fn run_every(&self, interval: Duration, stop: CancellationToken) {
        let mut number = 0_u32;
        while !stop.is_cancelled() {
            let depth = match number % self.config.full_every {
                0 => Depth::Full,
                _ => Depth::Heads,
            };
            tokio::select! {
                () = stop.cancelled() => return,
                swept = self.sweep(depth) => tell(&swept),
            }
            number = number.wrapping_add(1);
            let pause = interval.mul_f64(0.9 + 0.2 * self.ambient.jitter().clamp(0.0, 1.0));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn read(&self, depth: Depth) -> PortResult<Round> {
        // Who looked at an app is read before what there is to be seen of it: what is newer by then is nobody's yet.
        let (items, memories) =
            tokio::try_join!(self.ports.board.all_work(), self.ports.memories.memories())?;
        let apps = self.apps.read().await?;
        let now = Instant::now();
        let turn = match depth {
            Depth::Full => self.turn.fetch_add(1, Ordering::Relaxed),
            Depth::Heads => 0,
        };
        let mut leases = self.leases();
        let held = items.iter().filter(|(_, _, record, _)| record.holder.is_some());
        leases.note(held.map(|(app, _, _, revision)| (app, *revision)), now);
        let items = items.into_iter().map(|(app, wanted, record, revision)| {
            let holder = leases.holder(&app, self.config.lease, now);
            let lease_expired = matches!(holder, Holder::Silent(_));
            (app.clone(), (WorkItem { app, wanted, record, revision, lease_expired }, holder))
        });
        let observer = self.observer.for_one_round();
        let memories = memories.into_iter().collect();
        Ok(Round { depth, apps, observer, items: items.collect(), memories, turn })
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the apps whose registration is gone, or cannot be used, while something of them is left over.
    async fn wake_removed(&self, round: &Round, sweep: &mut Sweep) {
        let registered = &round.apps.registrations.apps;
        let wrong = &round.apps.registrations.wrong;
        let now = self.ambient.now();
        for (app, memory) in round.memories.iter().filter(|(app, _)| !registered.contains_key(*app)) {
            let nobody = unseen(app);
            let (item, _) = round.items.get(app).unwrap_or(&nobody);
            let reason = if wrong.contains_key(app) {
                unusable(item, memory, now)
            } else {
                unregistered(item, memory, now)
            };
            let Some(reason) = reason else { continue };
            match self.wake(app, &reason, now).await {
                Ok(()) => sweep.woken.push(Woken { app: app.clone(), reason }),
                Err(error) => sweep.failed.push(Failed { app: app.clone(), error: error.to_string() }),
            }
        }
    }

    /// Ends the attempts in the history that nobody is at, and their logs for those who follow them. Whether somebody
    /// is at one is asked after the entry was read, and the entry is replaced only as it was read: a worker's own
    /// word always counts more.
    async fn end_abandoned(&self, round: &Round, sweep: &mut Sweep) -> PortResult<()> {
        let ports = &self.ports;
        for Versioned { value: entry, revision } in ports.history.unfinished_builds().await? {
            let (_, work, _) = ports.board.work_of(&entry.app).await?;
            let memory = ports.memories.memory(&entry.app).await?.value;
            let app = round.apps.registrations.apps.get(&entry.app);
            let attempt = Attempt { entry: &entry, work: &work, memory: &memory, app };
            let now = self.ambient.now();
            if !attempt.is_abandoned(self.config.lease, now) {
                continue;
            }
            let ended = attempt.ended(now);
            // Before the entry, or a sweep that dies in between leaves whoever follows the log there for ever: an entry
            // that has ended is not looked at again. Where somebody else's word on the end counts below, the attempt is
            // over as well, and to close its log twice changes nothing.
            ports.logs.close_log(&ended.build).await?;
            match ports.history.swap_build(&ended, revision).await? {
                Swap::Done(_) => {
                    tracing::info!(build = %ended.build, phase = ?ended.phase, "an attempt that nobody ended is over");
                    sweep.closed.push(Closed { build: ended.build, phase: ended.phase });
                }
                Swap::Lost => {}
            }
        }
        Ok(())
    }

    async fn look_at(&self, name: AppName, round: &Round) -> (AppName, PortResult<Look>) {
        let look = match round.apps.registrations.apps.get(&name) {
            Some(app) => self.look(app, round).await,
            None => Ok(Look::default()),
        };
        (name, look)
    }

    async fn look(&self, app: &App, round: &Round) -> PortResult<Look> {
        let (nobody, nothing) = (unseen(&app.name), Memory::default());
        let (item, holder) = round.items.get(&app.name).unwrap_or(&nobody);
        let memory = round.memories.get(&app.name).unwrap_or(&nothing);
        let now = self.ambient.now();
        let view = round.observer.observe(app, &round.apps, memory, now).await?;
        let decision = decide(&view);
        let mut look = Look::default();
        let edited = self.edited(app, round, item).await?;
        let standing = Standing { item, holder: *holder, memory, decision: &decision, edited, now };
        if let Some(reason) = standing.wake() {
            self.wake(&app.name, &reason, now).await?;
            look.woken = Some(Woken { app: app.name.clone(), reason });
        }
        if round.depth == Depth::Full {
            self.look_after_images(app, round, memory, &mut look).await?;
        }
        Ok(look)
    }

    /// What a person changed of the app since a worker looked. What a worker changed itself while this sweep read is not
    /// told: its record moved.
    async fn edited(&self, app: &App, round: &Round, item: &WorkItem) -> PortResult<Option<&'static str>> {
        let Some(edited) = judge::unseen(item.record.seen.as_ref(), &round.apps.seen_of(app), round.depth)
        else {
            return Ok(None);
        };
        let (_, _, revision) = self.ports.board.work_of(&app.name).await?;
        Ok((revision == item.revision).then_some(edited))
    }

    async fn wake(&self, app: &AppName, reason: &str, now: Timestamp) -> PortResult<()> {
        let cause = WakeCause {
            kind: "sweep".to_owned(),
            detail: reason.to_owned(),
            trace: None,
            at: now,
            named: None,
        };
        self.ports.wakes.wake(app, &cause).await?;
        tracing::info!(%app, reason, "woken");
        Ok(())
    }

    async fn look_after_images(
        &self,
        app: &App,
        round: &Round,
        memory: &Memory,
        look: &mut Look,
    ) -> PortResult<()> {
        let (records, registry) = (self.ports.records.as_ref(), self.ports.registry.as_ref());
        for finding in images::look_after(app, &round.apps, memory, records, registry, round.turn).await? {
            match finding {
                images::Finding::Restored { tag, digest } => {
                    tracing::info!(app = %app.name, tag, %digest, "a missing tag is there again");
                    look.restored.push(Restored { app: app.name.clone(), tag, digest });
                }
                images::Finding::Lost { image } => {
                    let finding = lost(&app.name, &image);
                    self.warn(&app.name, &finding).await;
                    look.findings.push(finding);
                }
            }
        }
        Ok(())
    }

    async fn warn(&self, app: &AppName, finding: &Finding) {
        let message = format!("{}; {}", finding.what, finding.remedy);
        let body = EventBody::Warning { app: Some(app.clone()), message };
        let event = Event { id: self.ambient.ulid(), at: self.ambient.now(), trace: None, body };
        if let Err(error) = self.ports.events.publish(&event).await {
            tracing::warn!(%app, %error, what = finding.what, "a warning was not published");
        }
    }
}

/// The app whose registration a file is.
fn registered_by(file: &str) -> Option<AppName> {
    AppName::parse(file.strip_prefix("apps/")?.strip_suffix("/app.yaml")?).ok()
}

fn unseen(app: &AppName) -> (WorkItem, Holder) {
    let item = WorkItem {
        app: app.clone(),
        wanted: fabrique_core::work::Generation::default(),
        record: fabrique_core::work::WorkRecord::default(),
        revision: 0,
        lease_expired: false,
    };
    (item, Holder::Nobody)
}

fn lost(app: &AppName, image: &images::Image) -> Finding {
    let environments: Vec<&str> = image.shown_in.iter().map(|name| name.as_str()).collect();
    Finding {
        app: Some(app.clone()),
        what: format!(
            "the registry lost {}, which {} of {app} shows",
            image.repository.at(&image.digest),
            environments.join(", ")
        ),
        remedy: format!("restore the registry, or `fabrique rebuild {app}` to deploy a new image"),
    }
}

/// Attempts that nobody ended cannot be ended here either.
fn unwritten(error: &PortError) -> Finding {
    let remedy = match error.fault() {
        Fault::Denied => {
            "let the user end attempts: publish to `$KV.FABRIQUE_BUILDS.>` and `fabrique_log.*`, and read `FABRIQUE_LOGS`"
        }
        Fault::Transient | Fault::Unexpected => "the next full sweep tries again",
    };
    Finding {
        app: None,
        what: format!("attempts that nobody ended were left open: {error}"),
        remedy: remedy.to_owned(),
    }
}

fn tell(swept: &Result<Sweep, PortError>) {
    let sweep = match swept {
        Ok(sweep) => sweep,
        Err(error) => {
            tracing::warn!(%error, "the sweep was not possible; the next one tries again");
            return;
        }
    };
    let (looked, woken, failed) = (sweep.looked, sweep.woken.len(), sweep.failed.len());
    tracing::info!(looked, woken, failed, took_ms = sweep.took_ms, "swept");
    for Failed { app, error } in sweep.failed.iter().take(TOLD) {
        tracing::warn!(%app, error, "the app could not be looked at");
    }
    for finding in &sweep.findings {
        tracing::warn!(what = finding.what, remedy = finding.remedy, "found by the sweep");
    }
}
