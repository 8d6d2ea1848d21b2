//! Watching the board.

use std::collections::BTreeMap;

use fabrique_core::id::AppName;
use fabrique_core::work::{Generation, WorkRecord};
use fabrique_ports::bus::{Board as _, BoardChange, Wakes as _};
use fabrique_ports::records::Swap;
use futures::StreamExt as _;
use futures::stream::BoxStream;

use crate::{bus, new_app, own_bed, push, raw, shared_bed, within};

/// What a watcher knows: it forgets all at a restart, as a worker does.
pub(crate) struct Watcher {
    changes: BoxStream<'static, BoardChange>,
    pub(crate) wanted: BTreeMap<AppName, Generation>,
    pub(crate) work: BTreeMap<AppName, (WorkRecord, u64)>,
    pub(crate) current: bool,
    pub(crate) restarts: usize,
}

impl Watcher {
    pub(crate) async fn start(worker: &fabrique_bus::Bus) -> Self {
        let changes = worker.watch_board().await.unwrap();
        let mut watcher =
            Self { changes, wanted: BTreeMap::new(), work: BTreeMap::new(), current: false, restarts: 0 };
        watcher.until("the board", |watcher| watcher.current).await;
        watcher
    }

    pub(crate) async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        within(what, async {
            while !done(self) {
                match self.changes.next().await.expect("the board never ends") {
                    BoardChange::Wanted { app, generation, .. } => {
                        let before = self.wanted.insert(app, generation);
                        assert!(before < Some(generation), "generations grow within a view");
                    }
                    BoardChange::Work { app, record, revision } => {
                        self.work.insert(app, (record, revision));
                    }
                    BoardChange::Current => self.current = true,
                    BoardChange::Restarted => {
                        self.restarts += 1;
                        self.current = false;
                        self.wanted.clear();
                        self.work.clear();
                    }
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_watcher_sees_what_was_there_and_what_comes() {
    let worker = bus(shared_bed().await, "worker").await;
    let (app, later) = (new_app(), new_app());
    worker.wake(&app, &push()).await.unwrap();
    let wanted = worker.wake(&app, &push()).await.unwrap();
    let claim = WorkRecord::default().claimed_by("w");
    let Swap::Done(revision) = worker.swap_work(&app, &claim, 0).await.unwrap() else {
        panic!("not claimed")
    };

    let mut watcher = Watcher::start(&worker).await;
    assert_eq!(watcher.wanted[&app], wanted);
    assert_eq!(watcher.work[&app], (claim.clone(), revision));

    let generation = worker.wake(&later, &push()).await.unwrap();
    watcher.until("a new wake", |w| w.wanted.get(&later) == Some(&generation)).await;
    let released = claim.released(wanted);
    worker.swap_work(&app, &released, revision).await.unwrap();
    watcher.until("the release", |w| w.work[&app].0 == released).await;
    assert_eq!(watcher.restarts, 0);
}

#[tokio::test]
async fn an_empty_board_is_current_at_once() {
    let bed = own_bed().await;
    let watcher = Watcher::start(&bus(&bed, "worker").await).await;
    assert!(watcher.wanted.is_empty() && watcher.work.is_empty());
}

#[tokio::test]
async fn a_deleted_consumer_makes_the_watcher_start_over() {
    let bed = own_bed().await;
    let worker = bus(&bed, "worker").await;
    let app = new_app();
    let first = worker.wake(&app, &push()).await.unwrap();
    let mut watcher = Watcher::start(&worker).await;
    let stream = raw(&bed).await.get_stream("FABRIQUE_WAKE").await.unwrap();
    let consumers: Vec<_> = stream.consumer_names().collect().await;
    assert_eq!(consumers.len(), 1);
    for name in consumers {
        stream.delete_consumer(&name.unwrap()).await.unwrap();
    }
    watcher.until("the new view", |w| w.restarts == 1 && w.current).await;
    assert_eq!(watcher.wanted[&app], first);
    let second = worker.wake(&app, &push()).await.unwrap();
    watcher.until("the next wake", |w| w.wanted[&app] == second).await;
}

#[tokio::test]
async fn a_stream_made_anew_counts_from_one_and_its_wakes_are_still_due() {
    let bed = own_bed().await;
    let worker = bus(&bed, "worker").await;
    let app = new_app();
    for _ in 0..4 {
        worker.wake(&new_app(), &push()).await.unwrap();
    }
    let wanted = worker.wake(&app, &push()).await.unwrap();
    let done = WorkRecord::default().claimed_by("w").released(wanted);
    worker.swap_work(&app, &done, 0).await.unwrap();
    let mut watcher = Watcher::start(&worker).await;
    assert_eq!(watcher.work[&app].0, done);

    raw(&bed).await.delete_stream("FABRIQUE_WAKE").await.unwrap();
    watcher.until("the loss", |w| w.restarts == 1).await;
    let error = worker.wake(&app, &push()).await.unwrap_err();
    assert!(error.transient() && error.to_string().contains("no stream"), "{error}");

    let admin = bus(&bed, "admin").await;
    assert_eq!(fabrique_ports::bus::BusSetup::ensure(&admin).await.unwrap(), []);
    let again = worker.wake(&app, &push()).await.unwrap();
    assert!(again < wanted, "the sequence went back, or this test tests nothing");
    watcher.until("the wake in the new stream", |w| w.current && w.wanted.get(&app) == Some(&again)).await;
    // Compared with the old record the wake would look served.
    assert_eq!(watcher.work[&app].0.done, Generation(0));
    let (wanted, record, _) = worker.work_of(&app).await.unwrap();
    assert!(wanted > record.done);
}

#[tokio::test]
async fn a_work_record_that_cannot_be_read_is_told_as_none_and_can_be_replaced() {
    let bed = shared_bed().await;
    let worker = bus(bed, "worker").await;
    let app = new_app();
    let kv = raw(bed).await.get_key_value("FABRIQUE_WORK").await.unwrap();
    let revision = kv.put(app.as_str(), "{not json".into()).await.unwrap();
    let watcher = Watcher::start(&worker).await;
    assert_eq!(watcher.work[&app], (WorkRecord::default(), revision));
    let claim = WorkRecord::default().claimed_by("w");
    assert!(matches!(worker.swap_work(&app, &claim, revision).await.unwrap(), Swap::Done(_)));
}
