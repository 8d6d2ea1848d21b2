//! The background tasks without which a worker only seems to work: one that ends on its own ends the worker.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::task::TaskTracker;

/// A background task ended although nobody had asked it to.
#[derive(Debug)]
pub struct TaskEnded {
    task: &'static str,
    panic: Option<JoinError>,
}

impl Display for TaskEnded {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "the worker's task that {} ended by itself", self.task)?;
        if let Some(panic) = &self.panic {
            write!(f, " ({panic})")?;
        }
        f.write_str(
            "; the worker stops, since it would claim apps in vain. Start it again and report this: it is a defect",
        )
    }
}

impl std::error::Error for TaskEnded {}

/// Tasks that are to last as long as the worker does.
#[derive(Default)]
pub(crate) struct Supervisor {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Supervisor {
    /// Starts a task, which `tracker` waits for like for any other. `name` completes "the task that …".
    pub(crate) fn start(
        &mut self,
        name: &'static str,
        tracker: &TaskTracker,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let started = self.tasks.spawn(tracker.track_future(task));
        self.names.insert(started.id(), name);
    }

    /// Waits until one of the tasks ends, and tells which.
    pub(crate) async fn ended(&mut self) -> TaskEnded {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.named(ended),
            None => std::future::pending().await,
        }
    }

    /// One that panicked, of those that have ended by now.
    pub(crate) fn panicked(&mut self) -> Option<TaskEnded> {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            let ended = self.named(ended);
            if ended.is_panic() {
                return Some(ended);
            }
        }
        None
    }

    fn named(&self, ended: Result<(Id, ()), JoinError>) -> TaskEnded {
        let (id, panic) = match ended {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), Some(error)),
        };
        TaskEnded { task: self.names.get(&id).copied().unwrap_or("nobody knows"), panic }
    }
}

impl TaskEnded {
    pub(crate) fn is_panic(&self) -> bool {
        self.panic.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_is_told_by_name_and_with_its_panic() {
        let (mut supervisor, tracker) = (Supervisor::default(), TaskTracker::new());
        supervisor.start("waits", &tracker, std::future::pending());
        supervisor.start("ends", &tracker, std::future::ready(()));
        let ended = supervisor.ended().await;
        assert!(!ended.is_panic());
        assert!(ended.to_string().starts_with("the worker's task that ends ended by itself; "), "{ended}");
        supervisor.start("panics", &tracker, async { panic!("an index out of bounds") });
        let ended = supervisor.ended().await;
        assert!(ended.is_panic());
        let told = ended.to_string();
        assert!(told.starts_with("the worker's task that panics ended by itself (task "), "{told}");
        assert!(told.contains("an index out of bounds") && told.contains("Start it again"), "{told}");
    }

    #[tokio::test]
    async fn a_panic_while_the_worker_stops_is_found_and_an_orderly_end_is_none() {
        let (mut supervisor, tracker) = (Supervisor::default(), TaskTracker::new());
        supervisor.start("ends", &tracker, std::future::ready(()));
        supervisor.start("panics", &tracker, async { panic!("late") });
        tracker.close();
        tracker.wait().await;
        let panicked = async {
            loop {
                if let Some(ended) = supervisor.panicked() {
                    return ended;
                }
                tokio::task::yield_now().await;
            }
        };
        assert!(panicked.await.to_string().contains("that panics "));
        assert!(supervisor.panicked().is_none());
    }
}
