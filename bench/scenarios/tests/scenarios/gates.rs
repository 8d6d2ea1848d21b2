//! Gates: passed once, in order, one at a time.

use std::pin::Pin;
use std::sync::Mutex as StdMutex;
use std::time::{Duration, Instant};

use anyhow::Result;
use fabrique_bed::Cluster;
use fabrique_scenarios::{Installation, Isolation};
use tokio::sync::{Mutex, OnceCell};

use crate::{broken, crowd, deaf, hostile, outages, pushed, replayed, seeded};

/// How builds are kept apart in this run: `userns`, unless this says `rootless`.
const ISOLATION: &str = "FABRIQUE_ISOLATION";
/// The switch for whoever works on one gate: those after the third stand on the third alone.
const APART: &str = "FABRIQUE_GATES_APART";
/// The switch for the long run, `./just scenarios`.
const LONG: &str = "FABRIQUE_LONG_GATES";
/// How many gates always stand on each other.
const FIRST: usize = 3;

/// Every gate after those that it stands on.
pub(crate) static ORDER: [&Gate; 18] = [
    &seeded::GATE,
    &pushed::GATE,
    &replayed::GATE,
    &broken::DELETED,
    &broken::EVICTED,
    &broken::STARVED,
    &broken::DRAINED,
    &broken::KILLED,
    &broken::KILLED_BEFORE_COMMIT,
    &broken::KILLED_AFTER_COMMIT,
    &outages::API,
    &outages::CONTAINERD,
    &crowd::GATE,
    &deaf::NATS,
    &deaf::HOOK,
    &hostile::GATE,
    // Last, since workers start anew for them.
    &pushed::OTHER,
    &hostile::OTHER,
];

/// Why a gate was not passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Closed {
    /// This machine carries no cluster.
    Skipped(String),
    /// Something is not as promised, here or at a gate before.
    Failed(String),
}

pub(crate) type Passed = Result<&'static Installation, Closed>;
/// What happens at a gate.
type Play = fn(&'static Installation) -> Pin<Box<dyn Future<Output = Result<()>>>>;

/// One gate of the scenario.
pub(crate) struct Gate {
    pub(crate) number: &'static str,
    play: Play,
    /// Whether it is played in the isolation that is not the run's.
    other: bool,
    /// Whether it is passed over in a run of all tests, where a shorter test shows the same.
    long: bool,
    passed: OnceCell<Result<(), Closed>>,
    took: StdMutex<Option<Duration>>,
}

impl Gate {
    /// One in the isolation of the run.
    pub(crate) const fn new(number: &'static str, play: Play) -> Self {
        let (other, long) = (false, false);
        Self { number, play, other, long, passed: OnceCell::const_new(), took: StdMutex::new(None) }
    }

    /// One in the other isolation.
    pub(crate) const fn other(number: &'static str, play: Play) -> Self {
        let mut gate = Self::new(number, play);
        gate.other = true;
        gate
    }

    /// The same, for the long run alone. Its test is ignored.
    pub(crate) const fn long(mut self) -> Self {
        self.long = true;
        self
    }

    /// Plays the gate after those before it, unless that was done already.
    pub(crate) fn passed(&'static self) -> Pin<Box<dyn Future<Output = Passed>>> {
        /// Apart from each other they would still break what others stand on.
        static TURN: Mutex<()> = Mutex::const_new(());
        Box::pin(async move {
            let installation = match self.before() {
                Some(before) => before.passed().await?,
                None => installed().await?,
            };
            let played = async {
                let _turn = TURN.lock().await;
                let result = self.play(installation).await;
                result.map_err(|error| Closed::Failed(format!("gate {}: {error:#}", self.number)))
            };
            self.passed.get_or_init(|| played).await.clone().map(|()| installation)
        })
    }

    fn before(&self) -> Option<&'static Gate> {
        let place = ORDER.iter().position(|gate| std::ptr::eq(*gate, self)).unwrap();
        let apart = std::env::var_os(APART).is_some();
        let reach = if apart { place.min(FIRST) } else { place };
        let long_too = std::env::var_os(LONG).is_some();
        ORDER[..reach].iter().rfind(|gate| long_too || !gate.long).copied()
    }

    async fn play(&self, installation: &'static Installation) -> Result<()> {
        installation.isolate(if self.other { other_isolation() } else { isolation() }).await?;
        let start = Instant::now();
        (self.play)(installation).await?;
        *self.took.lock().unwrap() = Some(start.elapsed());
        Ok(())
    }

    /// How long it took, once passed.
    pub(crate) fn took(&self) -> Option<Duration> {
        *self.took.lock().unwrap()
    }
}

/// How builds are kept apart in this run.
pub(crate) fn isolation() -> Isolation {
    let wanted = std::env::var(ISOLATION).unwrap_or_else(|_| Isolation::Userns.as_str().to_owned());
    Isolation::parse(&wanted).unwrap_or_else(|| panic!("{ISOLATION} is {wanted:?}: userns or rootless"))
}

fn other_isolation() -> Isolation {
    match isolation() {
        Isolation::Userns => Isolation::Rootless,
        Isolation::Rootless => Isolation::Userns,
    }
}

/// What is before the first gate.
pub(crate) async fn installed() -> Passed {
    static INSTALLED: OnceCell<Result<Installation, Closed>> = OnceCell::const_new();
    let installed = INSTALLED.get_or_init(async || {
        if let Err(obstacle) = Cluster::possible() {
            return Err(Closed::Skipped(obstacle.to_string()));
        }
        let cluster = Cluster::shared().await;
        let installation = Box::pin(Installation::install(cluster, isolation())).await;
        installation.map_err(|error| Closed::Failed(format!("the installation: {error:#}")))
    });
    installed.await.as_ref().map_err(Clone::clone)
}

/// Ends a test as its gate did.
#[expect(clippy::print_stdout, reason = "a scenario that is skipped says so where its output is captured")]
pub(crate) fn conclude(passed: Passed) {
    match passed {
        Ok(_) => {}
        Err(Closed::Skipped(why)) => {
            assert!(std::env::var_os("FABRIQUE_STRICT").is_none(), "scenario 34 cannot run: {why}");
            println!("SKIP: scenario 34 cannot run: {why}");
        }
        Err(Closed::Failed(why)) => panic!("{why}"),
    }
}

/// A name that no earlier run used.
pub(crate) fn fresh(name: &str) -> String {
    format!("{name}-{:08x}", rand::random::<u32>())
}
