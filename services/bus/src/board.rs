//! The board: two last-per-subject readers told as one view.
//!
//! # A generation that went back
//!
//! A work record says which wake is done, by its sequence. When the wake stream was made anew, or its server lost the
//! end of it (a power failure without `sync_interval: always`), sequences start lower and a new wake would look like an
//! old one until they have caught up. What is done was wanted once, so a record whose `done` is above the app's newest
//! wake can only mean that; [`trust`] then tells it as never done, and the next swap writes it so.

use std::collections::{HashMap, VecDeque};

use async_trait::async_trait;
use backon::ExponentialBackoff;
use fabrique_core::id::AppName;
use fabrique_core::work::{Generation, WorkRecord};
use fabrique_ports::PortResult;
use fabrique_ports::bus::{Board, BoardChange, WakeCause};
use fabrique_ports::records::Swap;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};

use crate::connection::Bus;
use crate::error::BusError;
use crate::kv::{self, Entry};
use crate::layout::Store;
use crate::reader::{From, Message, Read, Reader, reopen_delays};

#[async_trait]
impl Board for Bus {
    async fn watch_board(&self) -> PortResult<BoxStream<'static, BoardChange>> {
        // The first view is opened here, so that a missing stream or permission is an error and not silence.
        let view = View::open(self).await?;
        let watch = Watch { bus: self.clone(), view: Some(view), delays: reopen_delays() };
        Ok(stream::unfold(watch, async |mut watch| Some((watch.next().await, watch))).boxed())
    }

    async fn swap_work(&self, app: &AppName, record: &WorkRecord, revision: u64) -> PortResult<Swap> {
        let value = kv::encode("a work record", record)?;
        Ok(self.swap(Store::Work, app.as_str(), value, revision).await?)
    }

    async fn work_of(&self, app: &AppName) -> PortResult<(Generation, WorkRecord, u64)> {
        // The record first: a wake that comes between the two reads only makes the app look more wanted.
        let entry = self.entry(Store::Work, app.as_str()).await?;
        let wanted = self.newest_wake(app).await?;
        let (record, revision) = entry.map_or_else(Default::default, |entry| work(&entry));
        Ok((wanted, trust(record, wanted), revision))
    }

    async fn all_work(&self) -> PortResult<Vec<(AppName, Generation, WorkRecord, u64)>> {
        let records = self.entries(Store::Work, ">").await?;
        let mut items: HashMap<AppName, (Generation, WorkRecord, u64)> = HashMap::new();
        for entry in &records {
            if let Some(app) = app(&entry.key) {
                let (record, revision) = work(entry);
                items.insert(app, (Generation(0), record, revision));
            }
        }
        for entry in self.entries(Store::Wake, "*").await? {
            if let Some(app) = app(&entry.key) {
                items.entry(app).or_default().0 = Generation(entry.revision);
            }
        }
        let mut items: Vec<_> = items
            .into_iter()
            .map(|(app, (wanted, record, revision))| (app, wanted, trust(record, wanted), revision))
            .collect();
        items.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(items)
    }
}

/// One view after another.
struct Watch {
    bus: Bus,
    view: Option<View>,
    delays: ExponentialBackoff,
}

impl Watch {
    async fn next(&mut self) -> BoardChange {
        loop {
            match &mut self.view {
                Some(view) => match view.next(&self.bus).await {
                    Ok(change) => {
                        if change == BoardChange::Current {
                            self.delays = reopen_delays();
                        }
                        return change;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the board is read again from the beginning");
                        self.view = None;
                        return BoardChange::Restarted;
                    }
                },
                None => {
                    if let Some(delay) = self.delays.next() {
                        tokio::time::sleep(delay).await;
                    }
                    match View::open(&self.bus).await {
                        Ok(view) => self.view = Some(view),
                        Err(error) => tracing::debug!(%error, "the board cannot be read yet"),
                    }
                }
            }
        }
    }
}

/// Both readers, and what is needed to tell a generation that went back.
struct View {
    wakes: Reader,
    work: Reader,
    phase: Phase,
    wanted: HashMap<AppName, Generation>,
    told: VecDeque<BoardChange>,
}

/// All wakes that there are, then all records, then both as they come: with the wakes known first, few records need a
/// second look.
#[derive(Clone, Copy)]
enum Phase {
    Wakes,
    Work,
    Live,
}

impl View {
    async fn open(bus: &Bus) -> Result<Self, BusError> {
        let wakes = Reader::open(bus, Store::Wake, vec![Store::Wake.subject("*")], From::Newest).await?;
        let work = Reader::open(bus, Store::Work, vec![Store::Work.subject(">")], From::Newest).await?;
        Ok(Self { wakes, work, phase: Phase::Wakes, wanted: HashMap::new(), told: VecDeque::new() })
    }

    async fn next(&mut self, bus: &Bus) -> Result<BoardChange, BusError> {
        loop {
            if let Some(change) = self.told.pop_front() {
                return Ok(change);
            }
            match self.phase {
                Phase::Wakes => match self.wakes.next().await? {
                    Read::Message(message) => self.wake(&message),
                    Read::CaughtUp => self.phase = Phase::Work,
                },
                Phase::Work => match self.work.next().await? {
                    Read::Message(message) => self.record(bus, message).await?,
                    Read::CaughtUp => {
                        self.phase = Phase::Live;
                        self.told.push_back(BoardChange::Current);
                    }
                },
                Phase::Live => tokio::select! {
                    wake = self.wakes.next() => {
                        if let Read::Message(message) = wake? { self.wake(&message) }
                    }
                    record = self.work.next() => {
                        if let Read::Message(message) = record? { self.record(bus, message).await? }
                    }
                },
            }
        }
    }

    fn wake(&mut self, message: &Message) {
        let Some(app) = Store::Wake.key(&message.subject).and_then(app) else { return };
        let generation = Generation(message.sequence);
        self.wanted.insert(app.clone(), generation);
        let cause: Option<WakeCause> = serde_json::from_slice(&message.payload).ok();
        self.told.push_back(BoardChange::Wanted { app, generation, cause });
    }

    async fn record(&mut self, bus: &Bus, message: Message) -> Result<(), BusError> {
        let Message { subject, headers, payload, sequence } = message;
        let entry = Entry::new(Store::Work, &subject, sequence, headers.as_ref(), payload);
        let Some(app) = app(&entry.key) else { return Ok(()) };
        let (record, revision) = work(&entry);
        let mut wanted = self.wanted.get(&app).copied().unwrap_or_default();
        if record.done > wanted {
            // Usually its wake is only on its way on the other reader.
            wanted = bus.newest_wake(&app).await?;
        }
        self.told.push_back(BoardChange::Work { app, record: trust(record, wanted), revision });
        Ok(())
    }
}

/// The record without what the wake stream contradicts.
fn trust(mut record: WorkRecord, wanted: Generation) -> WorkRecord {
    if record.done > wanted {
        record.done = Generation(0);
    }
    record.waiting = record.waiting.filter(|waiting| waiting.at <= wanted);
    record
}

/// A record and its revision. One that cannot be read counts as none, to be replaced: it only saves work.
fn work(entry: &Entry) -> (WorkRecord, u64) {
    let record = entry.decode().unwrap_or_else(|error| {
        tracing::warn!(%error, "a work record is replaced");
        None
    });
    (record.unwrap_or_default(), entry.revision)
}

fn app(key: &str) -> Option<AppName> {
    let app = AppName::parse(key);
    app.inspect_err(|error| tracing::warn!(%error, "ignored a key of the board")).ok()
}

#[cfg(test)]
mod tests {
    use fabrique_core::time::Timestamp;
    use fabrique_core::work::Waiting;

    use super::*;

    #[test]
    fn a_done_beyond_the_newest_wake_is_not_believed() {
        let waiting = Waiting { at: Generation(7), until: Timestamp(1) };
        let record = WorkRecord { done: Generation(7), waiting: Some(waiting), ..WorkRecord::default() };
        assert_eq!(trust(record.clone(), Generation(7)), record);
        assert_eq!(trust(record.clone(), Generation(8)), record);
        assert_eq!(trust(record, Generation(6)), WorkRecord::default());
    }
}
