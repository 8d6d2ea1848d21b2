//! Telling the world what happened, without making anybody wait for it.

use std::sync::Arc;

use fabrique_ports::Ambient;
use fabrique_ports::bus::{Event, EventBody, Events};
use fabrique_ports::records::{BuildEntry, BuildHistory};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

/// News that may wait to be told. Past it they are dropped and counted: losing one loses no work.
const QUEUE: usize = 4096;

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
    /// Starts the background task on `tasks`; it ends when the last announcer is dropped.
    pub(crate) fn start(
        events: Arc<dyn Events>,
        history: Arc<dyn BuildHistory>,
        ambient: Arc<dyn Ambient>,
        tasks: &TaskTracker,
    ) -> Self {
        let (queue, mut waiting) = mpsc::channel::<News>(QUEUE);
        tasks.spawn(async move {
            while let Some(news) = waiting.recv().await {
                let told = match &news {
                    News::Event(event) => events.publish(event).await,
                    News::Build(entry) => history.put_build(entry).await,
                };
                if let Err(error) = told {
                    metrics::counter!("fabrique_news_dropped_total").increment(1);
                    tracing::warn!(%error, "something that happened was not told");
                }
            }
        });
        Self { queue, ambient }
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
            metrics::counter!("fabrique_news_dropped_total").increment(1);
        }
    }
}
