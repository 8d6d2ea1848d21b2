//! Events, published behind the answer's back.

use std::sync::Arc;
use std::time::Duration;

use fabrique_ports::bus::{Event, Events};
use futures::{StreamExt as _, stream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::measure;

/// Publishes under way at once: enough to keep up with the deliveries that the bus acknowledges.
const CONCURRENT: usize = 16;
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
    pub(crate) fn note(&self, event: Event) {
        if self.queue.try_send(event).is_err() {
            measure::event_dropped("queue_full");
        }
    }
}

/// Publishes what arrives until `closing`, then what is left.
pub(crate) async fn publish(
    queue: mpsc::Receiver<Event>,
    events: Arc<dyn Events>,
    closing: CancellationToken,
) {
    let waiting = stream::unfold((queue, closing), async |(mut queue, closing)| {
        let next = tokio::select! {
            biased;
            next = queue.recv() => next,
            () = closing.cancelled() => {
                queue.close();
                queue.recv().await
            }
        };
        next.map(|event| (event, (queue, closing)))
    });
    waiting.for_each_concurrent(CONCURRENT, |event| one(Arc::clone(&events), event)).await;
}

async fn one(events: Arc<dyn Events>, event: Event) {
    let problem = match timeout(PUBLISH_TIMEOUT, events.publish(&event)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "timed out".to_owned(),
    };
    measure::event_dropped("not_published");
    tracing::warn!(event = event.id, ?problem, "an event was not published");
}
