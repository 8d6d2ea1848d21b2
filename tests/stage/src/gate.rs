//! A build step that runs until the test lets it go on.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use fabrique_bed::wait_until;
use rustix::process::{Pid, Signal, kill_process};

/// How long a build may take to come to a gate, on a daemon that may have to be made for it.
const REACHED: Duration = Duration::from_mins(2);
/// How often a gate that is held open looks for new steps.
const PUSHING: Duration = Duration::from_millis(50);

/// A step that sleeps for days and whose failure the Dockerfile forgives: to end the sleep is to open the
/// gate. The step is found among the machine's processes by its duration, which no other gate has.
#[derive(Debug)]
pub struct Gate {
    seconds: String,
}

impl Gate {
    /// A gate that no build has come to yet.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "two gates are never equal")]
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { seconds: format!("{}{number:03}", 100_000 + std::process::id() % 100_000) }
    }

    /// The Dockerfile's steps: the gate, and the message behind it.
    #[must_use]
    pub fn steps(&self) -> String {
        format!("RUN sleep {} || true\nCOPY message /message", self.seconds)
    }

    /// Waits until a build stands at the gate.
    ///
    /// # Errors
    /// When none does in two minutes.
    pub async fn reached(&self) -> Result<()> {
        let what = format!("a build to come to the gate of {} s", self.seconds);
        wait_until(&what, REACHED, || async { (self.waiting() > 0).then_some(()) }).await
    }

    /// How many builds stand at the gate.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.sleepers().len()
    }

    /// Lets the builds through that stand at the gate now.
    pub fn open(&self) {
        for pid in self.sleepers() {
            // One that has just ended by itself is through as well.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Keeps the gate open, for builds that are done again, until `until` is done.
    pub async fn open_until<T>(&self, until: impl Future<Output = T>) -> T {
        let opening = async {
            loop {
                self.open();
                tokio::time::sleep(PUSHING).await;
            }
        };
        tokio::select! {
            done = until => done,
            () = opening => unreachable!("the gate is opened for ever"),
        }
    }

    fn sleepers(&self) -> Vec<Pid> {
        let wanted = format!("sleep\0{}\0", self.seconds);
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        processes
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == wanted.as_bytes())
            })
            .filter_map(Pid::from_raw)
            .collect()
    }
}
