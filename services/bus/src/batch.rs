//! Several messages for one acknowledgement.
//!
//! A server that syncs every write syncs an atomic batch once. Messages are the same ones as without it, on the same
//! subjects, with three headers more, which tell the server which belong together and where the batch ends. It stores all of
//! them or none; the last is answered for all.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::header::{NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL, NATS_BATCH_ID, NATS_BATCH_SEQUENCE};
use bytes::Bytes;
use futures::future::try_join_all;

use crate::connection::Bus;
use crate::error::BusError;
use crate::server;

/// Fewer are cheaper one by one: for a batch the server makes a store on its disk first, which takes as much as some ten
/// messages that are each synced.
const FEW: usize = 16;
/// How long no batch is tried after one was refused: an operator may allow them meanwhile.
const PAUSE: Duration = Duration::from_secs(60);

/// A message on its way into a stream.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// When the server last refused a batch.
#[derive(Debug, Default)]
pub(crate) struct Refused(Mutex<Option<Instant>>);

impl Refused {
    fn note(&self, at: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    fn lately(&self, now: Instant) -> bool {
        let at = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| now.saturating_duration_since(at) < PAUSE)
    }
}

impl Bus {
    /// Publishes what `messages` makes into one stream, in its order, and waits until all are stored: together where they
    /// are many and the server and the stream take batches, else each for itself. At most 1000, which a server takes as
    /// one batch. They are made once more when a batch is refused, which is rare; copying all of them is not.
    pub(crate) async fn store_all(
        &self,
        messages: impl Fn() -> Result<Vec<Outgoing>, BusError>,
    ) -> Result<(), BusError> {
        let made = messages()?;
        let together =
            made.len() >= FEW && server::knows_batches(self) && !self.batches().lately(Instant::now());
        if !together {
            return self.store_each(made).await;
        }
        match self.store_batch(made).await {
            Err(BusError::JetStream { server_fault: false, what, reason }) => {
                tracing::debug!(what, reason, "a batch was refused: its messages are stored one by one");
                self.batches().note(Instant::now());
                self.store_each(messages()?).await
            }
            outcome => outcome,
        }
    }

    async fn store_each(&self, messages: Vec<Outgoing>) -> Result<(), BusError> {
        let storing = messages
            .into_iter()
            .map(|Outgoing { subject, headers, body }| self.store(subject, headers, body));
        try_join_all(storing).await.map(drop)
    }

    /// What is not last is not answered. Should the server have lost one, it refuses the last.
    async fn store_batch(&self, messages: Vec<Outgoing>) -> Result<(), BusError> {
        let inbox = self.client().new_inbox();
        let batch = inbox.rsplit('.').next().unwrap_or(&inbox).to_owned();
        let last = messages.len();
        for (number, Outgoing { subject, mut headers, body }) in (1..).zip(messages) {
            headers.insert(NATS_BATCH_ID, batch.as_str());
            headers.insert(NATS_BATCH_SEQUENCE, number.to_string());
            if number == last {
                headers.insert(NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL);
                return self.store(subject, headers, body).await.map(drop);
            }
            let sent = self.client().publish_with_headers(subject.clone(), headers, body).await;
            sent.map_err(|error| BusError::from_source(&subject, error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_for_a_minute() {
        let (refused, now) = (Refused::default(), Instant::now());
        assert!(!refused.lately(now));
        refused.note(now);
        assert!(refused.lately(now) && refused.lately(now + PAUSE / 2));
        assert!(!refused.lately(now + PAUSE));
    }
}
