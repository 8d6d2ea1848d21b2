//! From a wake to the first solve, seen from outside.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use time::OffsetDateTime;

use crate::bus::{self, Told};
use crate::feed::Feed;
use crate::fleet::{self, Fleet};
use crate::ground::Ground;
use crate::log::{self, Line};

/// A build, a cold pod included.
const BUILT: Duration = Duration::from_secs(120);
/// How soon a commit comes back as a wake, and is found to leave nothing to do.
const QUIET: Duration = Duration::from_secs(10);

/// Looks on at every step of one app's builds.
pub(crate) struct Onlooker {
    wakes: Feed<Told>,
    log: Feed<Line>,
    builds: Feed<Told>,
}

/// The milliseconds after the wake.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Solved {
    /// Until it was decided to build.
    pub(crate) decided: f64,
    /// Until there was a daemon, and the worker turned to it.
    pub(crate) placed: f64,
    /// Until the connection to it was up, on which the solve is sent.
    pub(crate) connected: f64,
}

impl Onlooker {
    /// Looks on from now on.
    pub(crate) async fn open(ground: &Ground) -> Result<Self> {
        Ok(Self {
            wakes: bus::listen(&ground.bus, "FABRIQUE_WAKE", "fabrique.wake.>").await?,
            log: log::follow(ground).await?,
            builds: fleet::builds(ground).await?,
        })
    }

    /// Waits until the only app of a fleet is built and committed for the first time.
    pub(crate) async fn first(&mut self, fleet: &Fleet) -> Result<()> {
        self.woken(fleet, BUILT, |cause| cause["kind"] == "apps").await.context("its registration")?;
        fleet::committed(&mut self.builds, &fleet.names, fleet.head(), BUILT).await?;
        self.quiet(fleet).await
    }

    /// Pushes to a fleet of one app, tells of it, and waits until nothing is left to do.
    pub(crate) async fn push(&mut self, ground: &Ground, fleet: &mut Fleet, message: &str) -> Result<Solved> {
        let name = only(fleet);
        self.log.skip();
        let pushed = fleet.push(message).await?;
        fleet.deliver(ground, &pushed).await?;
        let woken = self.woken(fleet, BUILT, |cause| cause["named"] == pushed.revision.as_str()).await?;
        let to_build = |line: &Line| line.is_decided(&name, "build").then_some(line.at);
        let decided = self.log.find("a decision to build", BUILT, to_build).await?;
        let building = |line: &Line| line.is_building(&name).then_some(line.at);
        let placed = self.log.find("a build that starts", BUILT, building).await?;
        let up = |line: &Line| line.is_connected().then_some(line.at);
        let connected = self.log.find("a connection to its daemon", BUILT, up).await?;
        fleet::committed(&mut self.builds, &fleet.names, &pushed.revision, BUILT).await?;
        self.quiet(fleet).await?;
        Ok(Solved {
            decided: millis(woken, decided),
            placed: millis(woken, placed),
            connected: millis(woken, connected),
        })
    }

    /// When the next wake of this cause was stored.
    async fn woken(
        &mut self,
        fleet: &Fleet,
        limit: Duration,
        cause: impl Fn(&Value) -> bool,
    ) -> Result<OffsetDateTime> {
        let subject = format!("fabrique.wake.{}", only(fleet));
        let wake = |told: &Told| (told.subject == subject && cause(&told.body)).then_some(told.at);
        self.wakes.find("a wake", limit, wake).await
    }

    /// Waits until fabrique has heard of its own commit, and has found nothing to do.
    async fn quiet(&mut self, fleet: &Fleet) -> Result<()> {
        let heard =
            self.woken(fleet, QUIET, |cause| cause["kind"] == "apps").await.context("its own commit")?;
        let name = only(fleet);
        let settled = |line: &Line| (line.is_decided(&name, "nothing") && line.at >= heard).then_some(());
        self.log.find("nothing to do", QUIET, settled).await
    }
}

fn only(fleet: &Fleet) -> String {
    fleet.names.first().cloned().unwrap_or_default()
}

/// Signed: who writes a moment down last may be the one who is heard first.
pub(crate) fn millis(from: OffsetDateTime, to: OffsetDateTime) -> f64 {
    (to - from).as_seconds_f64() * 1e3
}
