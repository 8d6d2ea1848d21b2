//! Reading a body within three bounds: its own size, the memory of all bodies, and time.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use bytes::BytesMut;
use futures::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::answer::Answer;

/// How much of a body that is too large is read and thrown away, in caps, so that a client which only reads
/// once it has written sees the answer. More than that, and the connection is cut.
const DISCARDED_CAPS: usize = 4;

/// A body in memory. Its share of the common memory is given back when it is dropped.
pub(crate) struct Buffered {
    pub(crate) bytes: BytesMut,
    share: Option<OwnedSemaphorePermit>,
}

/// The bounds.
pub(crate) struct Bounds<'a> {
    /// The largest body, in bytes.
    pub(crate) cap: usize,
    /// The bytes that all bodies share.
    pub(crate) memory: &'a Arc<Semaphore>,
    /// When the body must have arrived.
    pub(crate) deadline: Instant,
}

/// Reads a body, or says why not.
pub(crate) async fn read(body: Body, bounds: &Bounds<'_>) -> Result<Buffered, Answer> {
    match timeout_at(bounds.deadline, collect(body, bounds)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Answer::TooSlow),
    }
}

async fn collect(body: Body, bounds: &Bounds<'_>) -> Result<Buffered, Answer> {
    let announced = body.size_hint().lower();
    let too_large = usize::try_from(announced).is_ok_and(|length| length > bounds.cap);
    let mut body = body.into_data_stream();
    if too_large {
        return discard(&mut body, bounds.cap).await;
    }
    let mut buffered = Buffered { bytes: BytesMut::new(), share: None };
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|_| Answer::BrokenBody)?;
        if buffered.bytes.len() + chunk.len() > bounds.cap {
            drop(buffered);
            return discard(&mut body, bounds.cap).await;
        }
        buffered.grow(&chunk, bounds.memory)?;
    }
    Ok(buffered)
}

impl Buffered {
    fn grow(&mut self, chunk: &[u8], memory: &Arc<Semaphore>) -> Result<(), Answer> {
        let length = u32::try_from(chunk.len()).map_err(|_| Answer::TooLarge)?;
        let share = Arc::clone(memory).try_acquire_many_owned(length).map_err(|_| Answer::Busy)?;
        match &mut self.share {
            Some(held) => held.merge(share),
            None => self.share = Some(share),
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }
}

async fn discard(body: &mut axum::body::BodyDataStream, cap: usize) -> Result<Buffered, Answer> {
    let mut left = cap.saturating_mul(DISCARDED_CAPS);
    while let Some(Ok(chunk)) = body.next().await {
        match left.checked_sub(chunk.len()) {
            Some(rest) => left = rest,
            None => break,
        }
    }
    Err(Answer::TooLarge)
}
