//! Servers up, the story told, servers down: whatever happens in between.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fabrique_bed::install::{self, Cache, Product};
use fabrique_stage::{Fabrique, Settings, Stage};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::failure::Stopped;
use crate::screen::Screen;
use crate::{next, story};

/// How soon the reconciler finds a push that no webhook told of: soon enough to wait for, and late enough to
/// stay out of the timeline of the first push.
pub(crate) const SWEEP: &str = "20s";

/// What the bed's `Bed::all` runs on.
const SERVERS: [Product; 7] = [
    Product::Nats,
    Product::Busybox,
    Product::Registry,
    Product::Rootlesskit,
    Product::Buildkit,
    Product::Gitea,
    Product::GiteaData,
];

/// What every step needs: where to write, and when to give up.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    pub(crate) screen: Screen,
    pub(crate) interrupt: CancellationToken,
    /// When the demo was started.
    pub(crate) begun: Instant,
}

impl Steps {
    /// Does one step, and says what was done and how long it took.
    pub(crate) async fn step<T>(
        &self,
        name: &'static str,
        doing: impl Future<Output = Result<T>>,
        done: impl FnOnce(&T) -> String,
    ) -> Result<T, Stopped> {
        self.screen.doing(name)?;
        let start = Instant::now();
        let outcome = self.race(name, doing).await;
        match &outcome {
            Ok(value) => self.screen.did(name, &done(value), start.elapsed())?,
            Err(_) => self.screen.forget()?,
        }
        outcome
    }

    /// Does one step whose result speaks for itself.
    pub(crate) async fn quietly<T>(
        &self,
        name: &'static str,
        doing: impl Future<Output = Result<T>>,
    ) -> Result<T, Stopped> {
        self.screen.doing(name)?;
        let outcome = self.race(name, doing).await;
        self.screen.forget()?;
        outcome
    }

    async fn race<T>(
        &self,
        name: &'static str,
        doing: impl Future<Output = Result<T>>,
    ) -> Result<T, Stopped> {
        // Ctrl-C also ends the command that a step may be running: that is no failure of the step.
        tokio::select! {
            biased;
            () = self.interrupt.cancelled() => Err(Stopped::Interrupted),
            outcome = Box::pin(doing) => outcome.map_err(|error| Stopped::failed(name, error)),
        }
    }
}

/// The whole demo. With `stays` it remains up until it is interrupted.
pub(crate) async fn run(screen: Screen, base: Option<&str>, stays: bool) -> Result<(), Stopped> {
    let begun = Instant::now();
    let fabrique = binary().map_err(|error| Stopped::failed("binary", error))?;
    screen.heading("fabrique: a push to a real Gitea becomes a digest on cluster/apps")?;
    prepare(screen).await?;
    // From here on there is something to stop; before, Ctrl-C ends builds and demo alike by itself.
    let interrupt = interruption().map_err(|error| Stopped::failed("signals", error))?;
    let steps = Steps { screen, interrupt, begun };
    let settings = Settings { sweep_every: SWEEP.to_owned(), ..Settings::default() };
    let stage = steps.step("servers", Stage::builder().settings(settings).start(fabrique), |_| {
        "Gitea, NATS JetStream, a registry, rootless BuildKit".to_owned()
    });
    let stage = stage.await?;
    let told = Box::pin(play(&steps, &stage, base, stays)).await;
    let stopped = stage.bed.stop().await;
    told?;
    stopped.map_err(|error| Stopped::failed("stop", error))?;
    if stays {
        screen.text("everything is stopped")?;
    }
    Ok(())
}

/// Starts fabrique, tells the story, and stops fabrique.
async fn play(steps: &Steps, stage: &Stage, base: Option<&str>, stays: bool) -> Result<(), Stopped> {
    let started = steps.step("fabrique", stage.all(), |_| {
        "`fabrique all`: receiver, worker and reconciler in one process".to_owned()
    });
    let fabrique = started.await?;
    steps.screen.did("ready", "started, and waiting for a push", steps.begun.elapsed())?;
    let told = Box::pin(tell(steps, stage, base, stays)).await;
    let told = match told {
        Err(stopped) => Err(stopped.with_evidence(stage, &fabrique, story::APP).await),
        Ok(()) => Ok(()),
    };
    let stopped = end(&fabrique).await;
    told.and(stopped)
}

async fn tell(steps: &Steps, stage: &Stage, base: Option<&str>, stays: bool) -> Result<(), Stopped> {
    let app = story::tell(steps, stage, base).await?;
    if stays {
        next::stay(steps, stage, &app).await?;
    }
    Ok(())
}

async fn end(fabrique: &Fabrique) -> Result<(), Stopped> {
    fabrique.peer.stop().await.map_err(|error| Stopped::failed("stop", error))
}

/// The binary that was built beside this one.
fn binary() -> Result<PathBuf> {
    let own = std::env::current_exe().context("looking for the demo's own folder")?;
    let binary = own.with_file_name("fabrique");
    ensure!(
        binary.is_file(),
        "{} is missing: `./just demo` builds it, or `cargo build --package fabrique`",
        binary.display()
    );
    Ok(binary)
}

/// Builds the servers that the cache lacks, which is most of a first run.
async fn prepare(screen: Screen) -> Result<(), Stopped> {
    let failed = |error| Stopped::failed("build the servers", error);
    let cache = Cache::open().map_err(failed)?;
    let missing: Vec<&str> =
        SERVERS.into_iter().filter(|product| !cache.has(*product)).map(Product::name).collect();
    if !missing.is_empty() {
        screen.text(&format!(
            "  Once, from pinned sources, about 10 minutes on two cores for all of them:\n  {}\n",
            missing.join(", ")
        ))?;
    }
    let building = tokio::task::spawn_blocking(move || install::ensure(&cache, &SERVERS));
    building.await.context("building the servers").flatten().map_err(failed)
}

/// Cancelled by the first request to end; a second one ends the process at once, and with it all that it started.
fn interruption() -> Result<CancellationToken> {
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
        .map(signal)
        .into_iter()
        .collect::<std::io::Result<Vec<_>>>()
        .context("listening for Ctrl-C")?;
    let interrupt = CancellationToken::new();
    let cancelled = interrupt.clone();
    tokio::spawn(async move {
        for first in [true, false] {
            let [int, term, hup] = signals.as_mut_slice() else { return };
            tokio::select! {
                _ = int.recv() => {}
                _ = term.recv() => {}
                _ = hup.recv() => {}
            }
            if first {
                cancelled.cancel();
            } else {
                std::process::exit(1);
            }
        }
    });
    Ok(interrupt)
}
