//! The warm pool: a pure state machine. What is seen and what is asked go in, what to do comes out; nothing in here
//! waits, draws a random number or knows an API.
//!
//! The pods are the shared memory of all workers (see [`crate::labels`]). Each worker runs a pool of its own on
//! what it sees of them; three compare-and-swaps of the API server keep them from treading on each other:
//!
//! * a **seat** is taken by creating the pod of its name, so there are never more pods than seats, and two workers
//!   that miss the same daemon make one. (The bound of a single domain is counted on what each worker sees: while
//!   a view is late, each other worker may exceed it by one);
//! * a daemon is taken by writing a **claim** on condition of its version;
//! * it is retired on condition of its version: one that was claimed meanwhile stays.
//!
//! Workers may differ in what they would make, while a new configuration is rolled out. They take no daemons of each
//! other's, and leave them in peace for as long as somebody uses them: see [`others`].
//!
//! A daemon with any doubt about it is never used again: it is deleted, and its seat filled anew.

mod daemon;
mod decide;
mod elsewhere;
mod making;
mod others;
mod proof;
mod rank;
mod wishes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use fabrique_core::app::BuildResources;
use fabrique_core::id::{AppName, TrustDomain};
use fabrique_core::time::Timestamp;

pub(crate) use self::daemon::with_app;
pub use self::daemon::{Claim, Daemon, Holder, Phase, Uid, read};
use self::elsewhere::Avoided;
use self::making::Making;
use self::others::Silence;
use crate::autopsy::Cause;
use crate::config::{AppMemory, Bytes, Isolation, PoolSettings, Resources};

/// Names one who waits.
pub type Ticket = u64;

/// After a refusal by the API server, and after a pod that never became ready.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Ends of daemons that are remembered for whoever asks.
const OBITUARIES: usize = 64;
/// Pods that went lately: more than can go while one answer is under way.
const DEPARTED: usize = 256;

/// What the pool goes by.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Sizes and ages.
    pub pool: PoolSettings,
    /// The isolation of new daemons; others get no further build.
    pub isolation: Isolation,
    /// The generation of new daemons; others get no further build.
    pub generation: String,
    /// When we were started, by our own clock: of two generations, the one that somebody was started with later is
    /// taken for the newer.
    pub since: Timestamp,
    /// What a daemon has unless an app needs more.
    pub resources: Resources,
    /// The apps that need more memory, unless their registrations say how much.
    pub apps: BTreeMap<AppName, AppMemory>,
    /// The longest pause between attempts to make a pod.
    pub longest_pause: Duration,
    /// Who we are.
    pub me: Holder,
}

/// One who waits for a daemon.
#[derive(Debug, Clone)]
struct Demand {
    ticket: Ticket,
    app: AppName,
    trust: TrustDomain,
    resources: Resources,
    since: Timestamp,
    /// How long it waits at the most.
    patience: Duration,
    /// Where its last builds failed by their node's fault.
    avoided: Vec<Avoided>,
}

/// What we do with a daemon now.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Use {
    /// Nothing.
    None,
    /// A claim is being written for this ticket.
    Claiming(Ticket),
    /// A build of ours runs on it.
    Held,
    /// Its build has ended well and our claim is still on it: ours to use again, or to give back.
    Kept,
    /// The claim is being taken off.
    Releasing,
    /// It is being deleted.
    Deleting,
}

#[derive(Debug, Clone)]
struct Tracked {
    daemon: Daemon,
    used: Use,
    /// Whether it has ever answered, as far as we saw.
    was_ready: bool,
    /// Where it answered last: leases name daemons by it.
    last_address: Option<IpAddr>,
    /// When its claim last changed, or it became ready, by our own clock.
    changed: Timestamp,
    /// What we know about a claim of somebody else's that stands still.
    silence: Silence,
    /// Nothing is tried before this: an attempt failed, and the next view will tell why.
    rest: Timestamp,
    /// What its gate saw may have been an API server that was away: see [`proof`].
    unproven: bool,
}

/// A pod that was asked for and not seen yet.
#[derive(Debug, Clone)]
struct Coming {
    trust: TrustDomain,
    resources: Resources,
    /// Somebody else was there first: the seat is ours to try again if the watch has not shown a pod by then.
    until: Option<Timestamp>,
}

/// What to do. Each is answered by the method of the pool that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make a pod: [`Pool::created`].
    Create {
        /// Its seat, and so its name.
        seat: u16,
        /// Which attempt of ours in this seat it is.
        number: u64,
        /// For whom.
        trust: TrustDomain,
        /// What it has.
        resources: Resources,
        /// On another node than these, where one can be had.
        avoid: Vec<String>,
    },
    /// Write a claim, and what the daemon then has built: [`Pool::claimed`].
    Claim {
        /// On which pod.
        uid: Uid,
        /// In which seat.
        seat: u16,
        /// On condition of this version.
        version: String,
        /// For whom.
        ticket: Ticket,
        /// The claim.
        claim: Claim,
        /// The apps, the new one first.
        apps: Vec<AppName>,
        /// The number of builds, this one included.
        builds: u32,
    },
    /// Take our claim off: [`Pool::released`].
    Release {
        /// Of which pod.
        uid: Uid,
        /// In which seat.
        seat: u16,
        /// On condition of this version.
        version: String,
    },
    /// Write a higher beat: [`Pool::renewed`].
    Renew {
        /// On which pod.
        uid: Uid,
        /// In which seat.
        seat: u16,
        /// The claim.
        claim: Claim,
    },
    /// Read a pod whose claim stands still, past the watch: [`Pool::looked`].
    Look {
        /// Which pod.
        uid: Uid,
        /// In which seat.
        seat: u16,
    },
    /// Delete a pod: [`Pool::deleted`].
    Delete {
        /// Which pod.
        uid: Uid,
        /// In which seat.
        seat: u16,
        /// On condition of this version; of none where nobody may use it any more.
        version: Option<String>,
        /// Why.
        why: Retirement,
    },
}

/// Why a pod is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retirement {
    /// It is over anyway.
    Over(Cause),
    /// Somebody doubts it.
    Doubt,
    /// Nobody knows what became of its making: it has no certificate, and never becomes ready.
    Unfinished,
    /// Its worker is gone, and what it left behind is unknown.
    Abandoned,
    /// It was made with an older configuration.
    Outdated,
    /// It ran as many builds, or as long, as it should.
    Spent,
    /// Nobody needs it.
    Idle,
    /// Its seat is needed for others.
    Reclaimed,
    /// It did not become ready in time.
    Overdue(Option<Cause>),
    /// It passed its gate while the API server may have been away.
    Unproven,
}

/// How an attempt at a pod ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt {
    /// Done; this is the pod now.
    Done(Box<Daemon>),
    /// The pod has changed meanwhile, or is there already, or may be gone: the watch will tell.
    Conflict,
    /// The API server knows the pod no more. It will not tell of that again, if it has told.
    Gone,
    /// It failed, or nobody knows; in a sentence.
    Failed(String),
}

/// What became of a leased daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Nothing, as far as its pod says.
    Alive {
        /// Where it runs.
        node: Option<String>,
    },
    /// It ended.
    Over(End),
}

/// How a daemon ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// By what.
    pub cause: Cause,
    /// Where it ran.
    pub node: Option<String>,
    /// Which app was built on it last.
    pub app: Option<AppName>,
}

impl End {
    fn of(daemon: &Daemon, cause: Cause) -> Self {
        Self { cause, node: daemon.node.clone(), app: daemon.apps.first().cloned() }
    }
}

/// A daemon for somebody who waited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Who waited.
    pub ticket: Ticket,
    /// What there is.
    pub daemon: Daemon,
}

/// Everything that one worker knows and wants.
#[derive(Debug)]
pub struct Pool {
    rules: Rules,
    /// Whether the whole has been seen once. Before that every seat would look free.
    synced: bool,
    daemons: BTreeMap<Uid, Tracked>,
    coming: BTreeMap<u16, Coming>,
    demands: VecDeque<Demand>,
    next: Ticket,
    /// Memory that apps have grown to after running out of it.
    grown: BTreeMap<AppName, Bytes>,
    /// What apps asked for last, where that is more than nothing.
    wishes: BTreeMap<AppName, BuildResources>,
    /// Nodes that failed builds, by app.
    avoided: BTreeMap<AppName, Vec<Avoided>>,
    /// Our attempts at pods, by seat.
    making: BTreeMap<u16, Making>,
    /// No pod is made before this.
    create_after: Timestamp,
    /// Attempts at pods that failed in a row.
    failures: u32,
    /// What went wrong last, for those who wait.
    trouble: Option<String>,
    /// How the last daemons ended, by seat and address.
    obituaries: VecDeque<(u16, Option<IpAddr>, End)>,
    /// The pods that went last: what is gone stays gone, whatever an answer says that comes later than the watch. Only
    /// the watch brings back what a list did not have that was older than the pod.
    departed: VecDeque<Uid>,
    /// Whether the watch was interrupted since the last list.
    blinked: bool,
}

impl Pool {
    /// A pool that has seen nothing yet.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            synced: false,
            daemons: BTreeMap::new(),
            coming: BTreeMap::new(),
            demands: VecDeque::new(),
            next: 0,
            grown: BTreeMap::new(),
            wishes: BTreeMap::new(),
            avoided: BTreeMap::new(),
            making: BTreeMap::new(),
            create_after: Timestamp(0),
            failures: 0,
            trouble: None,
            obituaries: VecDeque::new(),
            departed: VecDeque::new(),
            blinked: false,
        }
    }

    /// A pod as the watch tells of it: it is there, since a watch tells nothing of a pod after its end. Older views than
    /// what is known are no news.
    pub fn see(&mut self, daemon: Daemon, now: Timestamp) {
        self.departed.retain(|uid| *uid != daemon.uid);
        self.take(daemon, now);
    }

    /// A pod as an answer tells of it, which may be older than the pod's end.
    fn hear(&mut self, daemon: Daemon, now: Timestamp) {
        if !self.departed.contains(&daemon.uid) {
            self.take(daemon, now);
        }
    }

    fn take(&mut self, daemon: Daemon, now: Timestamp) {
        // Whoever fills a seat that we were about to fill: it is filled.
        self.coming.remove(&daemon.seat);
        self.note_failing_node(&daemon, now);
        let ready = matches!(daemon.phase, Phase::Ready(_));
        match self.daemons.get_mut(&daemon.uid) {
            Some(known) if older(&daemon.version, &known.daemon.version) => {}
            Some(known) => {
                if ready && !known.was_ready {
                    known.was_ready = true;
                    known.changed = now;
                    self.trouble = None;
                    self.failures = 0;
                }
                known.last_address = address(&daemon).or(known.last_address);
                if daemon.claim != known.daemon.claim {
                    known.changed = now;
                    known.silence = Silence::Unknown;
                }
                if daemon.version != known.daemon.version {
                    known.rest = Timestamp(0);
                }
                // A doubt of ours is not written anywhere: our claim is, and stays until the pod is gone.
                let doubt = known.daemon.doubt || daemon.doubt;
                known.daemon = Daemon { doubt, ..daemon };
                // A release whose answer was lost was a release: what is not ours must not be released again.
                if known.used == Use::Kept && !self.rules.me_on(&known.daemon) {
                    known.used = Use::None;
                }
            }
            None => {
                let uid = daemon.uid.clone();
                let tracked = Tracked {
                    used: Use::None,
                    was_ready: ready,
                    last_address: address(&daemon),
                    changed: now,
                    silence: Silence::Unknown,
                    rest: Timestamp(0),
                    unproven: false,
                    daemon,
                };
                self.daemons.insert(uid, tracked);
            }
        }
    }

    /// A pod is gone. `last` is how it was then, where the watch told.
    pub fn gone(&mut self, uid: &Uid, last: Option<&Daemon>, now: Timestamp) {
        if let Some(last) = last {
            self.note_failing_node(last, now);
        }
        self.depart(uid);
        let Some(tracked) = self.daemons.remove(uid) else { return };
        let cause =
            [last, Some(&tracked.daemon)].into_iter().flatten().find_map(|daemon| match &daemon.phase {
                Phase::Over(cause) => Some(cause.clone()),
                Phase::Starting(_) | Phase::Ready(_) => None,
            });
        let end = End::of(&tracked.daemon, cause.unwrap_or(Cause::Deleted));
        self.obituaries.push_back((tracked.daemon.seat, tracked.last_address, end));
        if self.obituaries.len() > OBITUARIES {
            self.obituaries.pop_front();
        }
    }

    /// Also of pods that were never seen: their maker's answer may still come.
    fn depart(&mut self, uid: &Uid) {
        if self.departed.contains(uid) {
            return;
        }
        self.departed.push_back(uid.clone());
        if self.departed.len() > DEPARTED {
            self.departed.pop_front();
        }
    }

    /// What became of the daemon that was leased in `seat` at `address`.
    #[must_use]
    pub fn fate(&self, seat: u16, address: IpAddr) -> Fate {
        let there = |tracked: &&Tracked| tracked.daemon.seat == seat && tracked.last_address == Some(address);
        if let Some(tracked) = self.daemons.values().find(there) {
            return match &tracked.daemon.phase {
                Phase::Over(cause) => Fate::Over(End::of(&tracked.daemon, cause.clone())),
                Phase::Ready(_) | Phase::Starting(_) => Fate::Alive { node: tracked.daemon.node.clone() },
            };
        }
        let mut obituaries = self.obituaries.iter().rev();
        let own = obituaries.find(|(of, at, _)| *of == seat && *at == Some(address));
        let unknown = End { cause: Cause::Deleted, node: None, app: None };
        Fate::Over(own.map_or(unknown, |(_, _, end)| end.clone()))
    }

    /// Everything there is, after the watch had to start over: a list that was asked for after every interruption.
    pub fn resync(&mut self, daemons: Vec<Daemon>, now: Timestamp) {
        self.synced = true;
        let listed: BTreeSet<Uid> = daemons.iter().map(|daemon| daemon.uid.clone()).collect();
        let gone: Vec<Uid> = self.daemons.keys().filter(|uid| !listed.contains(uid)).cloned().collect();
        for uid in gone {
            self.gone(&uid, None, now);
        }
        let unseen = self.unseen(&listed);
        for daemon in daemons {
            self.see(daemon, now);
        }
        self.distrust(&unseen);
    }

    /// Leaves the queue. A daemon that is being claimed for the ticket is kept for the next one.
    pub fn leave(&mut self, ticket: Ticket) {
        self.demands.retain(|demand| demand.ticket != ticket);
    }

    /// The answer to [`Action::Claim`]. A grant is for whoever waited with its ticket; when nobody does any more,
    /// the daemon has to be given back.
    pub fn claimed(&mut self, uid: &Uid, attempt: Attempt, now: Timestamp) -> Option<Grant> {
        let tracked = self.daemons.get_mut(uid)?;
        let Use::Claiming(ticket) = tracked.used else { return None };
        tracked.used = Use::None;
        match attempt {
            Attempt::Done(daemon) => {
                tracked.used = Use::Held;
                let daemon = *daemon;
                self.hear(daemon.clone(), now);
                self.leave(ticket);
                Some(Grant { ticket, daemon })
            }
            // An unknown outcome may be ours: then the watch shows our own claim, which we may use.
            Attempt::Conflict | Attempt::Gone | Attempt::Failed(_) => {
                tracked.rest = now.after(FIRST_PAUSE);
                None
            }
        }
    }

    /// A build of ours ended. A daemon in doubt is deleted; another waits for the next build, or its release.
    pub fn give_back(&mut self, uid: &Uid, doubt: bool) -> bool {
        let Some(tracked) = self.daemons.get_mut(uid) else { return false };
        if tracked.used != Use::Held {
            return false;
        }
        tracked.used = Use::Kept;
        tracked.daemon.doubt |= doubt;
        true
    }

    /// The answer to [`Action::Release`].
    pub fn released(&mut self, uid: &Uid, attempt: Attempt, now: Timestamp) {
        let Some(tracked) = self.daemons.get_mut(uid) else { return };
        match attempt {
            Attempt::Done(daemon) => {
                tracked.used = Use::None;
                self.hear(*daemon, now);
            }
            Attempt::Conflict | Attempt::Gone | Attempt::Failed(_) => {
                tracked.used = Use::Kept;
                tracked.rest = now.after(FIRST_PAUSE);
            }
        }
    }

    /// The answer to [`Action::Renew`].
    pub fn renewed(&mut self, uid: &Uid, attempt: Attempt, now: Timestamp) {
        match attempt {
            Attempt::Done(daemon) => self.hear(*daemon, now),
            Attempt::Conflict | Attempt::Gone | Attempt::Failed(_) => {
                if let Some(tracked) = self.daemons.get_mut(uid) {
                    tracked.rest = now.after(FIRST_PAUSE);
                }
            }
        }
    }

    /// The answer to [`Action::Delete`]: the watch tells of success, so only failures count, and a pod that is gone
    /// without the watch's having told.
    pub fn deleted(&mut self, uid: &Uid, attempt: &Attempt, now: Timestamp) {
        let Some(tracked) = self.daemons.get_mut(uid) else { return };
        match attempt {
            Attempt::Done(_) => tracked.daemon.ending = true,
            Attempt::Gone => self.gone(uid, None, now),
            Attempt::Conflict | Attempt::Failed(_) => {
                tracked.used = if self.rules.me_on(&tracked.daemon) { Use::Kept } else { Use::None };
                tracked.rest = now.after(FIRST_PAUSE);
            }
        }
    }

    /// The pod of a held daemon, as leases name it.
    #[must_use]
    pub fn held(&self, seat: u16, address: IpAddr) -> Option<&Daemon> {
        let held = |tracked: &&Tracked| {
            tracked.used == Use::Held && tracked.daemon.seat == seat && tracked.last_address == Some(address)
        };
        self.daemons.values().find(held).map(|tracked| &tracked.daemon)
    }

    /// Every daemon that is known.
    pub fn daemons(&self) -> impl Iterator<Item = &Daemon> {
        self.daemons.values().map(|tracked| &tracked.daemon)
    }

    /// Whether we build on anything, or have a claim that is still to be taken off.
    #[must_use]
    pub fn holds_something(&self) -> bool {
        self.daemons.values().any(|tracked| match tracked.used {
            Use::Deleting => false,
            Use::None => self.rules.me_on(&tracked.daemon),
            Use::Claiming(_) | Use::Held | Use::Kept | Use::Releasing => true,
        })
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.demands.len()
    }
}

fn address(daemon: &Daemon) -> Option<IpAddr> {
    match daemon.phase {
        Phase::Ready(address) => Some(address),
        Phase::Starting(_) | Phase::Over(_) => None,
    }
}

impl Rules {
    fn me_on(&self, daemon: &Daemon) -> bool {
        daemon.claim.as_ref().is_some_and(|claim| claim.holder == self.me)
    }
}

/// Versions of one object are numbers that grow (KEP-5504). Where they are not, every view counts.
fn older(version: &str, known: &str) -> bool {
    let number = |text: &str| text.parse::<u128>().ok();
    number(version).zip(number(known)).is_some_and(|(version, known)| version < known)
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
