//! A build's progress, on its way to the log store and the events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::Retryable as _;
use fabrique_core::id::{BuildId, Digest};
use fabrique_core::time::Timestamp;
use fabrique_ports::PortError;
use fabrique_ports::builder::{Progress, ProgressSink};
use fabrique_ports::bus::EventBody;
use fabrique_ports::egress::{Egress, Fetch, Fetched};
use fabrique_ports::records::Logs;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::announce::{Announcer, last_word};
use crate::measure;

/// Lines that may wait to be stored. A build that prints faster than the store takes loses lines, never
/// time.
const QUEUE: usize = 16_384;
/// Lines stored together.
const BATCH: usize = 256;
/// How long lines wait for company.
const LINGER: Duration = Duration::from_millis(100);

/// Takes a build's progress.
pub(crate) struct BuildLog {
    build: BuildId,
    trace: Option<String>,
    announcer: Announcer,
    lines: mpsc::Sender<String>,
    told: Mutex<Told>,
}

/// What the build tells once.
#[derive(Default)]
struct Told {
    /// What it fetched, each with how long ago that was, and how much is left out.
    egress: Option<(Vec<(Duration, Fetch)>, u64)>,
    /// The cache that it exported.
    cache: Option<Digest>,
}

/// The writing side, to be finished when the build has ended.
pub(crate) struct LogWriter(JoinHandle<()>);

impl BuildLog {
    pub(crate) fn start(
        build: BuildId,
        trace: Option<String>,
        announcer: Announcer,
        logs: Arc<dyn Logs>,
    ) -> (Arc<Self>, LogWriter) {
        let (lines, queue) = mpsc::channel(QUEUE);
        let writer = tokio::spawn(write(build.clone(), logs, queue));
        (Arc::new(Self { build, trace, announcer, lines, told: Mutex::default() }), LogWriter(writer))
    }

    /// What the build fetched, if its daemon on this `isolation` has told by `now`.
    pub(crate) fn egress(&self, isolation: Option<String>, now: Timestamp) -> Option<Egress> {
        let (fetches, left_out) = self.told().egress.take()?;
        let fetches = fetches.into_iter().map(|(ago, fetch)| Fetched { at: now.before(ago), fetch });
        Some(Egress { isolation, fetches: fetches.collect(), left_out })
    }

    /// The cache that the build exported, if it did.
    pub(crate) fn cache(&self) -> Option<Digest> {
        self.told().cache.take()
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, line: String) {
        if self.lines.try_send(line).is_err() {
            measure::log_lines_dropped(1);
        }
    }
}

impl LogWriter {
    /// Waits up to `wait` for the last lines; every handle on the [`BuildLog`] must be gone.
    pub(crate) async fn finish(self, wait: Duration) {
        if tokio::time::timeout(wait, self.0).await.is_err() {
            tracing::warn!("the last lines of a build log were not stored in time");
        }
    }
}

impl ProgressSink for BuildLog {
    fn report(&self, progress: Progress) {
        match progress {
            Progress::StepStarted { name } => self.line(format!("=> {name}")),
            Progress::StepEnded { name, cached, took, error } => {
                let outcome = match (&error, cached) {
                    (Some(error), _) => format!("ERROR {error}"),
                    (None, true) => "CACHED".to_owned(),
                    (None, false) => format!("done {:.1}s", took.as_secs_f64()),
                };
                self.line(format!("=> {name} {outcome}"));
                self.announcer.say(
                    self.trace.clone(),
                    EventBody::Step {
                        app: self.build.app(),
                        build: self.build.clone(),
                        name,
                        cached,
                        millis: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                        error,
                    },
                );
            }
            Progress::Log { line } => self.line(line),
            Progress::Egress { fetches, left_out } => self.told().egress = Some((fetches, left_out)),
            Progress::CacheExported { digest } => self.told().cache = Some(digest),
        }
    }
}

async fn write(build: BuildId, logs: Arc<dyn Logs>, mut queue: mpsc::Receiver<String>) {
    let mut batch = Vec::with_capacity(BATCH);
    while queue.recv_many(&mut batch, BATCH).await > 0 {
        if let Err(error) = logs.append_log(&build, &batch).await {
            measure::log_lines_dropped(batch.len());
            tracing::warn!(%build, %error, "build output was not stored");
        }
        batch.clear();
        if queue.len() < BATCH && !queue.is_closed() {
            tokio::time::sleep(LINGER).await;
        }
    }
    // Whoever follows the log waits for it.
    let close = || logs.close_log(&build);
    if let Err(error) = close.retry(last_word()).when(PortError::transient).await {
        tracing::warn!(%build, %error, "the build log was not closed");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;
    use fabrique_ports::{Fault, Peer, PortResult};
    use futures::stream::BoxStream;

    use super::*;

    /// A store that answers again after some attempts: a real bus that is away for a given moment of a log's end
    /// cannot be had.
    struct FaultyLogs {
        attempts: AtomicU32,
    }

    #[async_trait]
    impl Logs for FaultyLogs {
        async fn append_log(&self, _: &BuildId, _: &[String]) -> PortResult<()> {
            Ok(())
        }

        async fn close_log(&self, _: &BuildId) -> PortResult<()> {
            match self.attempts.fetch_add(1, Ordering::SeqCst) {
                0..3 => Err(PortError::new(Peer::Bus, Fault::Transient, "no answer")),
                _ => Ok(()),
            }
        }

        async fn read_log(&self, _: &BuildId, _: bool) -> PortResult<BoxStream<'static, PortResult<String>>> {
            Err(PortError::new(Peer::Bus, Fault::Unexpected, "nobody reads here"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_is_closed_once_the_bus_is_back() {
        let logs = Arc::new(FaultyLogs { attempts: AtomicU32::new(0) });
        let (lines, queue) = mpsc::channel(1);
        drop(lines);
        let build = BuildId::parse("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap();
        write(build, Arc::clone(&logs) as _, queue).await;
        assert_eq!(logs.attempts.load(Ordering::SeqCst), 4);
    }
}
