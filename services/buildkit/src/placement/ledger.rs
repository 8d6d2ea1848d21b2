//! Who has which slot and who waits for one. Pure: calls in, grants out.

use std::collections::{BTreeSet, VecDeque};

/// A slot of a daemon, both counted from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Seat {
    pub(super) daemon: usize,
    pub(super) slot: usize,
}

/// Names one who waits.
pub(super) type Ticket = u64;

/// Seats and a queue. Whoever came first is served first, except by a seat that he does not take yet because he
/// still hopes for the daemon that has his cache.
#[derive(Debug)]
pub(super) struct Ledger {
    daemons: Vec<Seats>,
    waiting: VecDeque<Waiting>,
    next: Ticket,
}

#[derive(Debug)]
struct Seats {
    free: BTreeSet<usize>,
    taken: BTreeSet<usize>,
    /// Nobody sits down here until it has been probed.
    doubtful: bool,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    /// All daemons, the one with the cache first.
    ranking: Vec<usize>,
    /// Whether any daemon will do by now.
    anywhere: bool,
}

impl Ledger {
    /// A ledger of daemons with so many slots each.
    pub(super) fn new(slots: impl IntoIterator<Item = usize>) -> Self {
        let daemons = slots.into_iter().map(|slots| Seats {
            free: (0..slots).collect(),
            taken: BTreeSet::new(),
            doubtful: false,
        });
        Self { daemons: daemons.collect(), waiting: VecDeque::new(), next: 0 }
    }

    /// Joins the queue, for the first daemon of `ranking` only.
    pub(super) fn join(&mut self, ranking: Vec<usize>) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        let anywhere = ranking.first().is_none_or(|&first| self.daemons[first].doubtful);
        self.waiting.push_back(Waiting { ticket, ranking, anywhere });
        ticket
    }

    /// Takes any daemon from now on.
    pub(super) fn widen(&mut self, ticket: Ticket) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.ticket == ticket) {
            waiting.anywhere = true;
        }
    }

    /// Leaves the queue. Says whether it was still there: if not, it has been granted a seat.
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.ticket != ticket);
        self.waiting.len() < before
    }

    /// Gives a seat back. Says whether it had been taken.
    pub(super) fn give_back(&mut self, seat: Seat) -> bool {
        let Some(seats) = self.daemons.get_mut(seat.daemon) else { return false };
        let was_taken = seats.taken.remove(&seat.slot);
        if was_taken {
            seats.free.insert(seat.slot);
        }
        was_taken
    }

    /// Closes a daemon until it is cleared. Says whether it was open.
    pub(super) fn doubt(&mut self, daemon: usize) -> bool {
        for waiting in &mut self.waiting {
            waiting.anywhere |= waiting.ranking.first() == Some(&daemon);
        }
        !std::mem::replace(&mut self.daemons[daemon].doubtful, true)
    }

    /// Opens a daemon again.
    pub(super) fn clear(&mut self, daemon: usize) {
        self.daemons[daemon].doubtful = false;
    }

    /// Seats everybody who can be, in the order they came. To be called after every change.
    pub(super) fn grant(&mut self) -> Vec<(Ticket, Seat)> {
        let mut grants = Vec::new();
        let daemons = &mut self.daemons;
        self.waiting.retain(|waiting| {
            let reach = if waiting.anywhere { waiting.ranking.len() } else { 1 };
            let seat = waiting.ranking.iter().take(reach).find_map(|&daemon| {
                let seats = &mut daemons[daemon];
                let slot = if seats.doubtful { None } else { seats.free.pop_first() }?;
                seats.taken.insert(slot);
                Some(Seat { daemon, slot })
            });
            grants.extend(seat.map(|seat| (waiting.ticket, seat)));
            seat.is_none()
        });
        grants
    }

    /// Which daemons are closed.
    pub(super) fn doubtful(&self) -> Vec<usize> {
        (0..self.daemons.len()).filter(|&daemon| self.daemons[daemon].doubtful).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn seat(daemon: usize, slot: usize) -> Seat {
        Seat { daemon, slot }
    }

    #[test]
    fn the_warm_daemon_is_taken_first_and_another_only_after_a_while() {
        let mut ledger = Ledger::new([1, 1]);
        let first = ledger.join(vec![1, 0]);
        assert_eq!(ledger.grant(), [(first, seat(1, 0))]);
        let second = ledger.join(vec![1, 0]);
        assert_eq!(ledger.grant(), []);
        ledger.widen(second);
        assert_eq!(ledger.grant(), [(second, seat(0, 0))]);
    }

    #[test]
    fn who_waits_longest_is_served_first() {
        let mut ledger = Ledger::new([1]);
        let tickets: Vec<Ticket> = (0..3).map(|_| ledger.join(vec![0])).collect();
        for ticket in tickets {
            assert_eq!(ledger.grant(), [(ticket, seat(0, 0))]);
            assert!(ledger.give_back(seat(0, 0)));
        }
    }

    #[test]
    fn a_doubtful_daemon_takes_nobody_until_it_is_cleared() {
        let mut ledger = Ledger::new([1, 1]);
        assert!(ledger.doubt(0));
        assert!(!ledger.doubt(0));
        let elsewhere = ledger.join(vec![0, 1]);
        assert_eq!(ledger.grant(), [(elsewhere, seat(1, 0))]);
        let waits = ledger.join(vec![0, 1]);
        assert_eq!(ledger.grant(), []);
        ledger.clear(0);
        assert_eq!(ledger.grant(), [(waits, seat(0, 0))]);
    }

    #[test]
    fn a_seat_is_given_back_once() {
        let mut ledger = Ledger::new([1]);
        ledger.join(vec![0]);
        ledger.grant();
        assert!(ledger.give_back(seat(0, 0)));
        assert!(!ledger.give_back(seat(0, 0)));
        assert!(!ledger.give_back(seat(7, 0)));
    }

    #[derive(Debug, Clone)]
    enum Act {
        Join(usize),
        Widen(usize),
        Leave(usize),
        GiveBack(usize),
        Doubt(usize),
        Clear(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        let number = 0usize..6;
        prop_oneof![
            3 => number.clone().prop_map(Act::Join),
            1 => number.clone().prop_map(Act::Widen),
            1 => number.clone().prop_map(Act::Leave),
            3 => number.clone().prop_map(Act::GiveBack),
            1 => number.clone().prop_map(Act::Doubt),
            1 => number.prop_map(Act::Clear),
        ]
    }

    proptest! {
        #[test]
        fn no_seat_is_taken_twice_and_all_come_back(
            slots in prop::collection::vec(1usize..3, 1..4),
            acts in prop::collection::vec(act(), 0..60),
        ) {
            let mut ledger = Ledger::new(slots.clone());
            let all: BTreeSet<Seat> = slots.iter().enumerate()
                .flat_map(|(daemon, &slots)| (0..slots).map(move |slot| seat(daemon, slot)))
                .collect();
            let mut waiting: Vec<Ticket> = Vec::new();
            let mut held: BTreeMap<Seat, Ticket> = BTreeMap::new();
            let mut closed: BTreeSet<usize> = BTreeSet::new();
            for act in acts {
                match act {
                    Act::Join(first) => {
                        let mut ranking: Vec<usize> = (0..slots.len()).collect();
                        ranking.rotate_left(first % slots.len());
                        waiting.push(ledger.join(ranking));
                    }
                    Act::Widen(n) => if let Some(&ticket) = waiting.get(n) { ledger.widen(ticket) },
                    Act::Leave(n) => if n < waiting.len() { prop_assert!(ledger.leave(waiting.remove(n))) },
                    Act::GiveBack(n) => if let Some(&seat) = held.keys().nth(n) {
                        held.remove(&seat);
                        prop_assert!(ledger.give_back(seat));
                    },
                    Act::Doubt(n) => prop_assert_eq!(ledger.doubt(n % slots.len()), closed.insert(n % slots.len())),
                    Act::Clear(n) => {
                        ledger.clear(n % slots.len());
                        closed.remove(&(n % slots.len()));
                    }
                }
                for (ticket, seat) in ledger.grant() {
                    prop_assert!(all.contains(&seat) && !closed.contains(&seat.daemon));
                    prop_assert!(held.insert(seat, ticket).is_none(), "{seat:?} was taken twice");
                    waiting.retain(|&other| other != ticket);
                }
            }
            // Everything opens and everybody takes anything: all who wait are served, then all seats are free.
            for daemon in 0..slots.len() { ledger.clear(daemon); }
            for &ticket in &waiting { ledger.widen(ticket); }
            let mut left = waiting.len();
            loop {
                let grants = ledger.grant();
                left -= grants.len();
                held.extend(grants.into_iter().map(|(ticket, seat)| (seat, ticket)));
                let Some((seat, _)) = held.pop_first() else { break };
                prop_assert!(ledger.give_back(seat));
            }
            prop_assert_eq!(left, 0);
            for seats in &ledger.daemons { prop_assert!(seats.taken.is_empty()); }
            prop_assert_eq!(ledger.daemons.iter().map(|seats| seats.free.len()).sum::<usize>(), all.len());
        }
    }
}
