//! Making pods: what becomes of an attempt.
//!
//! A pod is made in two requests, itself and the certificate that its node waits for. When the first one's answer is
//! lost (it took too long, or a proxy gave up and the attempt that the client then made found the pod there), the
//! second is never sent, and the pod would count as one on its way until it is overdue: longer than anybody waits. So
//! a seat whose pod nobody answered for is remembered, and a pod of ours that shows up in it is deleted at once. Of a
//! worker that is gone between the two nobody remembers that; its pod is held up on its node, and whoever waits hopes for it
//! for a part of the time only in which it is overdue. Then one more is made for him, and no third one: what holds up two
//! holds up every one.
//!
//! An answer may come when its pod is gone already and the next one is being made in its seat: it is about its own
//! attempt only.

use fabrique_core::time::Timestamp;

use super::{Attempt, Daemon, FIRST_PAUSE, Phase, Pool, Rules, Tracked, Uid, Use};

/// Our attempts in one seat.
#[derive(Debug, Default)]
pub(super) struct Making {
    /// The number of the latest.
    latest: u64,
    /// Whether a pod of ours may stand there that nobody finished.
    unsure: bool,
    /// The pod that was answered for last: it has its certificate.
    finished: Option<Uid>,
    /// The latest that was begun before the watch was interrupted: what comes of it we have not seen all the time.
    overtaken: u64,
}

impl Making {
    /// The number of the next attempt. What shows up from now on may be what is being made.
    pub(super) fn begin(&mut self) -> u64 {
        self.latest += 1;
        self.unsure = false;
        self.latest
    }

    /// The watch was interrupted.
    pub(super) fn overtake(&mut self) {
        self.overtaken = self.latest;
    }

    /// Whether this pod, if it is of ours, may be one that nobody finished.
    pub(super) fn is_unsure_of(&self, uid: &Uid) -> bool {
        self.unsure && self.finished.as_ref() != Some(uid)
    }
}

impl Pool {
    /// The answer to [`Action::Create`](super::Action::Create), to the attempt of that `number` in its seat. `jitter`
    /// is between zero and one.
    pub fn created(&mut self, seat: u16, number: u64, attempt: Attempt, now: Timestamp, jitter: f64) {
        let making = self.making.get_mut(&seat).filter(|making| making.latest == number);
        match attempt {
            Attempt::Done(daemon) => {
                // Also of a pod that is gone by now.
                if making.is_some() {
                    self.coming.remove(&seat);
                }
                let uid = daemon.uid.clone();
                let unknown = !self.daemons.contains_key(&uid);
                self.hear(*daemon, now);
                if let Some(tracked) = self.daemons.get_mut(&uid) {
                    let making = self.making.entry(seat).or_default();
                    tracked.unproven |= unknown && number <= making.overtaken;
                    making.finished = Some(uid);
                }
            }
            Attempt::Conflict | Attempt::Gone => {
                let Some(making) = making else { return };
                making.unsure = true;
                if let Some(coming) = self.coming.get_mut(&seat) {
                    coming.until = Some(now.after(FIRST_PAUSE));
                }
            }
            Attempt::Failed(problem) => {
                if let Some(making) = making {
                    making.unsure = true;
                    self.coming.remove(&seat);
                }
                self.trouble = Some(problem);
                self.pause(now, jitter);
            }
        }
    }

    /// No further pod for a while, longer after each failure in a row.
    pub(super) fn pause(&mut self, now: Timestamp, jitter: f64) {
        let doublings = self.failures.min(16);
        self.failures = self.failures.saturating_add(1);
        let pause = (FIRST_PAUSE * 2u32.pow(doublings)).min(self.rules.longest_pause);
        self.create_after = now.after(pause.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0));
    }
}

/// The part of `pool.start` for which whoever waits hopes for a pod that is held up on its node.
const HELD_UP: u32 = 4;

impl Rules {
    /// Whether whoever waits may hope for a pod that is not ready.
    pub(super) fn is_on_its_way(&self, daemon: &Daemon, now: Timestamp) -> bool {
        let in_time = |since: Timestamp| since.until(now) < self.pool.start / HELD_UP;
        matches!(daemon.phase, Phase::Starting(_)) && daemon.held_up.is_none_or(in_time)
    }

    /// Whether the pod in a seat that we are unsure of is the one that we asked for: it says when its worker was
    /// started.
    pub(super) fn is_unfinished(&self, tracked: &Tracked, now: Timestamp) -> bool {
        let daemon = &tracked.daemon;
        let at_rest = tracked.used == Use::None && tracked.rest <= now;
        let starting = matches!(daemon.phase, Phase::Starting(_)) && !daemon.ending && daemon.claim.is_none();
        daemon.since == self.since && !self.is_strange(daemon) && starting && at_rest
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fabrique_core::id::{AppName, TrustDomain};

    use super::super::{Action, Retirement};
    use super::*;
    use crate::testing::{AppDaemon, rules};

    const START: Timestamp = Timestamp(1_000_000);

    fn at(seconds: u64) -> Timestamp {
        START.after(Duration::from_secs(seconds))
    }

    /// Of a worker that has just asked for a pod.
    fn asking() -> Pool {
        let mut rules = rules();
        rules.pool.warm = 0;
        let mut pool = Pool::new(rules);
        pool.resync(vec![], START);
        pool.join(AppName::parse("citation").unwrap(), TrustDomain::parse("atlas").unwrap(), START);
        assert!(matches!(&pool.decide(START, 0.0)[..], [Action::Create { seat: 0, .. }]));
        pool
    }

    /// By ourselves, by what it says.
    fn made() -> Daemon {
        AppDaemon::ready(0).phase(Phase::Starting(None)).daemon()
    }

    fn deleted(actions: &[Action]) -> Vec<(u16, Retirement)> {
        let deleted = |action: &Action| {
            if let Action::Delete { seat, why, .. } = action { Some((*seat, why.clone())) } else { None }
        };
        actions.iter().filter_map(deleted).collect()
    }

    fn lost() -> [Attempt; 2] {
        [Attempt::Failed("no answer within 10 s".into()), Attempt::Conflict]
    }

    #[test]
    fn a_pod_whose_making_was_not_answered_is_deleted_at_once_and_another_made() {
        for answer in lost() {
            for shown_first in [true, false] {
                let mut pool = asking();
                if shown_first {
                    pool.see(made(), at(1));
                    assert_eq!(pool.decide(at(1), 0.0), [], "its certificate may be on its way");
                }
                pool.created(0, 1, answer.clone(), at(10), 0.0);
                pool.see(made(), at(10));
                let actions = pool.decide(at(10), 0.0);
                assert_eq!(deleted(&actions), [(0, Retirement::Unfinished)], "{answer:?} {shown_first}");
                pool.deleted(&made().uid, &Attempt::Done(Box::new(made())), at(10));
                let actions = [actions, pool.decide(at(12), 0.0)].concat();
                let other = |action: &Action| matches!(action, Action::Create { seat: 1, .. });
                assert!(actions.iter().any(other), "nobody has to wait for it: {actions:?}");
            }
        }
    }

    #[test]
    fn a_pod_of_somebody_elses_in_the_seat_is_left() {
        let other = [
            AppDaemon::ready(0).phase(Phase::Starting(None)).since(at(5)).daemon(),
            AppDaemon::ready(0).phase(Phase::Starting(None)).generation("other").daemon(),
            AppDaemon::ready(0).daemon(),
        ];
        for (other, answer) in other.into_iter().zip(lost().into_iter().cycle()) {
            let mut pool = asking();
            pool.created(0, 1, answer, at(10), 0.0);
            pool.see(other, at(10));
            assert_eq!(deleted(&pool.decide(at(10), 0.0)), []);
        }
    }

    #[test]
    fn a_pod_that_is_answered_for_starts_in_peace() {
        let mut pool = asking();
        pool.created(0, 1, Attempt::Failed("no answer within 10 s".into()), at(10), 0.0);
        // Again, and this time the watch is faster than the answer.
        let again = pool.decide(at(12), 0.0);
        assert!(matches!(&again[..], [Action::Create { seat: 0, .. }]), "{again:?}");
        pool.see(made(), at(12));
        assert_eq!(pool.decide(at(12), 0.0), []);
        pool.created(0, 2, Attempt::Done(Box::new(made())), at(13), 0.0);
        assert_eq!(pool.decide(at(13), 0.0), []);
    }

    /// Of a worker that is gone, perhaps, before it wrote the certificate.
    #[test]
    fn nobody_waits_for_long_for_a_pod_that_is_held_up_on_its_node() {
        let mut pool = asking();
        let others = AppDaemon::ready(0).since(Timestamp(1)).held_up(START);
        pool.see(others.clone().daemon(), at(1));
        let limit = pool.rules.pool.start.as_secs() / u64::from(HELD_UP);
        assert_eq!(pool.decide(at(limit - 1), 0.0), [], "its volumes may be on their way");
        let actions = pool.decide(at(limit), 0.0);
        assert!(matches!(&actions[..], [Action::Create { seat: 1, .. }]), "{actions:?}");
        assert_eq!(pool.decide(at(limit + 1), 0.0), [], "one is enough");
    }

    #[test]
    fn what_holds_up_one_pod_after_the_other_takes_no_more_than_two_for_each_who_waits() {
        let mut pool = asking();
        let trust = TrustDomain::parse("atlas").unwrap();
        pool.join(AppName::parse("other").unwrap(), trust, START);
        let mut created = 1;
        for second in 0..pool.rules.pool.start.as_secs() {
            if second == 0 {
                pool.see(AppDaemon::ready(0).since(Timestamp(1)).held_up(START).daemon(), START);
            }
            for action in pool.decide(at(second), 0.0) {
                let Action::Create { seat, number, .. } = action else { panic!("{action:?}") };
                let made = AppDaemon::ready(seat).held_up(at(second)).daemon();
                pool.created(seat, number, Attempt::Done(Box::new(made)), at(second), 0.0);
                created += 1;
            }
        }
        assert_eq!(created, 4);
        // Nor does whoever comes later start over.
        pool.leave(0);
        pool.join(AppName::parse("third").unwrap(), TrustDomain::parse("atlas").unwrap(), START);
        assert_eq!(pool.decide(at(pool.rules.pool.start.as_secs() - 1), 0.0), []);
    }

    #[test]
    fn a_pod_that_is_held_up_is_one_of_those_that_are_kept_ahead() {
        let mut rules = rules();
        rules.pool.always_warm.insert(TrustDomain::parse("atlas").unwrap(), 1);
        let start = rules.pool.start.as_secs();
        let mut pool = Pool::new(rules);
        pool.resync(vec![AppDaemon::ready(0).held_up(START).daemon()], START);
        for second in 0..start {
            assert_eq!(pool.decide(at(second), 0.0), []);
        }
    }

    /// Its certificate was still being written when somebody removed it.
    #[test]
    fn a_late_answer_says_nothing_about_the_next_pod_in_its_seat() {
        for answer in lost() {
            for shown_first in [true, false] {
                let mut pool = asking();
                pool.see(made(), at(1));
                pool.gone(&made().uid, None, at(2));
                let again = pool.decide(at(2), 0.0);
                assert!(matches!(&again[..], [Action::Create { seat: 0, number: 2, .. }]), "{again:?}");
                let next = Daemon { uid: Uid("uid-next".into()), ..made() };
                if shown_first {
                    pool.see(next.clone(), at(3));
                }
                pool.created(0, 1, answer.clone(), at(3), 0.0);
                assert_eq!(pool.decide(at(9), 0.0), [], "it is on its way: {answer:?} {shown_first}");
                pool.see(next.clone(), at(9));
                assert_eq!(pool.decide(at(9), 0.0), [], "its certificate may be on its way");
                pool.created(0, 2, Attempt::Done(Box::new(next)), at(10), 0.0);
                assert_eq!(pool.decide(at(10), 0.0), []);
            }
        }
    }

    /// A list that was older than the pod had made its seat look empty.
    #[test]
    fn a_pod_that_was_answered_for_outlives_an_attempt_at_another_in_its_seat() {
        for shown_first in [true, false] {
            let mut pool = asking();
            pool.created(0, 1, Attempt::Done(Box::new(made())), at(1), 0.0);
            pool.resync(vec![], at(2));
            let again = pool.decide(at(2), 0.0);
            assert!(matches!(&again[..], [Action::Create { seat: 0, number: 2, .. }]), "{again:?}");
            if shown_first {
                pool.see(made(), at(2));
            }
            pool.created(0, 2, Attempt::Conflict, at(3), 0.0);
            pool.see(made(), at(3));
            assert_eq!(pool.decide(at(9), 0.0), [], "{shown_first}");
        }
    }
}
