//! Several workers, each with a pool and a late view of its own, against one API server that only compares and
//! swaps. Answers come late or are lost, workers restart, pods die or are removed by hand. Whatever the order, bounds
//! hold and everybody is served.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::testing::{AppDaemon, rules};

const STEP: Duration = Duration::from_millis(500);

/// In how many steps an answer comes, at the latest.
const LATEST: u64 = 12;

/// Numbers that a test run can repeat.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// What a watch tells.
#[derive(Clone)]
enum Event {
    Seen(Daemon),
    Gone(Daemon),
}

/// The API server and the nodes.
struct Cluster {
    pods: BTreeMap<u16, Daemon>,
    /// Everything that ever happened.
    events: Vec<Event>,
    ready_at: BTreeMap<Uid, Timestamp>,
    gone_at: BTreeMap<Uid, Timestamp>,
    /// Every app whose build was ever begun on a pod.
    served: BTreeMap<Uid, BTreeSet<AppName>>,
    /// When somebody last said that he builds on a pod.
    beaten_at: BTreeMap<Uid, Timestamp>,
    version: u64,
    made: u64,
    rules: Rules,
}

impl Cluster {
    fn touch(&mut self, seat: u16, change: impl FnOnce(&mut Daemon)) -> Attempt {
        self.version += 1;
        let Some(pod) = self.pods.get_mut(&seat) else { return Attempt::Conflict };
        change(pod);
        pod.version = self.version.to_string();
        self.events.push(Event::Seen(pod.clone()));
        Attempt::Done(Box::new(pod.clone()))
    }

    /// The pods that there were after so many events.
    fn as_of(&self, events: usize) -> Vec<Daemon> {
        let mut pods: BTreeMap<&Uid, &Daemon> = BTreeMap::new();
        for event in &self.events[..events] {
            match event {
                Event::Seen(daemon) => pods.insert(&daemon.uid, daemon),
                Event::Gone(last) => pods.remove(&last.uid),
            };
        }
        pods.into_values().cloned().collect()
    }

    fn remove(&mut self, seat: u16) {
        self.events.extend(self.pods.remove(&seat).map(Event::Gone));
    }

    fn is(&self, seat: u16, uid: &Uid, version: Option<&String>) -> bool {
        let pod = self.pods.get(&seat).filter(|pod| pod.uid == *uid && !pod.ending);
        pod.is_some_and(|pod| version.is_none_or(|version| pod.version == *version))
    }

    fn apply(
        &mut self,
        action: &Action,
        by: usize,
        now: Timestamp,
        fresh: bool,
        chance: &mut Chance,
    ) -> Attempt {
        match action {
            Action::Create { seat, trust, resources, .. } => {
                if self.pods.contains_key(seat) {
                    return Attempt::Conflict;
                }
                self.made += 1;
                let uid = Uid(format!("uid-{}", self.made));
                let rules = configured(&self.rules, by);
                let pod = Daemon {
                    uid: uid.clone(),
                    trust: trust.clone(),
                    resources: *resources,
                    isolation: rules.isolation,
                    generation: rules.generation,
                    since: rules.since,
                    start_limit: Some(rules.pool.start),
                    phase: Phase::Starting(None),
                    created: now,
                    idle_since: now,
                    ..AppDaemon::ready(*seat).daemon()
                };
                self.pods.insert(*seat, pod);
                let start = chance.below(rules.pool.start.as_secs());
                self.ready_at.insert(uid, now.after(Duration::from_secs(start)));
                self.check_bounds(trust, fresh);
                self.touch(*seat, |_| ())
            }
            Action::Claim { uid, seat, version, claim, apps, builds, .. } => {
                if !self.is(*seat, uid, Some(version)) {
                    return Attempt::Conflict;
                }
                let held = self.pods[seat].claim.as_ref().map(|claim| &claim.holder);
                assert!(held.is_none_or(|holder| *holder == claim.holder), "a claim was overwritten");
                self.beaten_at.insert(uid.clone(), now);
                let limit = configured(&self.rules, by).pool.claim;
                self.touch(*seat, |pod| {
                    (pod.claim, pod.apps, pod.builds) = (Some(claim.clone()), apps.clone(), *builds);
                    pod.claim_limit = Some(limit);
                })
            }
            Action::Release { uid, seat, version } => {
                if !self.is(*seat, uid, Some(version)) {
                    return Attempt::Conflict;
                }
                self.touch(*seat, |pod| (pod.claim, pod.idle_since) = (None, now))
            }
            Action::Renew { uid, seat, claim } => {
                if !self.is(*seat, uid, None) {
                    return Attempt::Conflict;
                }
                self.beaten_at.insert(uid.clone(), now);
                self.touch(*seat, |pod| pod.claim = Some(claim.clone()))
            }
            Action::Look { uid, seat } => match self.pods.get(seat).filter(|pod| pod.uid == *uid) {
                Some(pod) => Attempt::Done(Box::new(pod.clone())),
                None => Attempt::Conflict,
            },
            Action::Delete { uid, seat, version, why } => {
                if self.pods.get(seat).is_none_or(|pod| pod.uid != *uid) {
                    return Attempt::Gone;
                }
                if !self.is(*seat, uid, version.as_ref()) {
                    return Attempt::Conflict;
                }
                self.check_bounds_of_its_own(&self.pods[seat], why, now);
                self.gone_at.insert(uid.clone(), now.after(Duration::from_secs(chance.below(4))));
                self.touch(*seat, |pod| (pod.ending, pod.phase) = (true, Phase::Over(Cause::Deleted)))
            }
        }
    }

    /// However short the settings of whoever deletes it.
    fn check_bounds_of_its_own(&self, pod: &Daemon, why: &Retirement, now: Timestamp) {
        match why {
            Retirement::Overdue(_) => assert!(pod.created.until(now) >= pod.start_limit.unwrap(), "{pod:?}"),
            Retirement::Abandoned => {
                assert!(self.beaten_at[&pod.uid].until(now) >= pod.claim_limit.unwrap(), "{pod:?}");
            }
            _ => {}
        }
    }

    /// The bound of a domain is counted on views, so it holds as far as they are fresh.
    fn check_bounds(&self, trust: &TrustDomain, fresh: bool) {
        assert!(self.pods.len() <= usize::from(self.rules.pool.total));
        let of_domain = self.pods.values().filter(|pod| pod.trust == *trust).count();
        assert!(!fresh || of_domain <= usize::from(self.rules.pool.per_domain), "{of_domain} of {trust}");
    }

    /// Time passes on the nodes.
    fn pass(&mut self, now: Timestamp, trouble: bool, chance: &mut Chance) {
        let seats: Vec<u16> = self.pods.keys().copied().collect();
        for seat in seats {
            let pod = &self.pods[&seat];
            let uid = pod.uid.clone();
            let by_hand = trouble && chance.one_in(120);
            if by_hand || self.gone_at.get(&uid).is_some_and(|&at| at <= now) {
                self.remove(seat);
            } else if pod.phase == Phase::Starting(None) && self.ready_at[&uid] <= now {
                let host = u16::try_from(self.made).unwrap();
                self.touch(seat, |pod| pod.phase = Phase::Ready(AppDaemon::address(host)));
            } else if trouble && chance.one_in(40) && !pod.ending {
                self.touch(seat, |pod| pod.phase = Phase::Over(Cause::NodePressure));
            }
        }
    }
}

/// What a worker knows of, in events.
enum View {
    /// Nothing yet: a list is on its way that is as of then.
    Listing(usize),
    /// Everything until then.
    Watching(usize),
}

struct Worker {
    pool: Pool,
    view: View,
    /// What is still to be answered, and when.
    answers: Vec<(Timestamp, Action, Attempt)>,
    /// What runs, and when it ends.
    builds: BTreeMap<Uid, Timestamp>,
    waiting: BTreeMap<Ticket, (AppName, TrustDomain)>,
    /// What passed its gate, or may have, while it could not see.
    unseen: BTreeSet<Uid>,
    restarts: u32,
}

/// Odd workers are configured otherwise, as in the middle of a rollout: with more patience, since their pods are slow.
fn configured(rules: &Rules, number: usize) -> Rules {
    let mut rules = rules.clone();
    rules.generation = format!("generation-{}", number % 2);
    rules.since = Timestamp(u64::try_from(number).unwrap());
    if number % 2 == 1 {
        (rules.pool.start, rules.pool.claim) = (rules.pool.start * 4, rules.pool.claim * 2);
    }
    rules
}

impl Worker {
    fn start(cluster: &Cluster, number: usize, restarts: u32) -> Self {
        let mut rules = configured(&cluster.rules, number);
        rules.me = Holder { worker: format!("worker-{number}"), incarnation: restarts.to_string() };
        Self {
            pool: Pool::new(rules),
            view: View::Listing(cluster.events.len()),
            answers: Vec::new(),
            builds: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unseen: BTreeSet::new(),
            restarts,
        }
    }

    fn join(&mut self, (app, trust): (AppName, TrustDomain), now: Timestamp) {
        let ticket = self.pool.join(app.clone(), trust.clone(), now);
        self.waiting.insert(ticket, (app, trust));
    }

    /// The watch has to start over. Until its list is there, answers tell of what is newer than that.
    fn blink(&mut self, cluster: &Cluster, now: Timestamp) {
        let listed = cluster.as_of(cluster.events.len());
        let was_ready = |uid: &Uid| self.pool.daemons.get(uid).is_some_and(|known| known.was_ready);
        self.unseen.extend(listed.into_iter().map(|pod| pod.uid).filter(|uid| !was_ready(uid)));
        self.view = View::Listing(cluster.events.len());
        self.pool.blinked(now);
    }

    /// What was made, or was still starting, while it could not see is for others to judge, and nothing else is.
    fn check_trust(&self, action: &Action) {
        match action {
            Action::Claim { uid, .. } => {
                let unbuilt = self.pool.daemons[uid].daemon.builds == 0;
                assert!(!(unbuilt && self.unseen.contains(uid)), "{action:?}");
            }
            Action::Delete { uid, why: Retirement::Unproven, .. } => {
                assert!(self.unseen.contains(uid), "{action:?}");
            }
            _ => {}
        }
    }

    /// Hears what happened, after a list of what there was before. `late` if that list comes alone.
    fn hear(&mut self, cluster: &Cluster, now: Timestamp, late: bool) {
        let heard = match self.view {
            View::Listing(listed) => {
                self.pool.resync(cluster.as_of(listed), now);
                self.view = View::Watching(listed);
                if late {
                    return;
                }
                listed
            }
            View::Watching(heard) => heard,
        };
        for event in &cluster.events[heard..] {
            match event {
                Event::Seen(daemon) => self.pool.see(daemon.clone(), now),
                Event::Gone(last) => self.pool.gone(&last.uid, Some(last), now),
            }
        }
        self.view = View::Watching(cluster.events.len());
        let known = |pod: &&Daemon| self.pool.daemons().any(|daemon| daemon.uid == pod.uid);
        let unknown = cluster.pods.values().find(|pod| !known(pod));
        assert!(unknown.is_none(), "whoever has heard everything knows what there is, but not {unknown:?}");
    }

    /// A pod that it believes in, and that is gone. It was made and removed before a list, and answered for after it.
    fn ghost(&self, cluster: &Cluster) -> Option<&Daemon> {
        let there = |daemon: &&Daemon| cluster.pods.values().any(|pod| pod.uid == daemon.uid);
        self.pool.daemons().find(|daemon| !there(daemon))
    }

    fn answer(&mut self, action: &Action, attempt: Attempt, now: Timestamp) -> Option<Grant> {
        match action {
            Action::Create { seat, number, .. } => self.pool.created(*seat, *number, attempt, now, 0.5),
            Action::Claim { uid, .. } => return self.pool.claimed(uid, attempt, now),
            Action::Release { uid, .. } => self.pool.released(uid, attempt, now),
            Action::Renew { uid, .. } => self.pool.renewed(uid, attempt, now),
            Action::Look { uid, .. } => self.pool.looked(uid, attempt, now),
            Action::Delete { uid, .. } => self.pool.deleted(uid, &attempt, now),
        }
        None
    }
}

struct World {
    cluster: Cluster,
    workers: Vec<Worker>,
    now: Timestamp,
    chance: Chance,
    trouble: bool,
}

impl World {
    fn step(&mut self) {
        self.now = self.now.after(STEP);
        self.cluster.pass(self.now, self.trouble, &mut self.chance);
        for number in 0..self.workers.len() {
            if self.trouble && self.chance.one_in(100) {
                self.restart(number);
            }
            // A view may be late by any number of steps.
            if !self.trouble || !self.chance.one_in(3) {
                self.workers[number].hear(&self.cluster, self.now, self.trouble);
            }
            if self.trouble && self.chance.one_in(50) {
                self.workers[number].blink(&self.cluster, self.now);
            }
            self.answer(number);
            self.end_builds(number);
            for action in self.workers[number].pool.decide(self.now, 0.5) {
                self.workers[number].check_trust(&action);
                self.act(number, &action);
            }
        }
    }

    /// Its builds are cancelled with it; what it should build is asked for again.
    fn restart(&mut self, number: usize) {
        let old = &self.workers[number];
        let asked: Vec<_> = old.waiting.values().cloned().collect();
        self.workers[number] = Worker::start(&self.cluster, number, old.restarts + 1);
        for need in asked {
            self.workers[number].join(need, self.now);
        }
    }

    fn end_builds(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        let over: Vec<Uid> =
            worker.builds.iter().filter(|&(_, &end)| end <= self.now).map(|(uid, _)| uid.clone()).collect();
        for uid in over {
            worker.builds.remove(&uid);
            worker.pool.give_back(&uid, self.trouble && self.chance.one_in(10));
        }
    }

    fn act(&mut self, number: usize, action: &Action) {
        let lost = self.trouble && self.chance.one_in(20);
        let away = self.trouble && self.chance.one_in(20);
        let attempt = if away {
            Attempt::Failed("away".into())
        } else {
            self.cluster.apply(action, number, self.now, !self.trouble, &mut self.chance)
        };
        if let (true, Action::Create { .. }, Attempt::Done(pod)) = (lost, action, &attempt) {
            // Its certificate is never written.
            self.cluster.ready_at.insert(pod.uid.clone(), Timestamp(u64::MAX));
        }
        let attempt = if lost { Attempt::Failed("the answer was lost".into()) } else { attempt };
        let steps = self.chance.below(LATEST + 1);
        let at = self.now.after(STEP * u32::try_from(steps).unwrap());
        self.workers[number].answers.push((at, action.clone(), attempt));
        self.answer(number);
    }

    /// Whatever is due, in the order in which it was asked.
    fn answer(&mut self, number: usize) {
        let asked = std::mem::take(&mut self.workers[number].answers);
        let (due, later): (Vec<_>, Vec<_>) = asked.into_iter().partition(|(at, ..)| *at <= self.now);
        self.workers[number].answers = later;
        for (_, action, attempt) in due {
            if let Some(grant) = self.workers[number].answer(&action, attempt, self.now) {
                self.begin(number, &grant);
            }
        }
    }

    fn begin(&mut self, number: usize, grant: &Grant) {
        let uid = grant.daemon.uid.clone();
        for (other, worker) in self.workers.iter().enumerate() {
            assert!(!worker.builds.contains_key(&uid), "{number} was granted what {other} holds");
        }
        let (app, trust) = self.workers[number].waiting.remove(&grant.ticket).expect("granted twice");
        assert_eq!(grant.daemon.trust, trust);
        assert_eq!(grant.daemon.generation, format!("generation-{}", number % 2));
        let served = self.cluster.served.entry(uid.clone()).or_default();
        served.insert(app);
        assert!(self.cluster.rules.isolation == Isolation::Userns || served.len() == 1, "{served:?}");
        let end = self.now.after(Duration::from_secs(self.chance.below(20)));
        self.workers[number].builds.insert(uid, end);
    }

    fn ghosts(&self) -> Vec<&Daemon> {
        self.workers.iter().filter_map(|worker| worker.ghost(&self.cluster)).collect()
    }

    fn waiting(&self) -> usize {
        self.workers.iter().map(|worker| worker.waiting.len()).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 40, ..ProptestConfig::default() })]

    #[test]
    fn bounds_hold_and_everybody_is_served(
        seed in any::<u64>(),
        total in 1u16..5,
        per_domain in 1u16..5,
        warm in 0u16..3,
        rootless in any::<bool>(),
        workers in 1usize..4,
    ) {
        let mut rules = rules();
        (rules.pool.total, rules.pool.per_domain, rules.pool.warm) = (total, per_domain.min(total), warm);
        rules.pool.builds = 5;
        (rules.pool.start, rules.pool.claim) = (Duration::from_secs(5), Duration::from_secs(30));
        rules.pool.idle = Duration::from_secs(60);
        if rootless {
            rules.isolation = Isolation::Rootless;
        }
        let cluster = Cluster {
            pods: BTreeMap::new(), events: Vec::new(), ready_at: BTreeMap::new(), gone_at: BTreeMap::new(), served: BTreeMap::new(),
            beaten_at: BTreeMap::new(), version: 0, made: 0, rules,
        };
        let crew = (0..workers).map(|number| Worker::start(&cluster, number, 0)).collect();
        let mut world =
            World { cluster, workers: crew, now: Timestamp(1_000_000), chance: Chance(seed), trouble: true };
        for _ in 0..400 {
            if world.chance.one_in(4) {
                let number = usize::try_from(world.chance.below(workers as u64)).unwrap();
                let app = AppName::parse(&format!("app-{}", world.chance.below(6))).unwrap();
                let trust = TrustDomain::parse(&format!("org-{}", app.as_str().as_bytes()[4] % 3)).unwrap();
                let now = world.now;
                world.workers[number].join((app, trust), now);
            }
            world.step();
        }
        world.trouble = false;
        // A hundred may wait for one seat, and need a daemon of their own each: half a minute, and often more.
        let mut steps = 0;
        while world.waiting() > 0 || !world.ghosts().is_empty() {
            world.step();
            steps += 1;
            prop_assert!(
                steps < 20_000, "{} wait for ever: {:#?}, and these stay: {:#?}",
                world.waiting(), world.cluster.pods, world.ghosts(),
            );
        }
    }
}
