//! What other workers have: claims that stand still, and daemons of another configuration.
//!
//! **Silence.** A claim that is not renewed belongs to a worker that is gone, or to one that cannot write because the
//! API server is away, whose build goes on. The watch does not tell the two apart: it is silent too. So a claim that
//! has stood still for half of the time is read anew; only if the API server answers, and the claim stands still for
//! the other half, is the worker taken for dead. That half is enough for a living one to write again.
//!
//! **Bounds.** How long a claim may stand still, and how long a pod may take to become ready, are settings of whoever
//! claims and whoever makes, and are written on the pod. Of what is written and what we would allow ourselves, the
//! longer holds: a shorter setting is no reason to end what runs well by another's.
//!
//! **Generations.** While a changed configuration is rolled out, workers of both run side by side, and would make and
//! retire each other's daemons for ever. Each uses its own only. A daemon of another generation is left alone while
//! it starts and while somebody may want it; once nobody has claimed it for as long as a worker may be silent, a newer
//! worker retires it, and anybody who has no room for one who waits. Newer is who was started later, by the workers'
//! own clocks: where these are wrong, an old daemon stays until it has been idle for as long as any may be. A worker
//! that sees a newer generation's pod keeps no daemons ready any more, since these would be retired as they are made;
//! who waits is still served. When the last such pod is gone, as after a rollout that was taken back, it keeps them
//! again.

use std::time::Duration;

use fabrique_core::time::Timestamp;

use super::{Action, Attempt, Daemon, Phase, Pool, Retirement, Rules, Tracked, Uid, Use};
use crate::config::Isolation;

/// What is known about a claim that stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// Nothing: it may have changed without our seeing it.
    Unknown,
    /// It is being read.
    Asked,
    /// The API server answered then, and it had not changed.
    Confirmed(Timestamp),
}

impl Pool {
    /// Reads the claims of others that have stood still for half of what they may.
    pub(super) fn look(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        for tracked in self.daemons.values_mut() {
            let daemon = &tracked.daemon;
            let of_others = daemon.claim.is_some() && !self.rules.me_on(daemon) && tracked.used == Use::None;
            let still = tracked.changed.until(now) >= self.rules.claim_limit(daemon) / 2;
            let asks = tracked.silence == Silence::Unknown && tracked.rest <= now && !daemon.ending;
            if of_others && still && asks {
                tracked.silence = Silence::Asked;
                actions.push(Action::Look { uid: daemon.uid.clone(), seat: daemon.seat });
            }
        }
    }

    /// The answer to [`Action::Look`]. Where there was none, silence is counted anew.
    pub fn looked(&mut self, uid: &Uid, attempt: Attempt, now: Timestamp) {
        let answered = match attempt {
            Attempt::Done(daemon) => {
                self.hear(*daemon, now);
                true
            }
            // The watch will tell.
            Attempt::Conflict | Attempt::Gone | Attempt::Failed(_) => false,
        };
        let Some(tracked) = self.daemons.get_mut(uid) else { return };
        if tracked.silence != Silence::Asked {
            return;
        }
        if answered {
            tracked.silence = Silence::Confirmed(now);
        } else {
            (tracked.changed, tracked.silence) = (now, Silence::Unknown);
        }
    }
}

impl Pool {
    /// Another isolation is the right one by now: from `since` on we are a worker of another generation.
    pub fn turn(&mut self, isolation: Isolation, generation: String, since: Timestamp) {
        let rules = &mut self.rules;
        (rules.isolation, rules.generation, rules.since) = (isolation, generation, since);
    }
}

impl Rules {
    /// Whether the worker that holds the daemon is to be taken for dead.
    pub(super) fn is_silent(&self, tracked: &Tracked, now: Timestamp) -> bool {
        match tracked.silence {
            Silence::Unknown | Silence::Asked => false,
            Silence::Confirmed(at) => at.until(now) >= self.claim_limit(&tracked.daemon) / 2,
        }
    }

    /// How long a claim on the daemon may stand still.
    fn claim_limit(&self, daemon: &Daemon) -> Duration {
        daemon.claim_limit.map_or(self.pool.claim, |limit| limit.max(self.pool.claim))
    }

    /// Whether the daemon is to be given up if it is not ready now. Workers of its own generation say so first, and
    /// learn from it that something is wrong with their pods; we do when none of them is left to.
    pub(super) fn is_overdue(&self, daemon: &Daemon, now: Timestamp) -> bool {
        let limit = daemon.start_limit.map_or(self.pool.start, |limit| limit.max(self.pool.start));
        let courtesy = if self.is_strange(daemon) { self.pool.claim } else { Duration::ZERO };
        daemon.created.until(now) >= limit.saturating_add(courtesy)
    }

    /// Whether we would make it otherwise.
    pub(super) fn is_strange(&self, daemon: &Daemon) -> bool {
        daemon.isolation != self.isolation || daemon.generation != self.generation
    }

    /// Whether the daemon shows that workers of another generation have followed ours.
    pub(super) fn is_of_successors(&self, daemon: &Daemon) -> bool {
        self.is_strange(daemon) && daemon.since > self.since
    }

    /// A stranger that nobody has used for as long as somebody who uses it may be silent.
    pub(super) fn is_left(&self, tracked: &Tracked, now: Timestamp) -> bool {
        let daemon = &tracked.daemon;
        self.is_strange(daemon)
            && tracked.used == Use::None
            && daemon.claim.is_none()
            && !daemon.ending
            && matches!(daemon.phase, Phase::Ready(_))
            && tracked.rest <= now
            && tracked.changed.until(now) >= self.pool.claim
    }

    pub(super) fn retirement_of_stranger(&self, tracked: &Tracked, now: Timestamp) -> Option<Retirement> {
        if !self.is_left(tracked, now) {
            return None;
        }
        let daemon = &tracked.daemon;
        if daemon.since < self.since {
            return Some(Retirement::Outdated);
        }
        (daemon.idle_since.until(now) >= self.pool.idle).then_some(Retirement::Idle)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fabrique_core::id::{AppName, TrustDomain};
    use proptest::prelude::*;

    use super::*;
    use crate::autopsy::Cause;
    use crate::testing::{AppDaemon, rules};

    const START: Timestamp = Timestamp(1_000_000);

    fn at(seconds: u64) -> Timestamp {
        START.after(Duration::from_secs(seconds))
    }

    /// Without pods kept ahead, on two seats; says for how many seconds a worker may be silent.
    fn pool(daemons: Vec<Daemon>) -> (Pool, u64) {
        let mut rules = rules();
        (rules.pool.warm, rules.pool.total) = (0, 2);
        let silence = rules.pool.claim.as_secs();
        let mut pool = Pool::new(rules);
        pool.resync(daemons, START);
        (pool, silence)
    }

    fn looks(actions: &[Action]) -> usize {
        actions.iter().filter(|action| matches!(action, Action::Look { .. })).count()
    }

    fn retired(actions: &[Action]) -> Vec<(u16, Retirement)> {
        let retired = |action: &Action| {
            if let Action::Delete { seat, why, .. } = action { Some((*seat, why.clone())) } else { None }
        };
        actions.iter().filter_map(retired).collect()
    }

    fn creates(actions: &[Action]) -> Vec<u16> {
        let created =
            |action: &Action| if let Action::Create { seat, .. } = action { Some(*seat) } else { None };
        actions.iter().filter_map(created).collect()
    }

    fn uid() -> Uid {
        Uid("uid-0".into())
    }

    #[test]
    fn a_daemon_whose_worker_went_silent_is_recycled_after_a_look() {
        let claimed = AppDaemon::ready(0).claimed_by("worker-2");
        let (mut pool, silence) = pool(vec![claimed.clone().daemon()]);
        let mut renewed = claimed.version(7).daemon();
        renewed.claim.as_mut().unwrap().beat += 1;
        pool.see(renewed.clone(), at(silence / 2 - 1));
        assert_eq!(pool.decide(at(silence / 2 + 1), 0.0), []);
        assert_eq!(looks(&pool.decide(at(silence), 0.0)), 1);
        assert_eq!(pool.decide(at(silence), 0.0), [], "it is being read");
        pool.looked(&uid(), Attempt::Done(Box::new(renewed)), at(silence));
        assert_eq!(pool.decide(at(silence * 3 / 2 - 1), 0.0), []);
        assert_eq!(retired(&pool.decide(at(silence * 3 / 2), 0.0)), [(0, Retirement::Abandoned)]);
    }

    #[test]
    fn a_look_that_shows_life_begins_anew() {
        let claimed = AppDaemon::ready(0).claimed_by("worker-2");
        let (mut pool, silence) = pool(vec![claimed.clone().daemon()]);
        assert_eq!(looks(&pool.decide(at(silence), 0.0)), 1);
        let mut renewed = claimed.version(7).daemon();
        renewed.claim.as_mut().unwrap().beat += 1;
        pool.looked(&uid(), Attempt::Done(Box::new(renewed)), at(silence));
        assert_eq!(pool.decide(at(silence + silence / 2 - 1), 0.0), []);
        assert_eq!(looks(&pool.decide(at(silence + silence / 2), 0.0)), 1);
    }

    /// Whoever builds cannot write either.
    #[test]
    fn silence_does_not_count_while_the_api_server_is_away() {
        let (mut pool, silence) = pool(vec![AppDaemon::ready(0).claimed_by("worker-2").daemon()]);
        for second in 0..silence * 10 {
            for _ in 0..looks(&pool.decide(at(second), 0.0)) {
                pool.looked(&uid(), Attempt::Failed("away".into()), at(second));
            }
        }
        assert_eq!(retired(&pool.decide(at(silence * 10), 0.0)), []);
    }

    #[test]
    fn silence_does_not_count_while_nobody_could_be_heard() {
        let (mut pool, silence) = pool(vec![AppDaemon::ready(0).claimed_by("worker-2").daemon()]);
        pool.blinked(at(silence / 2 - 1));
        assert_eq!(pool.decide(at(silence - 2), 0.0), []);
        assert_eq!(looks(&pool.decide(at(silence - 1), 0.0)), 1);
    }

    #[test]
    fn an_older_generation_is_retired_once_nobody_uses_it_and_a_newer_one_is_left() {
        let (before, after) = (Timestamp(START.0 - 1), Timestamp(START.0 + 1));
        let old = AppDaemon::ready(0).generation("before").since(before);
        let new = AppDaemon::ready(1).generation("after").since(after).daemon();
        let (mut pool, silence) = pool(vec![old.clone().daemon(), new]);
        assert_eq!(pool.decide(at(silence - 1), 0.0), []);
        // Somebody uses it, and again.
        pool.see(old.clone().version(7).claimed_by("worker-2").daemon(), at(silence - 1));
        pool.see(old.version(8).daemon(), at(silence + 5));
        assert_eq!(pool.decide(at(silence * 2 + 4), 0.0), []);
        assert_eq!(retired(&pool.decide(at(silence * 2 + 5), 0.0)), [(0, Retirement::Outdated)]);
        let idle = pool.rules.pool.idle.as_secs();
        assert_eq!(retired(&pool.decide(at(idle - 1), 0.0)), []);
        assert_eq!(retired(&pool.decide(at(idle), 0.0)), [(1, Retirement::Idle)]);
    }

    #[test]
    fn another_isolation_is_another_generation() {
        let rootless = AppDaemon::ready(0).rootless().since(Timestamp(0)).daemon();
        let (mut pool, silence) = pool(vec![rootless]);
        assert_eq!(pool.decide(START, 0.0), []);
        assert_eq!(retired(&pool.decide(at(silence), 0.0)), [(0, Retirement::Outdated)]);
    }

    /// A node was added that offers less.
    #[test]
    fn a_worker_that_turns_to_another_isolation_ends_its_build_and_makes_pods_of_the_other() {
        let held = AppDaemon::ready(0).claimed_by("worker-1").builds(1);
        let (mut pool, silence) = pool(vec![AppDaemon::ready(0).daemon()]);
        let (app, trust) = (AppName::parse("citation").unwrap(), TrustDomain::parse("atlas").unwrap());
        pool.join(app.clone(), trust.clone(), START);
        pool.decide(START, 0.0);
        assert!(
            pool.claimed(&uid(), Attempt::Done(Box::new(held.clone().version(6).daemon())), START).is_some()
        );

        pool.turn(Isolation::Rootless, "weaker".into(), at(1));
        pool.join(app, trust, at(1));
        assert_eq!(creates(&pool.decide(at(1), 0.0)), [1]);
        assert_eq!(retired(&pool.decide(at(2), 0.0)), [], "its build goes on");
        assert!(pool.give_back(&uid(), false));
        pool.decide(at(3), 0.0);
        pool.released(
            &uid(),
            Attempt::Done(Box::new(AppDaemon::ready(0).builds(1).version(7).daemon())),
            at(3),
        );
        assert_eq!(retired(&pool.decide(at(2 + silence), 0.0)), []);
        assert_eq!(retired(&pool.decide(at(3 + silence), 0.0)), [(0, Retirement::Outdated)]);
    }

    /// A cold start of somebody else's is not undone before it was of use.
    #[test]
    fn a_stranger_that_just_became_ready_is_left_to_whoever_made_it() {
        let coming = AppDaemon::ready(0).generation("before").since(Timestamp(0));
        let (mut pool, silence) = pool(vec![coming.clone().phase(Phase::Starting(None)).daemon()]);
        pool.see(coming.version(7).daemon(), at(silence));
        assert_eq!(pool.decide(at(silence * 2 - 1), 0.0), []);
        assert_eq!(retired(&pool.decide(at(silence * 2), 0.0)), [(0, Retirement::Outdated)]);
    }

    /// Else it would never start where it takes longer than ours.
    #[test]
    fn a_stranger_that_starts_is_left_for_as_long_as_its_own_workers_would_wait() {
        let newer = AppDaemon::ready(0).generation("after").since(at(1)).start_limit(Duration::from_mins(10));
        let (mut pool, silence) = pool(vec![newer.phase(Phase::Starting(None)).daemon()]);
        pool.join(AppName::parse("citation").unwrap(), TrustDomain::parse("atlas").unwrap(), START);
        assert_eq!(creates(&pool.decide(START, 0.0)), [1], "whoever waits here is served meanwhile");
        assert_eq!(pool.decide(at(600 + silence - 1), 0.0), []);
        assert_eq!(retired(&pool.decide(at(600 + silence), 0.0)), [(0, Retirement::Overdue(None))]);
    }

    #[test]
    fn a_worker_that_sees_a_newer_generation_keeps_none_ready_and_serves_whoever_waits() {
        let trust = TrustDomain::parse("atlas").unwrap();
        let mut rules = rules();
        rules.pool.always_warm.insert(trust.clone(), 1);
        let other = |seat: u16, since: Timestamp| AppDaemon::ready(seat).generation("other").since(since);
        let mut pool = Pool::new(rules);
        pool.resync(vec![other(0, at(1)).phase(Phase::Starting(None)).daemon()], START);
        assert_eq!(pool.decide(START, 0.0), []);
        pool.join(AppName::parse("citation").unwrap(), trust, START);
        assert_eq!(creates(&pool.decide(START, 0.0)), [1]);

        // The rollout was taken back; what is left of an even older generation is no reason to keep none.
        let served = AppDaemon::ready(1).claimed_by("worker-2");
        pool.resync(vec![served.daemon(), other(2, Timestamp(START.0 - 1)).daemon()], at(1));
        pool.leave(0);
        assert_eq!(creates(&pool.decide(at(1), 0.0)), [0]);
    }

    #[test]
    fn what_another_generation_cannot_start_holds_up_none_of_ours() {
        let cause = Cause::Unschedulable("0/1 nodes are available".into());
        let broken = AppDaemon::ready(0).generation("after").since(at(1)).phase(Phase::Over(cause.clone()));
        let (mut pool, _) = pool(vec![broken.daemon()]);
        let (app, trust) = (AppName::parse("citation").unwrap(), TrustDomain::parse("atlas").unwrap());
        let ticket = pool.join(app, trust, START);
        let actions = pool.decide(START, 0.0);
        assert_eq!((retired(&actions), creates(&actions)), (vec![(0, Retirement::Over(cause))], vec![1]));
        assert!(!pool.why_waiting(ticket).contains("0/1 nodes"), "{}", pool.why_waiting(ticket));
    }

    proptest! {
        #[test]
        fn a_start_is_given_up_by_the_longer_of_both_bounds_and_by_its_own_workers_first(
            own in 1u64..300, written in proptest::option::of(1u64..600), age in 0u64..1_000, strange in any::<bool>(),
        ) {
            let mut daemon = AppDaemon::ready(0).phase(Phase::Starting(None));
            if strange {
                daemon = daemon.generation("other");
            }
            if let Some(written) = written {
                daemon = daemon.start_limit(Duration::from_secs(written));
            }
            let (mut pool, silence) = pool(vec![daemon.daemon()]);
            pool.rules.pool.start = Duration::from_secs(own);
            let limit = own.max(written.unwrap_or(0)) + if strange { silence } else { 0 };
            let expected = if age >= limit { vec![(0, Retirement::Overdue(None))] } else { vec![] };
            prop_assert_eq!(retired(&pool.decide(at(age), 0.0)), expected);
        }

        /// Whoever renews as often as his own setting asks is alive to everybody, and dead once he stops.
        #[test]
        fn a_claim_is_judged_by_the_longer_of_both_bounds(own in 6u64..200, written in 6u64..200) {
            let claimed = AppDaemon::ready(0).claimed_by("worker-2").claim_limit(Duration::from_secs(written));
            let (mut pool, _) = pool(vec![claimed.clone().daemon()]);
            pool.rules.pool.claim = Duration::from_secs(own);
            let (limit, last) = (own.max(written), written / 3 * 5);
            let (mut beat, mut abandoned) = (0, None);
            let view = |beat: u64| {
                let mut daemon = claimed.clone().version(6 + beat).daemon();
                daemon.claim.as_mut().unwrap().beat = beat;
                daemon
            };
            for second in 0..last + limit * 2 {
                if second <= last && second % (written / 3) == 0 {
                    beat += 1;
                    pool.see(view(beat), at(second));
                }
                let actions = pool.decide(at(second), 0.0);
                for _ in 0..looks(&actions) {
                    pool.looked(&uid(), Attempt::Done(Box::new(view(beat))), at(second));
                }
                if !retired(&actions).is_empty() {
                    abandoned = Some(second);
                    break;
                }
            }
            let abandoned = abandoned.expect("a dead worker keeps its claim");
            prop_assert!((last + limit..=last + limit + 2).contains(&abandoned), "{} of {} after {}", abandoned, limit, last);
        }
    }

    #[test]
    fn strangers_that_nobody_uses_make_room_even_where_they_are_newer() {
        let newer = |seat| AppDaemon::ready(seat).generation("after").since(at(1)).daemon();
        let (mut pool, silence) = pool(vec![newer(0), newer(1)]);
        pool.join(AppName::parse("citation").unwrap(), TrustDomain::parse("atlas").unwrap(), START);
        assert_eq!(pool.decide(at(silence - 1), 0.0), []);
        let room = retired(&pool.decide(at(silence), 0.0));
        assert!(matches!(room.as_slice(), [(_, Retirement::Reclaimed)]), "{room:?}");
    }
}
