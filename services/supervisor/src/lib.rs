//! The background tasks without which a role only seems to work: one that ends by itself ends the role.
//!
//! A role starts them through a [`Supervisor`], serves beside them, and is told as a [`TaskEnded`] which of them ended
//! or panicked, so that a person learns more than that nothing happens any more.
//!
//! This crate must not know which roles and tasks there are, nor what a role does to stop: names come in as words, the
//! wish to stop as a token, and how long a role may take for it as a deadline.

use std::collections::HashMap;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// A background task ended although nobody had asked it to.
#[derive(Debug, thiserror::Error)]
#[error(
    "the {role}'s task that {task} ended by itself{}; the {role} stops, since it would only seem to work. Start it again and report this: it is a defect",
    panic.as_ref().map(|panic| format!(" ({panic})")).unwrap_or_default()
)]
pub struct TaskEnded {
    role: &'static str,
    task: &'static str,
    panic: Option<JoinError>,
}

impl TaskEnded {
    fn is_panic(&self) -> bool {
        self.panic.is_some()
    }
}

/// Tasks that are to last as long as their role does. What still runs when this is dropped is aborted.
pub struct Supervisor {
    role: &'static str,
    tasks: JoinSet<()>,
    running: HashMap<Id, &'static str>,
}

impl Supervisor {
    /// A supervisor without tasks. `role` is what the role is called: "the `role` stops".
    #[must_use]
    pub fn new(role: &'static str) -> Self {
        Self { role, tasks: JoinSet::new(), running: HashMap::new() }
    }

    /// Starts a task. `name` completes "the task that …".
    pub fn start(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let started = self.tasks.spawn(task);
        self.running.insert(started.id(), name);
    }

    /// Waits for `serving`, which is to end once `stop` is cancelled, and returns early when one of the tasks ends. One
    /// that ends because of `stop`, maybe before `serving` does, is no error.
    ///
    /// # Errors
    /// When a task panicked, or ended without `stop`, which is cancelled then for everything else.
    pub async fn serve(
        &mut self,
        serving: impl Future<Output = ()>,
        stop: &CancellationToken,
    ) -> Result<(), TaskEnded> {
        let ended = tokio::select! {
            biased;
            () = serving => return Ok(()),
            ended = self.ended() => ended,
        };
        if stop.is_cancelled() && !ended.is_panic() {
            return Ok(());
        }
        tracing::error!(error = %ended, "stopping");
        stop.cancel();
        Err(ended)
    }

    /// Waits until all tasks have ended, which they were asked to, or until `deadline`; tells which are left.
    ///
    /// # Errors
    /// When one of them panicked.
    pub async fn all_ended(&mut self, deadline: Instant) -> Result<Vec<&'static str>, TaskEnded> {
        while let Ok(Some(ended)) = timeout_at(deadline, self.tasks.join_next_with_id()).await {
            let ended = self.named(ended);
            if ended.is_panic() {
                return Err(ended);
            }
        }
        Ok(self.running.values().copied().collect())
    }

    /// Waits until one of the tasks ends, and tells which.
    async fn ended(&mut self) -> TaskEnded {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.named(ended),
            None => std::future::pending().await,
        }
    }

    fn named(&mut self, ended: Result<(Id, ()), JoinError>) -> TaskEnded {
        let (id, panic) = match ended {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), Some(error)),
        };
        TaskEnded { role: self.role, task: self.running.remove(&id).unwrap_or("nobody knows"), panic }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn a_task_that_ends_is_told_by_name_and_with_its_panic() {
        let mut supervisor = Supervisor::new("worker");
        supervisor.start("waits", pending());
        supervisor.start("ends", ready(()));
        let ended = supervisor.ended().await;
        assert!(!ended.is_panic());
        let told = ended.to_string();
        assert!(told.starts_with("the worker's task that ends ended by itself; the worker stops"), "{told}");
        supervisor.start("panics", async { panic!("an index out of bounds") });
        let ended = supervisor.ended().await;
        assert!(ended.is_panic());
        let told = ended.to_string();
        assert!(told.starts_with("the worker's task that panics ended by itself (task "), "{told}");
        assert!(told.contains("an index out of bounds") && told.contains("Start it again"), "{told}");
    }

    #[tokio::test]
    async fn a_task_that_ends_by_itself_stops_its_role_with_an_error_that_names_it() {
        for panics in [false, true] {
            let (mut supervisor, stop) = (Supervisor::new("receiver"), CancellationToken::new());
            supervisor.start("waits", pending());
            supervisor.start("follows", async move { assert!(!panics, "nobody expected it") });
            let told = supervisor.serve(pending(), &stop).await.unwrap_err().to_string();
            assert!(told.contains("that follows ") && told.contains("the receiver stops"), "{told}");
            assert_eq!(told.contains("nobody expected it"), panics, "{told}");
            assert!(stop.is_cancelled(), "what else runs is told to end");
        }
    }

    #[tokio::test]
    async fn a_task_that_ends_because_its_role_stops_is_no_error() {
        let (mut supervisor, stop) = (Supervisor::new("worker"), CancellationToken::new());
        let stopped = stop.clone();
        supervisor.start("ends", async move { stopped.cancelled().await });
        stop.cancel();
        assert!(supervisor.serve(pending(), &stop).await.is_ok());
        assert!(supervisor.serve(ready(()), &stop).await.is_ok());
    }

    #[tokio::test]
    async fn a_panic_is_an_error_although_its_role_stops() {
        let (mut supervisor, stop) = (Supervisor::new("worker"), CancellationToken::new());
        let stopped = stop.clone();
        supervisor.start("panics", async move {
            stopped.cancelled().await;
            panic!("late");
        });
        stop.cancel();
        let told = supervisor.serve(pending(), &stop).await.unwrap_err().to_string();
        assert!(told.contains("late"), "{told}");
    }

    #[tokio::test]
    async fn a_panic_while_a_role_stops_is_found_and_an_orderly_end_is_none() {
        let mut supervisor = Supervisor::new("worker");
        supervisor.start("ends", ready(()));
        supervisor.start("panics", async { panic!("late") });
        let panicked = supervisor.all_ended(soon()).await.unwrap_err().to_string();
        assert!(panicked.contains("that panics "), "{panicked}");
        assert_eq!(supervisor.all_ended(soon()).await.unwrap(), Vec::<&str>::new());
    }

    #[tokio::test]
    async fn what_has_not_ended_at_the_deadline_is_told_by_name() {
        let mut supervisor = Supervisor::new("receiver");
        supervisor.start("hangs", pending());
        supervisor.start("ends", ready(()));
        supervisor.ended().await;
        assert_eq!(supervisor.all_ended(Instant::now()).await.unwrap(), ["hangs"]);
    }
}
