//! Whether the gate of a pod may be believed.
//!
//! A gate takes the API server's silence for a wall, and an API server that is away is silent too: then a pod passes whose
//! network policy nobody has programmed yet. Whoever loses his watch meanwhile cannot tell the one from the other, so that
//! a pod that was on its way then gets no build: it is retired as soon as it is ready, and another made, whose gate knocks
//! at an API server that is there.
//!
//! What was made then is what the first list after it shows and nobody here knew: no two clocks are compared. That takes a
//! list after every interruption, since a watch that is taken up where it was left tells of what was made before and after
//! its end alike. Only our own pods may be known before that list: made since, they met an API server that answered.

use std::collections::BTreeSet;

use fabrique_core::time::Timestamp;

use super::making::Making;
use super::{Phase, Pool, Silence, Tracked, Uid};

impl Pool {
    /// The watch was interrupted: whoever did not see cannot say that somebody was silent, nor what a gate saw. Our own
    /// claims are renewed as before. The next that is told is a list.
    pub fn blinked(&mut self, now: Timestamp) {
        self.blinked = true;
        self.making.values_mut().for_each(Making::overtake);
        for tracked in self.daemons.values_mut() {
            tracked.unproven |= !tracked.was_ready;
            if !self.rules.me_on(&tracked.daemon) {
                (tracked.changed, tracked.silence) = (now, Silence::Unknown);
            }
        }
    }

    /// The pods of a list that showed up while we could not see, until it was made.
    pub(super) fn unseen(&mut self, listed: &BTreeSet<Uid>) -> Vec<Uid> {
        if !std::mem::take(&mut self.blinked) {
            return Vec::new();
        }
        listed.iter().filter(|uid| !self.daemons.contains_key(uid)).cloned().collect()
    }

    pub(super) fn distrust(&mut self, unseen: &[Uid]) {
        for uid in unseen {
            if let Some(tracked) = self.daemons.get_mut(uid) {
                tracked.unproven = true;
            }
        }
    }
}

impl Tracked {
    /// Whether nobody knows that its walls stood when it passed its gate. What has built is the business of whoever gave
    /// it the build.
    pub(super) fn is_unproven(&self) -> bool {
        self.unproven && self.daemon.builds == 0
    }

    /// The same of one that passed: until then it is its gate's to hold it back.
    pub(super) fn passed_unproven(&self) -> bool {
        self.is_unproven() && matches!(self.daemon.phase, Phase::Ready(_))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fabrique_core::id::{AppName, TrustDomain};

    use super::super::{Action, Attempt, Daemon, Retirement};
    use super::*;
    use crate::testing::{AppDaemon, rules};

    const START: Timestamp = Timestamp(1_000_000);

    fn at(seconds: u64) -> Timestamp {
        START.after(Duration::from_secs(seconds))
    }

    fn starting(seat: u16) -> AppDaemon {
        AppDaemon::ready(seat).phase(Phase::Starting(None))
    }

    /// Of a worker that has been asked for a daemon.
    fn asked(daemons: Vec<Daemon>) -> Pool {
        let mut rules = rules();
        rules.pool.warm = 0;
        let mut pool = Pool::new(rules);
        pool.resync(daemons, START);
        pool.join(AppName::parse("citation").unwrap(), TrustDomain::parse("atlas").unwrap(), START);
        pool
    }

    fn claimed(actions: &[Action]) -> Vec<u16> {
        let claimed =
            |action: &Action| if let Action::Claim { seat, .. } = action { Some(*seat) } else { None };
        actions.iter().filter_map(claimed).collect()
    }

    fn retired(actions: &[Action]) -> Vec<(u16, Retirement, bool)> {
        let retired = |action: &Action| match action {
            Action::Delete { seat, why, version, .. } => Some((*seat, why.clone(), version.is_some())),
            _ => None,
        };
        actions.iter().filter_map(retired).collect()
    }

    #[test]
    fn a_pod_that_passed_its_gate_while_the_api_server_was_away_gets_no_build() {
        let mut pool = asked(vec![starting(0).daemon()]);
        assert_eq!(pool.decide(START, 0.0), [], "it is on its way");
        pool.blinked(at(1));
        let actions = pool.decide(at(2), 0.0);
        assert!(matches!(&actions[..], [Action::Create { seat: 1, .. }]), "another one: {actions:?}");
        pool.see(AppDaemon::ready(0).version(6).daemon(), at(3));
        let actions = pool.decide(at(3), 0.0);
        assert_eq!(claimed(&actions), Vec::<u16>::new());
        assert_eq!(retired(&actions), [(0, Retirement::Unproven, true)], "unless somebody has claimed it");
    }

    /// Whatever the clocks of the API server and of this worker say.
    #[test]
    fn a_pod_that_the_first_list_after_the_api_server_was_away_shows_gets_no_build_and_a_later_one_does() {
        for created in [1, 10, 1000] {
            let made = || Daemon { created: at(created), ..AppDaemon::ready(0).daemon() };
            for listed_first in [true, false] {
                let mut pool = asked(vec![]);
                pool.blinked(at(10));
                pool.blinked(at(11));
                pool.resync(if listed_first { vec![made()] } else { vec![] }, at(12));
                pool.see(made(), at(12));
                // One more list, after no interruption.
                pool.resync(vec![made()], at(13));
                let actions = pool.decide(at(13), 0.0);
                assert_eq!(claimed(&actions).is_empty(), listed_first, "{created}: {actions:?}");
                assert_eq!(retired(&actions).len(), usize::from(listed_first), "{created}: {actions:?}");
            }
        }
    }

    #[test]
    fn our_own_pod_that_was_begun_before_the_api_server_was_away_gets_no_build_and_one_begun_since_does() {
        for begun_before in [true, false] {
            let mut pool = asked(vec![]);
            if !begun_before {
                pool.blinked(at(1));
            }
            let actions = pool.decide(at(1), 0.0);
            let [Action::Create { seat: 0, number, .. }] = actions[..] else { panic!("{actions:?}") };
            if begun_before {
                pool.blinked(at(1));
            }
            let made = starting(0).daemon();
            pool.created(0, number, Attempt::Done(Box::new(made.clone())), at(2), 0.0);
            pool.resync(vec![made], at(3));
            pool.see(AppDaemon::ready(0).version(6).daemon(), at(4));
            let actions = pool.decide(at(4), 0.0);
            assert_eq!(claimed(&actions).is_empty(), begun_before, "{actions:?}");
            assert_eq!(retired(&actions).len(), usize::from(begun_before), "{actions:?}");
        }
    }

    #[test]
    fn a_pod_that_was_ready_before_or_has_built_is_as_good_as_ever() {
        let mut pool = asked(vec![AppDaemon::ready(0).daemon()]);
        pool.blinked(at(1));
        assert_eq!(claimed(&pool.decide(at(1), 0.0)), [0]);

        // Another worker has given it a build, and knew why.
        let mut pool = asked(vec![starting(0).daemon()]);
        pool.blinked(at(1));
        pool.see(AppDaemon::ready(0).version(6).builds(1).daemon(), at(2));
        let actions = pool.decide(at(2), 0.0);
        assert_eq!((claimed(&actions), retired(&actions)), (vec![0], vec![]));
    }
}
