//! Nodes that failed builds: what is tried again after an eviction, a drain, a preemption or the loss of a node goes to
//! another one, where there is one.
//!
//! Every worker sees how the pods end and so knows, whichever of them takes the app next. A preference, and bounded:
//!
//! * daemons that were on the node then are not used for the app's next build, which has a pod made instead. It says to
//!   the scheduler where it would rather not be ([`crate::pod`]); where it ends up all the same, it is used;
//! * whoever has waited for half of the time that he waits at all, or for as long as a pod may take to start, takes any
//!   daemon;
//! * a node is avoided for a while only, and few of them at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use fabrique_core::id::AppName;
use fabrique_core::time::Timestamp;

use super::{Daemon, Demand, Phase, Pool, Rules, Uid};

/// Longer than an attempt is backed off, and than most of what befalls a node.
const A_WHILE: Duration = Duration::from_mins(15);
/// Nodes that one app avoids at once; the oldest is forgiven first.
const MOST: usize = 3;

/// A node that failed a build of an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Avoided {
    node: String,
    /// Who was on it then.
    daemons: BTreeSet<Uid>,
    until: Timestamp,
}

impl Pool {
    /// The node failed a build of the app, and not the build itself. One failure may be told of twice, by the watch and
    /// by whoever asked why the daemon was silent: what came to the node in between was made there for want of another.
    pub fn avoid(&mut self, app: &AppName, node: &str, now: Timestamp) {
        let there = |daemon: &&Daemon| daemon.node.as_deref() == Some(node);
        let there = self.daemons().filter(there).map(|daemon| daemon.uid.clone()).collect();
        self.forgive(now);
        let nodes = self.avoided.entry(app.clone()).or_default();
        let noted = nodes.iter().position(|other| other.node == node).map(|at| nodes.remove(at));
        let daemons = noted.map_or(there, |noted| noted.daemons);
        let avoided = Avoided { node: node.to_owned(), daemons, until: now.after(A_WHILE) };
        nodes.push(avoided);
        let surplus = nodes.len().saturating_sub(MOST);
        nodes.drain(..surplus);
    }

    /// What has been avoided for a while is as good as any, and apps that avoid nothing are not remembered.
    fn forgive(&mut self, now: Timestamp) {
        self.avoided.retain(|_, nodes| {
            nodes.retain(|avoided| now < avoided.until);
            !nodes.is_empty()
        });
    }

    pub(super) fn avoided_by(&self, app: &AppName, now: Timestamp) -> Vec<Avoided> {
        let nodes = self.avoided.get(app).into_iter().flatten();
        nodes.filter(|avoided| now < avoided.until).cloned().collect()
    }

    /// Takes note when this is the first that is seen of the end of a build, and its node is to blame.
    pub(super) fn note_failing_node(&mut self, daemon: &Daemon, now: Timestamp) {
        let known = self.daemons.get(&daemon.uid).map(|tracked| &tracked.daemon.phase);
        if let Some(Phase::Over(_)) = known {
            return;
        }
        let Phase::Over(cause) = &daemon.phase else { return };
        let building = daemon.claim.as_ref().and(daemon.apps.first());
        if let (true, Some(app), Some(node)) = (cause.is_the_nodes(), building, &daemon.node) {
            self.avoid(app, node, now);
        }
    }
}

impl Demand {
    /// The names of the nodes that its pod would rather not be on.
    pub(super) fn elsewhere(&self) -> Vec<String> {
        self.avoided.iter().map(|avoided| avoided.node.clone()).collect()
    }
}

impl Rules {
    /// Whether the daemon is one that the demand would rather not have, and need not take yet: it must not end in vain
    /// beside a daemon that it could have had.
    pub(super) fn shuns(&self, demand: &Demand, daemon: &Daemon, now: Timestamp) -> bool {
        demand.since.until(now) < self.pool.start.min(demand.patience / 2)
            && demand.avoided.iter().any(|avoided| avoided.daemons.contains(&daemon.uid))
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::TrustDomain;
    use proptest::prelude::*;

    use super::super::{Action, PoolSettings};
    use super::*;
    use crate::autopsy::Cause;
    use crate::testing::{AppDaemon, PATIENCE, rules};

    const START: Timestamp = Timestamp(1_000_000);

    fn at(seconds: u64) -> Timestamp {
        START.after(Duration::from_secs(seconds))
    }

    fn citation() -> AppName {
        AppName::parse("citation").unwrap()
    }

    fn atlas() -> TrustDomain {
        TrustDomain::parse("atlas").unwrap()
    }

    /// Two daemons on one node and one on another, none kept ahead.
    fn pool(total: u16) -> Pool {
        let mut rules = rules();
        rules.pool = PoolSettings { total, per_domain: total, warm: 0, ..PoolSettings::default() };
        let mut pool = Pool::new(rules);
        pool.resync(vec![building().daemon(), AppDaemon::ready(1).daemon()], START);
        pool
    }

    /// Of another worker, on `worker-1`.
    fn building() -> AppDaemon {
        AppDaemon::ready(0).apps(&["citation", "other"]).claimed_by("worker-2")
    }

    fn ends(pool: &mut Pool, cause: Cause) {
        pool.see(building().version(6).phase(Phase::Over(cause)).daemon(), START);
        pool.gone(&Uid("uid-0".into()), None, START);
    }

    fn made(actions: &[Action]) -> Option<&Vec<String>> {
        actions.iter().find_map(|action| match action {
            Action::Create { avoid, .. } => Some(avoid),
            _ => None,
        })
    }

    fn claimed(actions: &[Action]) -> Option<u16> {
        actions.iter().find_map(|action| match action {
            Action::Claim { seat, .. } => Some(*seat),
            _ => None,
        })
    }

    #[test]
    fn the_next_attempt_after_a_failing_node_goes_elsewhere() {
        for cause in [Cause::Evicted, Cause::Drained, Cause::NodeLost, Cause::Preempted, Cause::NodePressure]
        {
            let mut pool = pool(4);
            ends(&mut pool, cause.clone());
            pool.join(citation(), atlas(), at(5));
            let actions = pool.decide(at(5), 0.0);
            assert_eq!(made(&actions), Some(&vec!["worker-1".to_owned()]), "{cause:?}");
            assert_eq!(claimed(&actions), None, "the ready one is on the node that failed: {cause:?}");
            // Whoever did not fail there has no reason to wait.
            pool.join(AppName::parse("other").unwrap(), atlas(), at(5));
            assert_eq!(claimed(&pool.decide(at(5), 0.0)), Some(1));
        }
    }

    #[test]
    fn what_a_build_did_to_itself_or_a_person_to_its_pod_speaks_against_no_node() {
        for cause in [Cause::OutOfMemory, Cause::Deleted, Cause::Deadline, Cause::Exited(1), Cause::Gate] {
            let mut pool = pool(4);
            ends(&mut pool, cause);
            pool.join(citation(), atlas(), at(5));
            assert_eq!(claimed(&pool.decide(at(5), 0.0)), Some(1));
        }
    }

    #[test]
    fn a_daemon_on_another_node_is_taken_at_once() {
        let mut pool = pool(4);
        let on_two = Daemon { node: Some("worker-2".into()), ..AppDaemon::ready(2).daemon() };
        pool.see(on_two, START);
        ends(&mut pool, Cause::Evicted);
        pool.join(citation(), atlas(), at(5));
        let actions = pool.decide(at(5), 0.0);
        assert_eq!((claimed(&actions), made(&actions)), (Some(2), None));
    }

    #[test]
    fn where_the_scheduler_has_no_other_node_its_choice_is_used() {
        let mut pool = pool(4);
        ends(&mut pool, Cause::Evicted);
        pool.join(citation(), atlas(), at(5));
        pool.decide(at(5), 0.0);
        let again = Daemon { uid: Uid("uid-new".into()), ..AppDaemon::ready(0).daemon() };
        assert_eq!(again.node.as_deref(), Some("worker-1"));
        pool.see(again, at(8));
        assert_eq!(claimed(&pool.decide(at(8), 0.0)), Some(0));
    }

    #[test]
    fn where_there_is_no_room_the_daemon_on_the_failing_node_makes_it() {
        let mut pool = pool(2);
        let busy =
            Daemon { node: Some("worker-2".into()), ..AppDaemon::ready(0).claimed_by("worker-2").daemon() };
        ends(&mut pool, Cause::Evicted);
        pool.see(Daemon { uid: Uid("uid-busy".into()), ..busy }, START);
        pool.join(citation(), atlas(), at(5));
        // For as long as one waits for any daemon that others use.
        assert_eq!(pool.decide(at(5), 0.0), []);
        let actions = pool.decide(at(8), 0.0);
        assert!(matches!(&actions[..], [Action::Delete { seat: 1, .. }]), "{actions:?}");
    }

    #[test]
    fn whoever_has_waited_for_half_of_his_time_or_for_the_start_of_a_pod_takes_any_daemon() {
        let half = PATIENCE.as_secs() / 2;
        for (start, most) in [(half * 4, half), (half / 3, half / 3)] {
            let mut pool = pool(4);
            pool.rules.pool.start = Duration::from_secs(start);
            ends(&mut pool, Cause::Evicted);
            pool.join(citation(), atlas(), at(5));
            assert_eq!(claimed(&pool.decide(at(4 + most), 0.0)), None, "{start}");
            assert_eq!(claimed(&pool.decide(at(5 + most), 0.0)), Some(1), "{start}");
        }
    }

    #[test]
    fn a_failure_that_is_told_of_twice_speaks_against_no_daemon_that_came_in_between() {
        let mut pool = pool(4);
        ends(&mut pool, Cause::Evicted);
        let since = AppDaemon::ready(2).daemon();
        assert_eq!(since.node.as_deref(), Some("worker-1"));
        pool.see(since, at(1));
        pool.avoid(&citation(), "worker-1", at(2));
        pool.join(citation(), atlas(), at(5));
        assert_eq!(claimed(&pool.decide(at(5), 0.0)), Some(2));
        // Once it is forgiven, another failure is one of its own.
        let later = at(2).after(A_WHILE);
        pool.avoid(&citation(), "worker-1", later);
        pool.join(citation(), atlas(), later);
        assert_eq!(claimed(&pool.decide(later, 0.0)), None);
    }

    #[test]
    fn after_a_while_a_node_is_as_good_as_any() {
        let mut pool = pool(4);
        ends(&mut pool, Cause::Evicted);
        let later = START.after(A_WHILE);
        pool.join(citation(), atlas(), later);
        assert_eq!(claimed(&pool.decide(later, 0.0)), Some(1));
    }

    proptest! {
        /// However often and wherever builds fail, what is remembered has a bound, and each node is there once.
        #[test]
        fn what_is_avoided_is_bounded(failures in prop::collection::vec((0u8..8, 0u64..2000), 0..40)) {
            let mut pool = pool(4);
            let mut now = START;
            for (node, pause) in failures {
                now = now.after(Duration::from_secs(pause));
                let failed = format!("node-{node}");
                pool.avoid(&citation(), &failed, now);
                let nodes: Vec<String> =
                    pool.avoided_by(&citation(), now).into_iter().map(|avoided| avoided.node).collect();
                let different: BTreeSet<&String> = nodes.iter().collect();
                prop_assert!(nodes.len() <= MOST && different.len() == nodes.len(), "{:?}", nodes);
                prop_assert!(nodes.contains(&failed));
            }
            pool.avoid(&AppName::parse("later").unwrap(), "node-0", now.after(A_WHILE));
            prop_assert_eq!(pool.avoided.len(), 1);
        }
    }
}
