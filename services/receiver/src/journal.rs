//! Events, published once the answers they are about are given.

use std::sync::Arc;
use std::time::Duration;

use fabrique_ports::bus::{Event, Events};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::measure;

/// The most events published together.
const TOGETHER: usize = 128;
/// The least time from one publish to the next, unless so many wait. A lone event goes at once. Many share what each would
/// cost a bus that the next deliveries wait for; and no decision about a delivery is told so soon.
const SPACING: Duration = Duration::from_millis(20);
/// How long one publish may hold its place, whatever `nats.timeouts.ack` allows. No key: an event that is later than
/// this is told in the log, and losing it loses no work.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The sending end of the bounded queue.
#[derive(Clone)]
pub(crate) struct Journal {
    queue: mpsc::Sender<Event>,
}

impl Journal {
    /// A queue of `capacity` events.
    pub(crate) fn new(capacity: usize) -> (Self, mpsc::Receiver<Event>) {
        let (queue, events) = mpsc::channel(capacity);
        (Self { queue }, events)
    }

    /// Hands an event over. Never waits: an event that finds the queue full is counted and dropped.
    fn note(&self, event: Event) {
        if self.queue.try_send(event).is_err() {
            measure::events_dropped("queue_full", 1);
        }
    }
}

/// An event that waits for its answer: it is handed over when this is dropped, which an answer does with its body once
/// the connection has taken all of it, or is gone.
pub(crate) struct Afterwards(Option<(Journal, Event)>);

impl Afterwards {
    /// Nothing is to be told.
    pub(crate) fn nothing() -> Self {
        Self(None)
    }

    pub(crate) fn note(journal: &Journal, event: Event) -> Self {
        Self(Some((journal.clone(), event)))
    }
}

impl Drop for Afterwards {
    fn drop(&mut self) {
        if let Some((journal, event)) = self.0.take() {
            journal.note(event);
        }
    }
}

/// Publishes what arrives until `closing`, then what is left.
pub(crate) async fn publish(
    mut queue: mpsc::Receiver<Event>,
    events: Arc<dyn Events>,
    closing: CancellationToken,
) {
    let mut waiting = Vec::new();
    loop {
        tokio::select! {
            biased;
            _ = queue.recv_many(&mut waiting, TOGETHER) => {}
            () = closing.cancelled() => {
                queue.close();
                queue.recv_many(&mut waiting, TOGETHER).await;
            }
        }
        if waiting.is_empty() {
            return;
        }
        let next = Instant::now() + SPACING;
        together(&*events, &waiting).await;
        waiting.clear();
        if queue.len() < TOGETHER {
            tokio::select! {
                () = sleep_until(next) => {}
                () = closing.cancelled() => {}
            }
        }
    }
}

async fn together(events: &dyn Events, told: &[Event]) {
    let problem = match timeout(PUBLISH_TIMEOUT, events.publish_all(told)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "timed out".to_owned(),
    };
    measure::events_dropped("not_published", told.len());
    let first = told.first().map(|event| event.id.as_str());
    tracing::warn!(first, count = told.len(), ?problem, "events were not published");
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use fabrique_core::id::{AppName, RepoName};
    use fabrique_core::time::Timestamp;
    use fabrique_ports::PortResult;
    use fabrique_ports::bus::EventBody;
    use futures::stream::BoxStream;
    use tokio::sync::Semaphore;

    use super::*;

    /// A bus that tells what is published together, and is done with it when the test allows it.
    struct Slow {
        told: mpsc::UnboundedSender<Vec<String>>,
        allowed: Semaphore,
    }

    #[async_trait]
    impl Events for Slow {
        async fn publish(&self, event: &Event) -> PortResult<()> {
            self.publish_all(std::slice::from_ref(event)).await
        }

        async fn publish_all(&self, events: &[Event]) -> PortResult<()> {
            self.told.send(events.iter().map(|event| event.id.clone()).collect()).unwrap();
            self.allowed.acquire().await.unwrap().forget();
            Ok(())
        }

        async fn tail(
            &self,
            _: Option<&AppName>,
            _: Option<Timestamp>,
        ) -> PortResult<BoxStream<'static, PortResult<Event>>> {
            Ok(Box::pin(futures::stream::empty()))
        }
    }

    fn event(id: usize) -> Event {
        let body = EventBody::Delivery {
            repo: RepoName::parse("atlas/citation").unwrap(),
            reference: String::new(),
            after: String::new(),
            delivery: String::new(),
            woken: vec![],
            ignored: None,
        };
        Event { id: id.to_string(), at: Timestamp(0), trace: None, body }
    }

    fn ids(numbers: std::ops::Range<usize>) -> Vec<String> {
        numbers.map(|number| number.to_string()).collect()
    }

    #[tokio::test]
    async fn a_lone_event_goes_at_once_and_what_comes_meanwhile_goes_together_in_its_order() {
        let (told, mut heard) = mpsc::unbounded_channel();
        let bus = Arc::new(Slow { told, allowed: Semaphore::new(0) });
        let (journal, queue) = Journal::new(4 * TOGETHER);
        let closing = CancellationToken::new();
        let publishing = tokio::spawn(publish(queue, Arc::clone(&bus) as _, closing.clone()));
        journal.note(event(0));
        assert_eq!(heard.recv().await.unwrap(), ids(0..1));
        let all = TOGETHER + 10;
        (1..=all).for_each(|number| journal.note(event(number)));
        bus.allowed.add_permits(1);
        assert_eq!(heard.recv().await.unwrap(), ids(1..TOGETHER + 1));
        bus.allowed.add_permits(2);
        assert_eq!(heard.recv().await.unwrap(), ids(TOGETHER + 1..all + 1));
        closing.cancel();
        publishing.await.unwrap();
    }

    #[tokio::test]
    async fn what_waits_at_the_end_is_published_and_no_more_is_taken() {
        let (told, mut heard) = mpsc::unbounded_channel();
        let bus = Arc::new(Slow { told, allowed: Semaphore::new(8) });
        let (journal, queue) = Journal::new(4 * TOGETHER);
        (0..TOGETHER + 1).for_each(|number| journal.note(event(number)));
        let closing = CancellationToken::new();
        closing.cancel();
        publish(queue, bus, closing).await;
        assert_eq!(heard.recv().await.unwrap(), ids(0..TOGETHER));
        assert_eq!(heard.recv().await.unwrap(), ids(TOGETHER..TOGETHER + 1));
        assert!(journal.queue.is_closed());
    }
}
