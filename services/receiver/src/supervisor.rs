//! The background tasks without which a receiver only seems to work: one that ends on its own ends the receiver.

use std::collections::HashMap;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};

/// A background task ended although nobody had asked it to.
#[derive(Debug, thiserror::Error)]
#[error(
    "the receiver's task that {task} ended by itself{}; the receiver stops. Start it again and report this: it is a defect",
    panic.as_ref().map(|panic| format!(" ({panic})")).unwrap_or_default()
)]
pub struct TaskEnded {
    task: &'static str,
    panic: Option<JoinError>,
}

impl TaskEnded {
    pub(crate) fn is_panic(&self) -> bool {
        self.panic.is_some()
    }
}

/// Tasks that are to last as long as the receiver does. What still runs when this is dropped is aborted.
#[derive(Default)]
pub(crate) struct Supervisor {
    tasks: JoinSet<()>,
    running: HashMap<Id, &'static str>,
}

impl Supervisor {
    /// Starts a task. `name` completes "the task that …".
    pub(crate) fn start(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let started = self.tasks.spawn(task);
        self.running.insert(started.id(), name);
    }

    /// Waits until one of the tasks ends, and tells which.
    pub(crate) async fn ended(&mut self) -> TaskEnded {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.named(ended),
            None => std::future::pending().await,
        }
    }

    /// Waits until all of them have ended, which they were asked to, or until `deadline`; tells which are left.
    ///
    /// # Errors
    /// When one of them panicked.
    pub(crate) async fn all_ended(&mut self, deadline: Instant) -> Result<Vec<&'static str>, TaskEnded> {
        while let Ok(Some(ended)) = timeout_at(deadline, self.tasks.join_next_with_id()).await {
            let ended = self.named(ended);
            if ended.is_panic() {
                return Err(ended);
            }
        }
        Ok(self.running.values().copied().collect())
    }

    fn named(&mut self, ended: Result<(Id, ()), JoinError>) -> TaskEnded {
        let (id, panic) = match ended {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), Some(error)),
        };
        TaskEnded { task: self.running.remove(&id).unwrap_or("nobody knows"), panic }
    }
}
