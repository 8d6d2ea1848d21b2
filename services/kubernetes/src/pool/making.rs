//! Making pods: what becomes of an attempt.
//!
//! A pod is made in two requests, itself and the certificate that its node waits for. When the first one's answer is
//! lost (it took too long, or a proxy gave up and the attempt that the client then made found the pod there), the
//! second is never sent, and the pod would count as one on its way until it is overdue: longer than anybody waits. So
//! a seat whose pod nobody answered for is remembered, and a pod of ours that shows up in it is deleted at once.

use fabrique_core::time::Timestamp;

use super::{Attempt, FIRST_PAUSE, Phase, Pool, Rules, Tracked, Use};

impl Pool {
    /// The answer to [`Action::Create`](super::Action::Create). `jitter` is between zero and one.
    pub fn created(&mut self, seat: u16, attempt: Attempt, now: Timestamp, jitter: f64) {
        match attempt {
            Attempt::Done(daemon) => {
                self.unsure.remove(&seat);
                self.hear(*daemon, now);
            }
            Attempt::Conflict | Attempt::Gone => {
                self.unsure.insert(seat);
                if let Some(coming) = self.coming.get_mut(&seat) {
                    coming.until = Some(now.after(FIRST_PAUSE));
                }
            }
            Attempt::Failed(problem) => {
                self.unsure.insert(seat);
                self.coming.remove(&seat);
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

impl Rules {
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

    use super::super::{Action, Daemon, Retirement};
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
                pool.created(0, answer.clone(), at(10), 0.0);
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
            pool.created(0, answer, at(10), 0.0);
            pool.see(other, at(10));
            assert_eq!(deleted(&pool.decide(at(10), 0.0)), []);
        }
    }

    #[test]
    fn a_pod_that_is_answered_for_starts_in_peace() {
        let mut pool = asking();
        pool.created(0, Attempt::Failed("no answer within 10 s".into()), at(10), 0.0);
        // Again, and this time the watch is faster than the answer.
        let again = pool.decide(at(12), 0.0);
        assert!(matches!(&again[..], [Action::Create { seat: 0, .. }]), "{again:?}");
        pool.see(made(), at(12));
        assert_eq!(pool.decide(at(12), 0.0), []);
        pool.created(0, Attempt::Done(Box::new(made())), at(13), 0.0);
        assert_eq!(pool.decide(at(13), 0.0), []);
    }
}
