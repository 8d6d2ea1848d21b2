//! Reading a stream from some point on, without gaps.
//!
//! A [`Reader`] is a consumer that lives in the server's memory, belongs to one reader and ends with it. It answers in
//! order, says when it has caught up with what was there at its start, and ends with an error at the first doubt: a
//! missed heartbeat, a hole in the consumer's numbering, a deleted consumer or stream. Whoever reads then opens
//! another one, from the beginning (the board) or after the last message it saw ([`Follow`]).

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::datetime;
use async_nats::jetstream::consumer::pull::{Config, Stream};
use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, ReplayPolicy};
use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use fabrique_core::time::Timestamp;
use futures::StreamExt as _;

use crate::connection::Bus;
use crate::error::BusError;
use crate::layout::Store;

// What follows is agreed between a reader and the server, and no key: nobody waits longer or shorter for a message by
// it. How soon a lost connection is noticed is `timeouts.ping`, how long it is put up with `timeouts.outage`.

/// Two missed ones end a reader, which is then opened again.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// The life of one pull request, during which the server delivers what comes; the client renews it.
const PULL: Duration = Duration::from_secs(30);
const BATCH: usize = 256;
/// How long the server keeps a consumer that nobody pulls from.
const ABANDONED: Duration = Duration::from_secs(15);
/// A reader that has lived for longer was heard from: in silence it ends after two heartbeats.
const PROVEN: Duration = HEARTBEAT.saturating_mul(3);
/// Silence after which a reader that has not caught up asks the server whether anything is left: a message that was
/// counted as pending may have been replaced before it was sent.
const DOUBT: Duration = Duration::from_millis(500);

/// Where to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// The newest message of each subject.
    Newest,
    /// The first message.
    Beginning,
    /// After this sequence.
    After(u64),
    /// The first message at or after this time.
    Since(Timestamp),
    /// What comes from now on.
    Now,
}

/// A message of a stream.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) subject: String,
    pub(crate) headers: Option<HeaderMap>,
    pub(crate) payload: Bytes,
    pub(crate) sequence: u64,
}

/// What a reader answers.
#[derive(Debug)]
pub(crate) enum Read {
    /// The next message.
    Message(Message),
    /// Everything that was there at the start has been read. Said once.
    CaughtUp,
}

/// A consumer of one reader.
pub(crate) struct Reader {
    store: Store,
    messages: Stream,
    consumer: Consumer<Config>,
    /// The number that the consumer gave to the last message; they grow by one.
    delivered: u64,
    /// Messages left of those that were there at the start.
    pending: u64,
    caught_up: bool,
    /// The stream's sequence before the first message to be read.
    start: u64,
    within: Duration,
}

impl Reader {
    pub(crate) async fn open(
        bus: &Bus,
        store: Store,
        filters: Vec<String>,
        from: From,
    ) -> Result<Self, BusError> {
        let (started, within) = (Instant::now(), bus.config().timeouts.request);
        let config = Config {
            description: Some(format!("{} reads", bus.config().name)),
            deliver_policy: deliver_policy(from)?,
            ack_policy: AckPolicy::None,
            replay_policy: ReplayPolicy::Instant,
            filter_subjects: filters,
            inactive_threshold: ABANDONED,
            num_replicas: 1,
            memory_storage: true,
            ..Config::default()
        };
        let what = format!("reading {}", store.stream());
        let created = bus.asking().create_consumer_on_stream(config, store.stream()).await;
        let consumer = created.map_err(|error| {
            let api = format!("$JS.API.CONSUMER.CREATE.{}", store.stream());
            bus.explain(&api, started, BusError::consumer(&what, within, error))
        })?;
        let pulling = consumer.stream().max_messages_per_batch(BATCH).expires(PULL).heartbeat(HEARTBEAT);
        let messages = pulling.messages().await.map_err(|error| BusError::from_source(&what, error))?;
        let info = consumer.cached_info();
        let (pending, start) = (info.num_pending, info.delivered.stream_sequence);
        Ok(Self { store, messages, consumer, delivered: 0, pending, caught_up: false, start, within })
    }

    /// The sequence after which this reader started.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The next message, or that all of the past was read. After an error the reader is dead. Dropping the future
    /// loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Read, BusError> {
        loop {
            if self.caught_up {
                let message = self.messages.next().await;
                return self.accept(message).map(Read::Message);
            }
            if self.pending == 0 {
                self.caught_up = true;
                return Ok(Read::CaughtUp);
            }
            match tokio::time::timeout(DOUBT, self.messages.next()).await {
                Ok(message) => return self.accept(message).map(Read::Message),
                Err(_) => self.ask_whether_anything_is_left().await?,
            }
        }
    }

    fn accept(
        &mut self,
        message: Option<Result<async_nats::jetstream::Message, impl std::fmt::Display>>,
    ) -> Result<Message, BusError> {
        let message = match message {
            Some(Ok(message)) => message,
            Some(Err(error)) => return Err(self.lost(error.to_string())),
            None => return Err(self.lost("the consumer ended".to_owned())),
        };
        let info = message.info().map_err(|error| self.lost(error.to_string()))?;
        let (number, sequence, pending) = (info.consumer_sequence, info.stream_sequence, info.pending);
        if number != self.delivered + 1 {
            return Err(self.lost(format!("message {number} came after {}", self.delivered)));
        }
        self.delivered = number;
        self.pending = pending;
        let message = message.message;
        Ok(Message {
            subject: message.subject.into_string(),
            headers: message.headers,
            payload: message.payload,
            sequence,
        })
    }

    async fn ask_whether_anything_is_left(&mut self) -> Result<(), BusError> {
        let info = tokio::time::timeout(self.within, self.consumer.get_info()).await;
        let info = match info {
            Ok(Ok(info)) => info,
            Ok(Err(error)) => return Err(self.lost(error.to_string())),
            Err(_) => return Err(self.lost("the server does not answer".to_owned())),
        };
        if info.delivered.consumer_sequence == self.delivered {
            self.pending = info.num_pending;
        }
        Ok(())
    }

    fn lost(&self, reason: String) -> BusError {
        BusError::Interrupted { what: format!("reading {}", self.store.stream()), reason }
    }
}

fn deliver_policy(from: From) -> Result<DeliverPolicy, BusError> {
    Ok(match from {
        From::Newest => DeliverPolicy::LastPerSubject,
        From::Beginning => DeliverPolicy::All,
        From::After(sequence) => {
            DeliverPolicy::ByStartSequence { start_sequence: sequence.saturating_add(1) }
        }
        From::Since(Timestamp(millis)) => {
            let start_time = datetime::from_nanos(i128::from(millis) * 1_000_000)
                .map_err(|error| BusError::Config(format!("{millis} ms is not a time: {error}")))?;
            DeliverPolicy::ByStartTime { start_time }
        }
        From::Now => DeliverPolicy::New,
    })
}

/// The delays between attempts to open a reader.
pub(crate) fn reopen_delays() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_jitter()
        .with_min_delay(Duration::from_millis(20))
        .with_max_delay(Duration::from_secs(2))
        .without_max_times()
        .build()
}

/// A reader that is opened again where it stopped, until that has failed for `timeouts.outage`.
pub(crate) struct Follow {
    bus: Bus,
    store: Store,
    filters: Vec<String>,
    from: From,
    /// With when it was opened.
    reader: Option<(Reader, Instant)>,
    caught_up: bool,
    failing_since: Option<Instant>,
    delays: ExponentialBackoff,
}

impl Follow {
    pub(crate) async fn open(
        bus: &Bus,
        store: Store,
        filters: Vec<String>,
        from: From,
    ) -> Result<Self, BusError> {
        let reader = Reader::open(bus, store, filters.clone(), from).await?;
        // From here on the point is known: what happens while no reader is open is not lost.
        let from = From::After(reader.start());
        Ok(Self {
            bus: bus.clone(),
            store,
            filters,
            from,
            reader: Some((reader, Instant::now())),
            caught_up: false,
            failing_since: None,
            delays: reopen_delays(),
        })
    }

    /// The next message, or once that all of the past was read.
    pub(crate) async fn next(&mut self) -> Result<Read, BusError> {
        loop {
            let Some((reader, opened)) = &mut self.reader else {
                match self.reopen().await {
                    Ok(()) => {}
                    Err(error) => self.wait(error).await?,
                }
                continue;
            };
            match reader.next().await {
                Ok(Read::Message(message)) => {
                    self.from = From::After(message.sequence);
                    self.is_well();
                    return Ok(Read::Message(message));
                }
                Ok(Read::CaughtUp) if self.caught_up => {}
                Ok(Read::CaughtUp) => {
                    self.caught_up = true;
                    return Ok(Read::CaughtUp);
                }
                Err(error) => {
                    // On a quiet stream no message tells that the outage before this one is over.
                    if opened.elapsed() >= PROVEN {
                        self.is_well();
                    }
                    self.reader = None;
                    self.wait(error).await?;
                }
            }
        }
    }

    fn is_well(&mut self) {
        self.failing_since = None;
        self.delays = reopen_delays();
    }

    /// Waits before the next attempt, or gives up with `error`.
    async fn wait(&mut self, error: BusError) -> Result<(), BusError> {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.bus.config().timeouts.outage {
            return Err(error);
        }
        tokio::time::sleep(self.delays.next().unwrap_or(HEARTBEAT)).await;
        Ok(())
    }

    async fn reopen(&mut self) -> Result<(), BusError> {
        let what = self.store.stream();
        let info = self.bus.stream(self.store).await?.get_info().await;
        let info =
            info.map_err(|error| BusError::request(what, self.bus.config().timeouts.request, error))?;
        // A stream that was made anew counts from the beginning.
        let from = match self.from {
            From::After(sequence) if info.state.last_sequence < sequence => From::Beginning,
            from @ (From::After(_) | From::Newest | From::Beginning | From::Since(_) | From::Now) => from,
        };
        let reader = Reader::open(&self.bus, self.store, self.filters.clone(), from).await?;
        self.reader = Some((reader, Instant::now()));
        Ok(())
    }
}
