//! Telling the world what happened, without making anybody wait for it.

use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use fabrique_ports::bus::{Event, EventBody, Events};
use fabrique_ports::records::{BuildEntry, BuildHistory};
use fabrique_ports::{Ambient, PortError, PortResult};
use tokio::sync::mpsc;

use crate::measure;

/// News that may wait to be told. Past it they are dropped and counted: losing one loses no work.
const QUEUE: usize = 4096;
/// How often the end of a build is noted again while the bus does not answer: for some 45 seconds, and for as long as
/// each attempt takes to fail.
const RETRIES: usize = 10;

enum News {
    Event(Event),
    Build(BuildEntry),
}

/// Publishes events and writes the history of builds, in order, in the background.
#[derive(Clone)]
pub(crate) struct Announcer {
    queue: mpsc::Sender<News>,
    ambient: Arc<dyn Ambient>,
}

impl Announcer {
    /// The announcer and its loop, which ends when the last announcer is dropped.
    pub(crate) fn new(
        events: Arc<dyn Events>,
        history: Arc<dyn BuildHistory>,
        ambient: Arc<dyn Ambient>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, mut waiting) = mpsc::channel::<News>(QUEUE);
        let telling = async move {
            while let Some(news) = waiting.recv().await {
                let told = match &news {
                    News::Event(event) => events.publish(event).await,
                    News::Build(entry) => noted(entry, || history.put_build(entry)).await,
                };
                if let Err(error) = told {
                    measure::event_dropped();
                    tracing::warn!(%error, "something that happened was not told");
                }
            }
        };
        (Self { queue, ambient }, telling)
    }

    /// Queues an event.
    pub(crate) fn say(&self, trace: Option<String>, body: EventBody) {
        self.tell(News::Event(Event { id: self.ambient.ulid(), at: self.ambient.now(), trace, body }));
    }

    /// Queues a build's new phase, for the history and as an event.
    pub(crate) fn enter(&self, entry: &BuildEntry, trace: Option<String>) {
        tracing::info!(build = %entry.build, revision = entry.revision.short(), phase = ?entry.phase, "build");
        self.tell(News::Build(entry.clone()));
        let body = EventBody::Build {
            app: entry.app.clone(),
            build: entry.build.clone(),
            revision: entry.revision.clone(),
            phase: entry.phase.clone(),
        };
        self.say(trace, body);
    }

    fn tell(&self, news: News) {
        if self.queue.try_send(news).is_err() {
            measure::event_dropped();
        }
    }
}

/// How what nothing follows is tried again while the bus does not answer.
pub(crate) fn last_word() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_jitter()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(10))
        .with_max_times(RETRIES)
}

/// Notes where a build stands. Its end is tried again for a minute while the bus does not answer: nothing follows
/// that would correct what the history shows. What else is to be told waits meanwhile, as it could not be told either.
async fn noted<F>(entry: &BuildEntry, put: impl FnMut() -> F) -> PortResult<()>
where
    F: Future<Output = PortResult<()>>,
{
    let attempts = if entry.phase.is_final() { RETRIES } else { 0 };
    put.retry(last_word().with_max_times(attempts))
        .when(PortError::transient)
        .notify(|error, wait| {
            let (build, wait_ms) = (&entry.build, wait.as_millis());
            tracing::warn!(%build, %error, wait_ms, "the end of a build was not noted yet; trying again");
        })
        .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use fabrique_core::failure::FailureKind;
    use fabrique_core::id::{BuildId, BuildKey, Revision};
    use fabrique_core::time::Timestamp;
    use fabrique_ports::records::BuildPhase;
    use fabrique_ports::{Fault, Peer};

    use super::*;

    fn entry(phase: BuildPhase) -> BuildEntry {
        let build = BuildId::parse("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap();
        BuildEntry {
            app: build.app(),
            build,
            key: BuildKey::parse(&"ab".repeat(32)).unwrap(),
            revision: Revision::parse(&"1".repeat(40)).unwrap(),
            reason: "it is not built yet".to_owned(),
            phase,
            daemon: None,
            queued: Timestamp(0),
            ended: None,
            egress: None,
        }
    }

    /// How often the entry is put on a bus that fails so often in this way, and how the last attempt went.
    async fn puts(phase: BuildPhase, failures: usize, fault: Fault) -> (usize, bool) {
        let puts = Cell::new(0);
        let put = async || {
            puts.set(puts.get() + 1);
            let fails = puts.get() <= failures;
            if fails { Err(PortError::new(Peer::Bus, fault, "no")) } else { Ok(()) }
        };
        let noted = noted(&entry(phase), put).await;
        (puts.get(), noted.is_ok())
    }

    fn failed() -> BuildPhase {
        BuildPhase::Failed { kind: FailureKind::Source, message: "exit code 2".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_build_is_noted_when_the_bus_is_back_within_a_minute() {
        let started = tokio::time::Instant::now();
        assert_eq!(puts(failed(), RETRIES, Fault::Transient).await, (RETRIES + 1, true));
        assert!(started.elapsed() > Duration::from_secs(40), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_given_up_for_the_reconciler_after_that() {
        let started = tokio::time::Instant::now();
        assert_eq!(puts(failed(), usize::MAX, Fault::Transient).await, (RETRIES + 1, false));
        assert!(started.elapsed() < Duration::from_secs(120), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_phase_follows_or_nobody_may_write_is_tried_once() {
        assert_eq!(puts(BuildPhase::Building, 1, Fault::Transient).await, (1, false));
        assert_eq!(puts(failed(), 1, Fault::Denied).await, (1, false));
    }
}
