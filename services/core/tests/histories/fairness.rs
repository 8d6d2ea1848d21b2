//! The wake protocol over many apps: nobody starves, and no wake is lost.

use std::collections::BTreeMap;

use fabrique_core::id::AppName;
use fabrique_core::time::Timestamp;
use fabrique_core::work::{Due, Generation, WorkItem, WorkRecord, next_due};
use proptest::prelude::*;

const NOW: Timestamp = Timestamp(1_000);

/// The stream of wakes and the store of records, each with one counter for all apps.
struct Board {
    items: Vec<WorkItem>,
    wakes: u64,
    changes: u64,
}

impl Board {
    fn new(apps: usize) -> Self {
        let items = (0..apps)
            .map(|n| WorkItem {
                app: AppName::parse(&format!("app-{n}")).expect("a label"),
                wanted: Generation(0),
                record: WorkRecord::default(),
                revision: 0,
                lease_expired: false,
            })
            .collect();
        Self { items, wakes: 0, changes: 0 }
    }

    fn wake(&mut self, app: usize) {
        self.wakes += 1;
        self.items[app].wanted = Generation(self.wakes);
    }

    fn write(&mut self, app: usize, record: WorkRecord) {
        self.changes += 1;
        self.items[app].record = record;
        self.items[app].revision = self.changes;
    }

    fn next(&self) -> Option<usize> {
        let due = next_due(&self.items, NOW)?;
        self.items.iter().position(|item| item.app == due.app)
    }

    fn claim(&mut self, app: usize) -> Generation {
        let claimed = self.items[app].record.claimed_by("w");
        self.write(app, claimed);
        self.items[app].wanted
    }

    fn release(&mut self, app: usize, noted: Generation) {
        let released = self.items[app].record.released(noted);
        self.write(app, released);
    }
}

#[test]
fn two_hundred_due_apps_are_all_served_although_one_is_pushed_all_the_time() {
    const APPS: usize = 200;
    for busy in [0, 77, APPS - 1] {
        let mut board = Board::new(APPS);
        (0..APPS).for_each(|app| board.wake(app));
        let mut served = BTreeMap::<usize, u32>::new();
        for _ in 0..APPS {
            board.wake(busy);
            let app = board.next().expect("something is due");
            let noted = board.claim(app);
            board.wake(busy);
            board.release(app, noted);
            *served.entry(app).or_default() += 1;
        }
        assert_eq!(served.len(), APPS, "busy: {busy}");
    }
}

#[derive(Debug, Clone, Copy)]
enum Turn {
    Wake(usize),
    Claim,
    Release(usize),
}

fn turns(apps: usize) -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        3 => (0..apps).prop_map(Turn::Wake),
        2 => Just(Turn::Claim),
        2 => (0..apps).prop_map(Turn::Release),
    ];
    proptest::collection::vec(turn, 1..300)
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn a_due_app_sees_every_other_app_claimed_once_at_most_before_its_turn(turns in turns(7)) {
        let mut board = Board::new(7);
        let mut held = BTreeMap::<usize, Generation>::new();
        // How often each app was claimed while another one stayed due.
        let mut passed = BTreeMap::<(usize, usize), u32>::new();
        for turn in turns {
            match turn {
                Turn::Wake(app) => board.wake(app),
                Turn::Release(app) => {
                    if let Some(noted) = held.remove(&app) {
                        board.release(app, noted);
                    }
                }
                Turn::Claim => {
                    let Some(app) = board.next() else { continue };
                    for waiting in 0..7 {
                        if waiting != app && board.items[waiting].due(NOW) == Due::Now {
                            let times = passed.entry((waiting, app)).or_default();
                            *times += 1;
                            prop_assert!(*times <= 1, "{app} passed {waiting} twice");
                        }
                    }
                    passed.retain(|(waiting, _), _| *waiting != app);
                    held.insert(app, board.claim(app));
                }
            }
        }
    }

    #[test]
    fn no_wake_is_lost_whenever_it_comes(turns in turns(1)) {
        let mut board = Board::new(1);
        let (mut held, mut woken_since_read) = (None, false);
        for turn in turns {
            match turn {
                Turn::Wake(app) => {
                    board.wake(app);
                    woken_since_read = true;
                }
                Turn::Claim => {
                    if board.next().is_some() {
                        held = Some(board.claim(0));
                        woken_since_read = false;
                    }
                }
                Turn::Release(_) => {
                    if let Some(noted) = held.take() {
                        board.release(0, noted);
                    }
                }
            }
            if held.is_none() {
                let due = board.items[0].due(NOW) == Due::Now;
                prop_assert_eq!(due, woken_since_read);
            }
        }
    }

    #[test]
    fn a_wait_ends_at_its_time_or_at_the_first_newer_wake(
        noted in 1..100_u64, newer in 0..3_u64, until in 0..3_000_u64, now in 0..3_000_u64,
    ) {
        let record = WorkRecord::default().claimed_by("w");
        let record = record.released_to_wait(Generation(noted), Timestamp(until));
        let mut item = Board::new(1).items.remove(0);
        item.wanted = Generation(noted + newer);
        item.record = record;
        let over = newer > 0 || now >= until;
        let expected = if over { Due::Now } else { Due::At(Timestamp(until)) };
        prop_assert_eq!(item.due(Timestamp(now)), expected);
    }
}
