//! What to do now: retire what is of no more use, give daemons to those who wait, make what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabrique_core::id::{AppName, TrustDomain};
use fabrique_core::time::Timestamp;

use super::rank::best;
use super::{
    Action, Claim, Coming, Daemon, Demand, Phase, Pool, Retirement, Rules, Ticket, Tracked, Uid, Use,
    with_app,
};
use crate::config::{Isolation, Resources};

/// Somebody who has waited for this many times the warm wait gets the next seat, whoever could use what is in it.
const STARVING: u32 = 4;

/// Whose daemons may make room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Idle ones that nobody who waits can use.
    FromNobodysDaemons,
    /// Any idle one that nobody older can use.
    FromYoungerOnes,
}

impl Pool {
    /// Everything that is to be done now, each of it once: what is under way is remembered until it is answered.
    /// `jitter` is between zero and one.
    pub fn decide(&mut self, now: Timestamp, jitter: f64) -> Vec<Action> {
        if !self.synced {
            return Vec::new();
        }
        self.coming.retain(|_, coming| coming.until.is_none_or(|until| now < until));
        let mut actions = Vec::new();
        self.retire(now, jitter, &mut actions);
        // Before anybody younger takes a daemon whose seat somebody has waited for too long.
        let starving = self.missing(now, self.rules.pool.warm_wait * STARVING);
        let starving = self.create_for(now, starving, &mut actions);
        self.reclaim(now, &starving, Room::FromYoungerOnes, &mut actions);
        self.assign(now, &mut actions);
        self.renew(now, &mut actions);
        self.look(now, &mut actions);
        let missing = self.missing(now, self.rules.pool.warm_wait);
        let unmet = self.create_for(now, missing, &mut actions);
        self.reclaim(now, &unmet, Room::FromNobodysDaemons, &mut actions);
        if unmet.is_empty() {
            self.keep_ahead(now, &mut actions);
        }
        self.release(now, &mut actions);
        actions
    }

    /// Deletes what nobody should or will use again.
    fn retire(&mut self, now: Timestamp, jitter: f64, actions: &mut Vec<Action>) {
        let ready = self.idle_by_domain(now);
        let mut spare: BTreeMap<TrustDomain, usize> = BTreeMap::new();
        for (trust, idle) in ready {
            spare.insert(trust.clone(), idle.saturating_sub(self.kept_ready(&trust, now)));
        }
        let mut failed_to_start = false;
        for tracked in self.daemons.values_mut() {
            let making = self.making.get(&tracked.daemon.seat);
            let unsure = making.is_some_and(|making| making.is_unsure_of(&tracked.daemon.uid));
            let unfinished = unsure && self.rules.is_unfinished(tracked, now);
            let why = unfinished.then_some(Retirement::Unfinished);
            let why = why.or_else(|| self.rules.retirement(tracked, now, &mut spare));
            let Some(why) = why else { continue };
            // What another configuration cannot start says nothing about ours.
            if !tracked.was_ready
                && !self.rules.is_strange(&tracked.daemon)
                && let Retirement::Over(_) | Retirement::Overdue(_) = &why
            {
                failed_to_start = true;
                let pod = crate::pod::pod_name(tracked.daemon.seat);
                self.trouble = Some(match &why {
                    Retirement::Over(cause) | Retirement::Overdue(Some(cause)) => format!("{pod} {cause}"),
                    _ => format!("{pod} did not become ready in time"),
                });
            }
            actions.push(tracked.delete(why));
        }
        if failed_to_start {
            self.pause(now, jitter);
        }
    }

    /// The idle daemons of each domain that any of its apps could take.
    fn idle_by_domain(&self, now: Timestamp) -> BTreeMap<TrustDomain, usize> {
        let mut idle = BTreeMap::new();
        let idles =
            |tracked: &&Tracked| self.rules.is_free(tracked, now) && self.rules.is_for_any(&tracked.daemon);
        for tracked in self.daemons.values().filter(idles) {
            *idle.entry(tracked.daemon.trust.clone()).or_default() += 1;
        }
        idle
    }

    /// How many idle daemons the domain has ahead of demand: none once a newer generation keeps them.
    fn kept_ready(&self, trust: &TrustDomain, now: Timestamp) -> usize {
        if self.daemons().any(|daemon| self.rules.is_of_successors(daemon)) {
            return 0;
        }
        self.rules.pool.warm_for(trust, self.is_active(trust, now)).into()
    }

    /// Whether somebody of the domain builds, waits, or did lately.
    fn is_active(&self, trust: &TrustDomain, now: Timestamp) -> bool {
        let lately = |daemon: &Daemon| {
            daemon.claim.is_some() || daemon.builds > 0 && daemon.idle_since.until(now) < self.rules.pool.idle
        };
        self.demands.iter().any(|demand| demand.trust == *trust)
            || self.daemons().any(|daemon| daemon.trust == *trust && lately(daemon))
    }

    /// Whoever came first is served first, except by a daemon that he does not take yet because he still hopes for
    /// the one that has his cache.
    fn assign(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let demands: Vec<Demand> = self.unserved().cloned().collect();
        for demand in demands {
            let suitable = || self.daemons.values().filter(|tracked| self.rules.suits(tracked, &demand, now));
            let all: Vec<&Daemon> = suitable().map(|tracked| &tracked.daemon).collect();
            let is_free = |tracked: &&Tracked| self.rules.is_free(tracked, now);
            let free: Vec<&Daemon> = suitable().filter(is_free).map(|tracked| &tracked.daemon).collect();
            let warm = |daemon: &&Daemon| daemon.apps.contains(&demand.app);
            let hopes = all.iter().any(warm) && !free.iter().any(warm);
            if hopes && demand.since.until(now) < self.rules.pool.warm_wait {
                continue;
            }
            let Some(uid) = best(&demand.app, &free, &all).map(|daemon| daemon.uid.clone()) else { continue };
            if let Some(tracked) = self.daemons.get_mut(&uid) {
                actions.push(tracked.claim(&demand, &self.rules));
            }
        }
    }

    fn unserved(&self) -> impl Iterator<Item = &Demand> {
        let claiming = |ticket: Ticket| self.daemons.values().any(|one| one.used == Use::Claiming(ticket));
        self.demands.iter().filter(move |demand| !claiming(demand.ticket))
    }

    /// Three times as often as others take for a sign of death.
    fn renew(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        for tracked in self.daemons.values_mut() {
            let ours = matches!(tracked.used, Use::Held) && self.rules.me_on(&tracked.daemon);
            let due = tracked.changed.until(now) >= self.rules.pool.claim / 3;
            if ours && due && tracked.rest <= now {
                // Not again before this one is answered.
                tracked.rest = now.after(self.rules.pool.claim / 3);
                let beat = tracked.daemon.claim.as_ref().map_or(0, |claim| claim.beat) + 1;
                actions.push(Action::Renew {
                    uid: tracked.daemon.uid.clone(),
                    seat: tracked.daemon.seat,
                    claim: Claim { holder: self.rules.me.clone(), beat },
                });
            }
        }
    }

    /// Those who wait, and for whom nothing is there or on its way. Where there is something to hope for they count
    /// after `patience` only; and not beyond one more pod for each, where pods are held up.
    fn missing(&self, now: Timestamp, patience: Duration) -> Vec<Demand> {
        let suitable = |demand: &Demand| {
            let demand = demand.clone();
            self.daemons.values().filter(move |tracked| self.rules.suits(tracked, &demand, now))
        };
        let mut spoken_for: BTreeSet<&Uid> = BTreeSet::new();
        let mut coming: Vec<&Coming> = self.coming.values().collect();
        let (mut hopeful, mut waiting) = (Vec::new(), Vec::new());
        for demand in self.unserved() {
            let mut on_the_way = suitable(demand).filter(|tracked| {
                let starts = self.rules.is_on_its_way(&tracked.daemon, now);
                let there = starts || self.rules.is_free(tracked, now);
                there && !spoken_for.contains(&tracked.daemon.uid)
            });
            let expected =
                |one: &&Coming| one.trust == demand.trust && one.resources.cover(&demand.resources);
            if let Some(tracked) = on_the_way.next() {
                spoken_for.insert(&tracked.daemon.uid);
                hopeful.push(demand);
            } else if let Some(at) = coming.iter().position(expected) {
                coming.swap_remove(at);
                hopeful.push(demand);
            } else {
                waiting.push(demand);
            }
        }
        let mut speak_for = |demand: &Demand| {
            let held_up = |tracked: &&Tracked| matches!(tracked.daemon.phase, Phase::Starting(_));
            let mut uids = suitable(demand).filter(held_up).map(|tracked| &tracked.daemon.uid);
            uids.find(|uid| !spoken_for.contains(uid)).is_some_and(|uid| spoken_for.insert(uid))
        };
        // The pods that they hoped for before the one that was made instead.
        for demand in waiting.iter().chain(&hopeful) {
            speak_for(demand);
        }
        waiting.retain(|demand| !speak_for(demand));
        let is_due = |demand: &&Demand| {
            let hopeless = patience <= self.rules.pool.warm_wait && suitable(demand).next().is_none();
            hopeless || demand.since.until(now) >= patience
        };
        waiting.into_iter().filter(is_due).cloned().collect()
    }

    /// Makes a pod for each, as far as there is room. Returns those for whom there was none.
    fn create_for(&mut self, now: Timestamp, missing: Vec<Demand>, actions: &mut Vec<Action>) -> Vec<Demand> {
        let mut unmet = Vec::new();
        for demand in missing {
            let memory = demand.resources.memory.max(self.rules.resources.memory);
            let resources = Resources { memory, ..demand.resources };
            if !self.create(now, &demand.trust, resources, demand.elsewhere(), actions) {
                unmet.push(demand);
            }
        }
        unmet
    }

    fn create(
        &mut self,
        now: Timestamp,
        trust: &TrustDomain,
        resources: Resources,
        avoid: Vec<String>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let full = self.count(trust) >= usize::from(self.rules.pool.per_domain);
        // The lowest, as everybody does, so that two who miss the same daemon make one.
        let seat = (0..self.rules.pool.total).find(|&seat| self.is_empty(seat));
        let Some(seat) = seat.filter(|_| !full && now >= self.create_after) else { return false };
        let number = self.making.entry(seat).or_default().begin();
        self.coming.insert(seat, Coming { trust: trust.clone(), resources, until: None });
        actions.push(Action::Create { seat, number, trust: trust.clone(), resources, avoid });
        true
    }

    fn is_empty(&self, seat: u16) -> bool {
        !self.coming.contains_key(&seat) && self.daemons().all(|daemon| daemon.seat != seat)
    }

    /// The pods of a domain, those that end included.
    fn count(&self, trust: &TrustDomain) -> usize {
        let coming = self.coming.values().filter(|coming| coming.trust == *trust).count();
        coming + self.daemons().filter(|daemon| daemon.trust == *trust).count()
    }

    /// Where there is no room for those who wait, idle daemons make room.
    fn reclaim(&mut self, now: Timestamp, unmet: &[Demand], room: Room, actions: &mut Vec<Action>) {
        let ends = |tracked: &&Tracked| tracked.daemon.ending || tracked.used == Use::Deleting;
        let mut making_room: Vec<TrustDomain> =
            self.daemons.values().filter(ends).map(|tracked| tracked.daemon.trust.clone()).collect();
        for demand in unmet {
            if now < self.create_after {
                continue;
            }
            let of_domain = self.count(&demand.trust) >= usize::from(self.rules.pool.per_domain);
            let helps = |trust: &TrustDomain| !of_domain || *trust == demand.trust;
            if let Some(at) = making_room.iter().position(helps) {
                making_room.swap_remove(at);
                continue;
            }
            let wanted = |tracked: &Tracked| {
                self.demands.iter().any(|other| {
                    let before = room == Room::FromNobodysDaemons || other.ticket < demand.ticket;
                    before && self.rules.suits(tracked, other, now)
                })
            };
            let victims = self.daemons.values().filter(|tracked| {
                let idle = self.rules.is_free(tracked, now) || self.rules.is_left(tracked, now);
                idle && helps(&tracked.daemon.trust) && !wanted(tracked)
            });
            let victim = victims.min_by_key(|tracked| tracked.daemon.idle_since);
            let Some(uid) = victim.map(|tracked| tracked.daemon.uid.clone()) else { continue };
            if let Some(tracked) = self.daemons.get_mut(&uid) {
                actions.push(tracked.delete(Retirement::Reclaimed));
            }
        }
    }

    /// Idle daemons ahead of demand, with the room that nobody waits for.
    fn keep_ahead(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        let mut domains: BTreeSet<TrustDomain> = self.rules.pool.always_warm.keys().cloned().collect();
        domains.extend(self.daemons().map(|daemon| daemon.trust.clone()));
        for trust in domains {
            let wanted = self.kept_ready(&trust, now);
            let usable = self.daemons.values().filter(|tracked| {
                // Also one that is held up: another one would be, too.
                let starting = matches!(tracked.daemon.phase, Phase::Starting(_));
                tracked.daemon.trust == trust
                    && self.rules.is_sound(tracked, now)
                    && (starting || self.rules.is_free(tracked, now))
                    && self.rules.is_for_any(&tracked.daemon)
            });
            let expected = |one: &&Coming| one.trust == trust && one.resources.cover(&self.rules.resources);
            let coming = self.coming.values().filter(expected);
            let there = usable.count() + coming.count();
            for _ in there..wanted {
                self.create(now, &trust, self.rules.resources, Vec::new(), actions);
            }
        }
    }

    /// Our claims come off what nobody of ours wants.
    fn release(&mut self, now: Timestamp, actions: &mut Vec<Action>) {
        for tracked in self.daemons.values_mut() {
            let left_over = tracked.used == Use::None && self.rules.me_on(&tracked.daemon);
            if (tracked.used == Use::Kept || left_over) && tracked.rest <= now {
                tracked.used = Use::Releasing;
                actions.push(Action::Release {
                    uid: tracked.daemon.uid.clone(),
                    seat: tracked.daemon.seat,
                    version: tracked.daemon.version.clone(),
                });
            }
        }
    }

    /// Why somebody still waits, for people.
    #[must_use]
    pub fn why_waiting(&self, ticket: Ticket) -> String {
        let Some(demand) = self.demands.iter().find(|demand| demand.ticket == ticket) else {
            return "a daemon was found just now".to_owned();
        };
        let of_domain = || self.daemons().filter(|daemon| daemon.trust == demand.trust);
        let obstacle = of_domain().find_map(|daemon| match &daemon.phase {
            Phase::Starting(Some(cause)) => Some(format!("{} {cause}", crate::pod::pod_name(daemon.seat))),
            Phase::Starting(None) | Phase::Ready(_) | Phase::Over(_) => None,
        });
        if let Some(problem) = obstacle.or_else(|| self.trouble.clone()) {
            return problem;
        }
        if !self.synced {
            return "the builder pods have not been listed yet".to_owned();
        }
        let busy = of_domain().filter(|daemon| daemon.claim.is_some()).count();
        let (all, limit) = (self.daemons.len(), self.rules.pool.total);
        format!("of {limit} daemons at most, {all} are there, and {busy} build for {}", demand.trust)
    }
}

impl Rules {
    /// Fit for another build of its own domain.
    fn is_sound(&self, tracked: &Tracked, now: Timestamp) -> bool {
        let daemon = &tracked.daemon;
        !daemon.doubt
            && !daemon.ending
            && tracked.used != Use::Deleting
            && !tracked.is_unproven()
            && !matches!(daemon.phase, Phase::Over(_))
            && !self.is_strange(daemon)
            && !self.is_spent(daemon, now)
    }

    fn is_spent(&self, daemon: &Daemon, now: Timestamp) -> bool {
        daemon.builds >= self.pool.builds || daemon.created.until(now) >= self.pool.life
    }

    /// Whether the daemon, once free, is one for this demand.
    fn suits(&self, tracked: &Tracked, demand: &Demand, now: Timestamp) -> bool {
        let daemon = &tracked.daemon;
        let alone = |apps: &[AppName]| apps.iter().all(|app| *app == demand.app);
        self.is_sound(tracked, now)
            && daemon.trust == demand.trust
            && daemon.resources.cover(&demand.resources)
            && !self.shuns(demand, daemon, now)
            && match daemon.isolation {
                Isolation::Userns => true,
                Isolation::Rootless => alone(&daemon.apps),
            }
    }

    /// Whether any app of the domain could take it, as it is expected of those that are kept ahead: it has what an app
    /// gets that asks for nothing, and a rootless one that has an app is nobody else's.
    fn is_for_any(&self, daemon: &Daemon) -> bool {
        daemon.resources.cover(&self.resources)
            && (daemon.isolation == Isolation::Userns || daemon.apps.is_empty())
    }

    /// Ready, and nobody's or ours without a build.
    fn is_free(&self, tracked: &Tracked, now: Timestamp) -> bool {
        let unclaimed = match tracked.used {
            Use::None => tracked.daemon.claim.is_none() || self.me_on(&tracked.daemon),
            Use::Kept => true,
            Use::Claiming(_) | Use::Held | Use::Releasing | Use::Deleting => false,
        };
        unclaimed
            && matches!(tracked.daemon.phase, Phase::Ready(_))
            && self.is_sound(tracked, now)
            && tracked.rest <= now
    }

    /// Why a daemon is to be deleted now, if it is. `spare` counts the idle ones that are not kept ready.
    fn retirement(
        &self,
        tracked: &Tracked,
        now: Timestamp,
        spare: &mut BTreeMap<TrustDomain, usize>,
    ) -> Option<Retirement> {
        let daemon = &tracked.daemon;
        let at_rest = match tracked.used {
            Use::None | Use::Kept => tracked.rest <= now,
            Use::Claiming(_) | Use::Held | Use::Releasing | Use::Deleting => false,
        };
        if daemon.ending || !at_rest {
            return None;
        }
        if tracked.used == Use::None && daemon.claim.is_some() && !self.me_on(daemon) {
            return self.is_silent(tracked, now).then_some(Retirement::Abandoned);
        }
        if daemon.doubt {
            return Some(Retirement::Doubt);
        }
        match &daemon.phase {
            Phase::Over(cause) => return Some(Retirement::Over(cause.clone())),
            Phase::Starting(cause) if self.is_overdue(daemon, now) => {
                return Some(Retirement::Overdue(cause.clone()));
            }
            Phase::Starting(_) | Phase::Ready(_) => {}
        }
        if tracked.passed_unproven() {
            return Some(Retirement::Unproven);
        }
        if self.is_strange(daemon) {
            return self.retirement_of_stranger(tracked, now);
        }
        if self.is_spent(daemon, now) {
            return Some(Retirement::Spent);
        }
        // While our claim is on it, nobody has written since when it is idle.
        let ready = matches!(daemon.phase, Phase::Ready(_)) && daemon.claim.is_none();
        if !ready || daemon.idle_since.until(now) < self.pool.idle {
            return None;
        }
        // Those that only some could take are not among the ones that are kept.
        if self.is_for_any(daemon) {
            let spare = spare.get_mut(&daemon.trust).filter(|spare| **spare > 0)?;
            *spare -= 1;
        }
        Some(Retirement::Idle)
    }
}

impl Tracked {
    fn delete(&mut self, why: Retirement) -> Action {
        self.used = Use::Deleting;
        // What is over or doubted is no use to anybody, whatever has changed about it; anything else is retired
        // only as it was seen.
        let version = match &why {
            Retirement::Over(_) | Retirement::Doubt | Retirement::Unfinished => None,
            Retirement::Abandoned
            | Retirement::Outdated
            | Retirement::Spent
            | Retirement::Idle
            | Retirement::Reclaimed
            | Retirement::Overdue(_)
            | Retirement::Unproven => Some(self.daemon.version.clone()),
        };
        Action::Delete { uid: self.daemon.uid.clone(), seat: self.daemon.seat, version, why }
    }

    fn claim(&mut self, demand: &Demand, rules: &Rules) -> Action {
        self.used = Use::Claiming(demand.ticket);
        let beat = self.daemon.claim.as_ref().map_or(0, |claim| claim.beat + 1);
        Action::Claim {
            uid: self.daemon.uid.clone(),
            seat: self.daemon.seat,
            version: self.daemon.version.clone(),
            ticket: demand.ticket,
            claim: Claim { holder: rules.me.clone(), beat },
            apps: with_app(&self.daemon.apps, &demand.app),
            builds: self.daemon.builds.saturating_add(1),
        }
    }
}
