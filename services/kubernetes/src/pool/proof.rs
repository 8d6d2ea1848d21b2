//! Whether the gate of a pod may be believed.
//!
//! A gate takes the API server's silence for a wall, and an API server that is away is silent too: then a pod passes whose
//! network policy nobody has programmed yet. Whoever loses his watch meanwhile cannot tell the one from the other, so that
//! a pod that was on its way then gets no build: it is retired as soon as it is ready, and another made, whose gate knocks
//! at an API server that is there.

use fabrique_core::time::Timestamp;

use super::{Daemon, Phase, Pool, Silence, Tracked};

impl Pool {
    /// The watch was interrupted: whoever did not see cannot say that somebody was silent, nor what a gate saw. Our own
    /// claims are renewed as before.
    pub fn blinked(&mut self, now: Timestamp) {
        self.blinked = Some(now);
        for tracked in self.daemons.values_mut() {
            tracked.unproven |= !tracked.was_ready;
            if !self.rules.me_on(&tracked.daemon) {
                (tracked.changed, tracked.silence) = (now, Silence::Unknown);
            }
        }
    }

    /// Whether a pod that shows up now was made before we last could not see.
    pub(super) fn was_unseen(&self, daemon: &Daemon) -> bool {
        self.blinked.is_some_and(|at| daemon.created <= at)
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

    use super::super::{Action, Retirement};
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

    #[test]
    fn a_pod_that_showed_up_after_the_api_server_was_away_gets_no_build_if_it_was_made_before() {
        for (second, trusted) in [(10, false), (11, true)] {
            let mut pool = asked(vec![]);
            pool.blinked(at(10));
            let mut made = AppDaemon::ready(0).daemon();
            made.created = at(second);
            pool.see(made, at(12));
            let actions = pool.decide(at(12), 0.0);
            assert_eq!(claimed(&actions).is_empty(), !trusted, "{actions:?}");
            assert_eq!(retired(&actions).is_empty(), trusted, "{actions:?}");
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
