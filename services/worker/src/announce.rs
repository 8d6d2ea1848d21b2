//! Telling the world what happened, without making anybody wait for it.

use std::sync::Arc;

use fabrique_ports::bus::{Event, EventBody, Events};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use fabrique_ports::Ambient;

/// Events that may wait to be published. Past it they are dropped and counted: losing one loses no work.
const QUEUE: usize = 4096;

/// Publishes events in order, in the background.
#[derive(Clone)]
pub(crate) struct Announcer {
    queue: mpsc::Sender<Event>,
    ambient: Arc<dyn Ambient>,
}

impl Announcer {
    /// Starts the background task on `tasks`; it ends when the last announcer is dropped.
    pub(crate) fn start(events: Arc<dyn Events>, ambient: Arc<dyn Ambient>, tasks: &TaskTracker) -> Self {
        let (queue, mut waiting) = mpsc::channel::<Event>(QUEUE);
        tasks.spawn(async move {
            while let Some(event) = waiting.recv().await {
                if let Err(error) = events.publish(&event).await {
                    metrics::counter!("fabrique_events_dropped_total").increment(1);
                    tracing::debug!(%error, "an event was not published");
                }
            }
        });
        Self { queue, ambient }
    }

    /// Queues an event.
    pub(crate) fn say(&self, trace: Option<String>, body: EventBody) {
        let event = Event { id: self.ambient.ulid(), at: self.ambient.now(), trace, body };
        if self.queue.try_send(event).is_err() {
            metrics::counter!("fabrique_events_dropped_total").increment(1);
        }
    }
}
