//! Buckets and single messages: put, swap, read.

use std::time::Instant;

use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{Error as ApiError, ErrorCode};
use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use fabrique_ports::records::Swap;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::Bus;
use crate::error::{BusError, find};
use crate::layout::Store;
use crate::reader::{From, Read, Reader};

/// What clients of buckets write in this header when they delete or purge a key.
const OPERATION: &str = "KV-Operation";

/// A key's newest value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) store: Store,
    pub(crate) key: String,
    /// The sequence in the stream.
    pub(crate) revision: u64,
    /// `None` when the newest is a marker of deletion.
    pub(crate) value: Option<Bytes>,
}

impl Entry {
    pub(crate) fn new(
        store: Store,
        subject: &str,
        revision: u64,
        headers: Option<&HeaderMap>,
        value: Bytes,
    ) -> Self {
        let deleted = headers.is_some_and(|headers| headers.get(OPERATION).is_some());
        let key = store.key(subject).unwrap_or(subject).to_owned();
        Self { store, key, revision, value: (!deleted).then_some(value) }
    }

    /// The value; `None` where it was deleted.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<Option<T>, BusError> {
        self.value.as_ref().map(|value| decode(self.store, &self.key, value)).transpose()
    }
}

/// Reads JSON; an error names the key and how to be rid of it.
pub(crate) fn decode<T: DeserializeOwned>(store: Store, key: &str, value: &[u8]) -> Result<T, BusError> {
    serde_json::from_slice(value).map_err(|source| {
        let stream = store.stream();
        let (place, remedy) = match stream.strip_prefix("KV_") {
            Some(bucket) => (
                format!("{bucket}/{key}"),
                format!("`nats kv get {bucket} {key}`, then `nats kv del {bucket} {key}`"),
            ),
            None => (format!("{stream}/{key}"), format!("`nats stream view {stream}`")),
        };
        BusError::Undecodable { place, remedy, source: source.into() }
    })
}

pub(crate) fn encode<T: Serialize>(what: &str, value: &T) -> Result<Bytes, BusError> {
    let json = serde_json::to_vec(value);
    json.map(Bytes::from).map_err(|source| BusError::Unencodable { what: what.to_owned(), source })
}

impl Bus {
    /// Publishes into a stream and waits for the acknowledgement: one round trip, `timeouts.ack` for all of it.
    pub(crate) async fn store(
        &self,
        subject: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<PublishAck, BusError> {
        self.try_store(subject, headers, body).await.map(|outcome| outcome.unwrap_or_default())
    }

    /// The same; `None` when the headers expect a last sequence and it is another.
    async fn try_store(
        &self,
        subject: String,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Option<PublishAck>, BusError> {
        let (started, within) = (Instant::now(), self.config().timeouts.ack);
        let publish =
            async { self.publishing().publish_with_headers(subject.clone(), headers, body).await?.await };
        let error = match tokio::time::timeout(within, publish).await {
            Ok(Ok(ack)) => return Ok(Some(ack)),
            Ok(Err(error)) if error.kind() == PublishErrorKind::WrongLastSequence => return Ok(None),
            // A clustered server says so with a code that the client library does not translate.
            Ok(Err(error))
                if find::<ApiError>(&error)
                    .is_some_and(|e| e.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT) =>
            {
                return Ok(None);
            }
            Ok(Err(error)) => BusError::publish(&subject, within, error),
            Err(_) => BusError::Timeout { what: subject.clone(), within },
        };
        Err(self.explain(&subject, started, error))
    }

    /// Writes a key, whatever it holds.
    pub(crate) async fn put(&self, store: Store, key: &str, value: Bytes) -> Result<u64, BusError> {
        self.store(store.subject(key), HeaderMap::new(), value).await.map(|ack| ack.sequence)
    }

    /// Writes a key if it is still at `revision`; zero means that it holds nothing, never did or not any more.
    pub(crate) async fn swap(
        &self,
        store: Store,
        key: &str,
        value: Bytes,
        revision: u64,
    ) -> Result<Swap, BusError> {
        if let Some(ack) = self.swap_exactly(store, key, value.clone(), revision).await? {
            return Ok(Swap::Done(ack.sequence));
        }
        if revision != 0 {
            return Ok(Swap::Lost);
        }
        match self.entry(store, key).await? {
            Some(Entry { value: None, revision: marker, .. }) => {
                let ack = self.swap_exactly(store, key, value, marker).await?;
                Ok(ack.map_or(Swap::Lost, |ack| Swap::Done(ack.sequence)))
            }
            Some(Entry { value: Some(_), .. }) | None => Ok(Swap::Lost),
        }
    }

    async fn swap_exactly(
        &self,
        store: Store,
        key: &str,
        value: Bytes,
        revision: u64,
    ) -> Result<Option<PublishAck>, BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(revision));
        self.try_store(store.subject(key), headers, value).await
    }

    /// The newest message of a subject, from the stream's leader.
    pub(crate) async fn last(&self, store: Store, subject: &str) -> Result<Option<StreamMessage>, BusError> {
        let (started, within) = (Instant::now(), self.config().timeouts.request);
        let api = format!("$JS.API.STREAM.MSG.GET.{}", store.stream());
        match self.stream(store).await?.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(message)),
            Err(error) => match BusError::read(subject, within, error) {
                None => Ok(None),
                Some(error) => Err(self.explain(&api, started, error)),
            },
        }
    }

    /// A key's newest value.
    pub(crate) async fn entry(&self, store: Store, key: &str) -> Result<Option<Entry>, BusError> {
        let message = self.last(store, &store.subject(key)).await?;
        Ok(message.map(|m| Entry::new(store, &m.subject, m.sequence, Some(&m.headers), m.payload)))
    }

    /// The newest value of every key below `filter`, deleted ones left out.
    pub(crate) async fn entries(&self, store: Store, filter: &str) -> Result<Vec<Entry>, BusError> {
        let mut reader = Reader::open(self, store, vec![store.subject(filter)], From::Newest).await?;
        let mut entries = Vec::new();
        loop {
            match reader.next().await? {
                Read::Message(m) => {
                    let entry = Entry::new(store, &m.subject, m.sequence, m.headers.as_ref(), m.payload);
                    if entry.value.is_some() {
                        entries.push(entry);
                    }
                }
                Read::CaughtUp => return Ok(entries),
            }
        }
    }

    /// A handle on a stream, without asking the server.
    pub(crate) async fn stream(&self, store: Store) -> Result<Stream<()>, BusError> {
        let handle = self.asking().get_stream_no_info(store.stream()).await;
        handle.map_err(|error| BusError::from_source(store.stream(), error))
    }
}
