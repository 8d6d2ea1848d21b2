//! What an app's daemons have: what is configured for all, what its registration wishes for beyond that, and what it
//! grew to.

use std::time::Duration;

use fabrique_core::app::BuildResources;
use fabrique_core::id::{AppName, TrustDomain};
use fabrique_core::time::Timestamp;

use super::{Demand, Pool, Ticket};
use crate::config::{Bytes, Resources};

impl Pool {
    /// Joins the queue, for `patience` at the most.
    pub fn ask(
        &mut self,
        app: AppName,
        trust: TrustDomain,
        wishes: &BuildResources,
        patience: Duration,
        now: Timestamp,
    ) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        if *wishes == BuildResources::default() {
            self.wishes.remove(&app);
        } else {
            self.wishes.insert(app.clone(), *wishes);
        }
        let resources = self.resources_for(&app);
        let avoided = self.avoided_by(&app, now);
        self.demands.push_back(Demand { ticket, app, trust, resources, since: now, patience, avoided });
        ticket
    }

    /// An app ran out of memory: its next daemon has twice as much, up to its limit. Says how much that is, if
    /// more than before.
    pub fn grow(&mut self, app: &AppName) -> Option<Bytes> {
        let limit = self.memory_limit(app)?;
        let now = self.resources_for(app).memory;
        let more = Bytes(now.0.saturating_mul(2)).min(limit);
        (more > now).then(|| {
            self.grown.insert(app.clone(), more);
            more
        })
    }

    /// How far an app's memory may grow; nothing where it may not.
    fn memory_limit(&self, app: &AppName) -> Option<Bytes> {
        let registered = self.wishes.get(app).and_then(|wishes| wishes.memory_limit);
        registered.or_else(|| Some(self.rules.apps.get(app)?.limit))
    }

    /// What the app's next daemon has at the least. What it grew to counts as far as it might grow to it now: a limit
    /// may have been lowered since.
    fn resources_for(&self, app: &AppName) -> Resources {
        let wishes = self.wishes.get(app).copied().unwrap_or_default();
        let registered = wishes.memory.or_else(|| self.rules.apps.get(app)?.start);
        let start = registered.unwrap_or(self.rules.resources.memory);
        let grown = self.grown.get(app).zip(self.memory_limit(app)).map(|(grown, limit)| *grown.min(&limit));
        let memory = grown.map_or(start, |grown| start.max(grown));
        Resources { memory, ..self.rules.resources.with(&wishes) }
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::quantity::Millicores;

    use super::super::{Action, Retirement};
    use super::*;
    use crate::testing::{AppDaemon, PATIENCE, rules};

    const START: Timestamp = Timestamp(1_000_000);

    fn app(name: &str) -> AppName {
        AppName::parse(name).unwrap()
    }

    fn atlas() -> TrustDomain {
        TrustDomain::parse("atlas").unwrap()
    }

    fn large() -> BuildResources {
        BuildResources {
            cpu: Some(Millicores(2000)),
            cpu_limit: Some(Millicores(4000)),
            memory: Some(Bytes::gibi(3)),
            memory_limit: Some(Bytes::gibi(5)),
            ephemeral_storage: Some(Bytes::gibi(8)),
        }
    }

    /// Without pods kept ahead.
    fn pool(daemons: Vec<super::super::Daemon>) -> Pool {
        let mut rules = rules();
        rules.pool.warm = 0;
        let mut pool = Pool::new(rules);
        pool.resync(daemons, START);
        pool
    }

    fn made(actions: &[Action]) -> Option<Resources> {
        actions.iter().find_map(|action| match action {
            Action::Create { resources, .. } => Some(*resources),
            _ => None,
        })
    }

    #[test]
    fn an_app_gets_a_daemon_that_has_what_its_registration_wishes_for() {
        let mut pool = pool(vec![AppDaemon::ready(0).daemon()]);
        pool.ask(app("citation"), atlas(), &large(), PATIENCE, START);
        let had = made(&pool.decide(START, 0.0)).unwrap();
        let wanted = Resources {
            cpu: Millicores(2000),
            cpu_limit: Some(Millicores(4000)),
            memory: Bytes::gibi(3),
            ephemeral_storage: Some(Bytes::gibi(8)),
        };
        assert_eq!(had, wanted);
        // Once it is there nothing more is made, and whoever wishes for nothing takes the other one.
        let there = AppDaemon::ready(1).resources(had).daemon();
        pool.see(there, START);
        let claimed = |actions: &[Action]| match actions {
            [Action::Claim { seat, .. }] => *seat,
            other => panic!("{other:?}"),
        };
        assert_eq!(claimed(&pool.decide(START, 0.0)), 1);
        pool.ask(app("small"), atlas(), &BuildResources::default(), PATIENCE, START);
        assert_eq!(claimed(&pool.decide(START, 0.0)), 0);
    }

    #[test]
    fn a_limit_on_the_processor_is_kept_to_on_daemons_that_are_there() {
        let mut pool = pool(vec![AppDaemon::ready(0).daemon()]);
        let wishes = BuildResources { cpu_limit: Some(Millicores(100)), ..BuildResources::default() };
        pool.ask(app("citation"), atlas(), &wishes, PATIENCE, START);
        let had = made(&pool.decide(START, 0.0)).unwrap();
        assert_eq!((had.cpu, had.cpu_limit), (Millicores(100), Some(Millicores(100))));
    }

    #[test]
    fn memory_grows_from_what_is_wished_for_to_the_limit_that_is() {
        let mut pool = pool(vec![]);
        assert_eq!(pool.grow(&app("citation")), None);
        let built = pool.ask(app("citation"), atlas(), &large(), PATIENCE, START);
        pool.leave(built);
        assert_eq!(pool.grow(&app("citation")), Some(Bytes::gibi(5)));
        assert_eq!(pool.grow(&app("citation")), None);
        // What it grew to stays while the registration does not ask for more by itself.
        let more = BuildResources { memory: Some(Bytes::gibi(4)), ..large() };
        pool.ask(app("citation"), atlas(), &more, PATIENCE, START);
        assert_eq!(made(&pool.decide(START, 0.0)).unwrap().memory, Bytes::gibi(5));
        pool.ask(app("citation"), atlas(), &BuildResources::default(), PATIENCE, START);
        assert_eq!(pool.grow(&app("citation")), None);
    }

    #[test]
    fn memory_that_grew_shrinks_to_a_limit_that_is_lowered() {
        let gib = Bytes::gibi;
        for (limit, had) in
            [(Some(gib(5)), gib(5)), (Some(gib(4)), gib(4)), (Some(gib(3)), gib(3)), (None, gib(3))]
        {
            let mut pool = pool(vec![]);
            let built = pool.ask(app("citation"), atlas(), &large(), PATIENCE, START);
            pool.leave(built);
            assert_eq!(pool.grow(&app("citation")), Some(gib(5)));
            let lowered = BuildResources { memory_limit: limit, ..large() };
            pool.ask(app("citation"), atlas(), &lowered, PATIENCE, START);
            assert_eq!(made(&pool.decide(START, 0.0)).unwrap().memory, had, "{limit:?}");
        }
    }

    #[test]
    fn a_daemon_that_is_too_small_makes_room_where_there_is_none() {
        let mut rules = rules();
        (rules.pool.total, rules.pool.warm) = (1, 0);
        let mut pool = Pool::new(rules);
        pool.resync(vec![AppDaemon::ready(0).daemon()], START);
        pool.ask(app("citation"), atlas(), &large(), PATIENCE, START);
        let actions = pool.decide(START, 0.0);
        assert!(matches!(&actions[..], [Action::Delete { why: Retirement::Reclaimed, .. }]), "{actions:?}");
    }
}
