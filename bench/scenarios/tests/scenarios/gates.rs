//! Gates: passed once, in order, one at a time.

use std::pin::Pin;
use std::sync::Mutex as StdMutex;
use std::time::{Duration, Instant};

use anyhow::Result;
use fabrique_bed::Cluster;
use fabrique_kubernetes::config::Isolation;
use fabrique_scenarios::Installation;
use tokio::sync::{Mutex, OnceCell};

/// Why a gate was not passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Closed {
    /// This machine carries no cluster.
    Skipped(String),
    /// Something is not as promised, here or at a gate before.
    Failed(String),
}

pub(crate) type Passed = Result<&'static Installation, Closed>;

/// One gate of the scenario.
pub(crate) struct Gate {
    pub(crate) number: &'static str,
    passed: OnceCell<Result<(), Closed>>,
    took: StdMutex<Option<Duration>>,
}

impl Gate {
    pub(crate) const fn new(number: &'static str) -> Self {
        Self { number, passed: OnceCell::const_new(), took: StdMutex::new(None) }
    }

    /// Plays the gate after `before`, unless that was done already.
    pub(crate) fn pass<'a>(
        &'a self,
        before: impl Future<Output = Passed> + 'a,
        play: impl AsyncFnOnce(&'static Installation) -> Result<()> + 'a,
    ) -> Pin<Box<dyn Future<Output = Passed> + 'a>> {
        /// Some break what others stand on.
        static TURN: Mutex<()> = Mutex::const_new(());
        Box::pin(async move {
            let installation = before.await?;
            let played = async {
                let _turn = TURN.lock().await;
                let start = Instant::now();
                let result = Box::pin(play(installation)).await;
                result.map_err(|error| Closed::Failed(format!("gate {}: {error:#}", self.number)))?;
                *self.took.lock().unwrap() = Some(start.elapsed());
                Ok(())
            };
            self.passed.get_or_init(|| played).await.clone().map(|()| installation)
        })
    }

    /// How long it took, once passed.
    pub(crate) fn took(&self) -> Option<Duration> {
        *self.took.lock().unwrap()
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
        let installation = Box::pin(Installation::install(cluster, Isolation::Userns)).await;
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
