//! The model world: every truth and every hint, and the workers that act on them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use fabrique_core::app::App;
use fabrique_core::id::{BuildId, BuildKey, Digest};
use fabrique_core::memory::Memory;
use fabrique_core::policy::Policy;
use fabrique_core::time::Timestamp;
use fabrique_core::view::Recorded;
use fabrique_core::work::{Generation, WorkItem, WorkRecord};

use crate::apps::Apps;
use crate::audit::Audit;
use crate::ids;
use crate::source::Source;
use crate::worker::Worker;

/// A record in a store that knows compare-and-swap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Versioned<T> {
    pub(crate) value: T,
    pub(crate) version: u64,
}

impl<T> Versioned<T> {
    /// A read, a change and a compare-and-swap that is repeated until it holds.
    pub(crate) fn update<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        self.version += 1;
        change(&mut self.value)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EnvironmentSetup {
    pub(crate) follows_builds: bool,
    pub(crate) follows_head: bool,
}

/// What stays the same during a history.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) environments: Vec<EnvironmentSetup>,
    /// Whether workers ignore that they lost their lease until they release it: then the commit guard
    /// and the compare-and-swap of the branch stand alone.
    pub(crate) heedless: bool,
}

/// What a wake meets on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    Once,
    Twice,
    Late,
    Lost,
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) app: App,
    pub(crate) setup: Setup,
    pub(crate) policy: Policy,
    pub(crate) now: Timestamp,
    pub(crate) source: Source,
    pub(crate) apps: Apps,
    pub(crate) registry: BTreeSet<Digest>,
    pub(crate) records: BTreeMap<BuildKey, Recorded>,
    pub(crate) memory: Versioned<Memory>,
    pub(crate) work: Versioned<WorkRecord>,
    pub(crate) wanted: Generation,
    late: u32,
    /// Whether a wake was acknowledged after the last change that somebody has to look at.
    pub(crate) told: bool,
    pub(crate) workers: Vec<Worker>,
    /// The answer to the next push to `cluster/apps` gets lost on its way.
    pub(crate) lose_answer: bool,
    builds: u64,
    pub(crate) audit: Audit,
    log: Vec<String>,
    violation: Option<String>,
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let apps = Apps::new(setup.environments.len());
        Self {
            app: ids::app(),
            policy: Policy::default(),
            now: Timestamp(1_000_000),
            source: Source::new(),
            audit: Audit::new(setup.environments.len()),
            apps,
            setup,
            registry: BTreeSet::new(),
            records: BTreeMap::new(),
            memory: Versioned::default(),
            work: Versioned::default(),
            wanted: Generation(0),
            late: 0,
            told: false,
            workers: vec![Worker::default(); 2],
            lose_answer: false,
            builds: 0,
            log: Vec::new(),
            violation: None,
        }
    }

    pub(crate) fn log(&mut self, line: impl Into<String>) {
        self.log.push(line.into());
    }

    pub(crate) fn last_line(&self) -> String {
        self.log.last().cloned().unwrap_or_default()
    }

    /// Notes the first broken invariant; the history up to here is the report.
    pub(crate) fn violate(&mut self, what: impl Into<String>) {
        if self.violation.is_none() {
            let what = what.into();
            self.log.push(format!("!! {what}"));
            self.violation = Some(what);
        }
    }

    /// The history, one line per step, when an invariant was broken.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let Some(violation) = &self.violation else { return Ok(()) };
        let mut report = format!("{violation}\n{:?}\n", self.setup);
        for (n, line) in self.log.iter().enumerate() {
            let _ = writeln!(report, "{n:>4}  {line}");
        }
        Err(report)
    }

    pub(crate) fn next_build(&mut self) -> BuildId {
        self.builds += 1;
        ids::build_id(&self.app, self.builds)
    }

    /// How many builds were started.
    pub(crate) fn builds(&self) -> u64 {
        self.builds
    }

    /// What the record names for `key`, if the registry still answers for it.
    pub(crate) fn record(&self, key: &BuildKey) -> Option<Recorded> {
        self.records.get(key).filter(|recorded| self.registry.contains(&recorded.digest)).cloned()
    }

    /// Something changed, and this becomes of the message.
    pub(crate) fn wake(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Once => self.acknowledge(1),
            Delivery::Twice => self.acknowledge(2),
            Delivery::Late => self.late += 1,
            Delivery::Lost => {}
        }
        self.told = matches!(delivery, Delivery::Once | Delivery::Twice);
    }

    pub(crate) fn deliver_late(&mut self) {
        self.told |= self.late > 0;
        self.acknowledge(self.late);
        self.late = 0;
    }

    fn acknowledge(&mut self, wakes: u32) {
        self.wanted.0 += u64::from(wakes);
    }

    /// What an observer knows about the app. A lease is dead when its holder is, and whenever `impatient`
    /// observers are wrong about that.
    pub(crate) fn item(&self, impatient: bool) -> WorkItem {
        let token = self.work.value.token;
        let alive = self
            .workers
            .iter()
            .any(|worker| !worker.stopped && worker.job.as_ref().is_some_and(|job| job.token == token));
        WorkItem {
            app: self.app.name.clone(),
            wanted: self.wanted,
            record: self.work.value.clone(),
            revision: self.work.version,
            lease_expired: impatient || !alive,
        }
    }
}
