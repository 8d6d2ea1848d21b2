//! A worker: wake → decision → digest → commit, one effect per step, so that a history can crash, stop
//! or overtake it between any two of them.

use std::collections::BTreeSet;

use fabrique_core::decision::{Action, Advance, Reason};
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{BuildId, BuildKey, Channel, Digest};
use fabrique_core::memory::{Built, Intent, Running};
use fabrique_core::policy::Attempt;
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::{Candidate, Verdict, judge_image};
use fabrique_core::view::Recorded;
use fabrique_core::work::{Due, Generation};

use crate::apps::{Automatic, Value};
use crate::gather::{self, Sight};
use crate::ids::{AppsId, Rev, apps_revision, environment_name, number, revision};
use crate::world::World;

#[derive(Debug, Clone, Default)]
pub(crate) struct Worker {
    /// Stopped by a signal: it does nothing and knows nothing of it.
    pub(crate) stopped: bool,
    pub(crate) job: Option<Job>,
}

/// What a worker holds in its hands; a crash loses it.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) token: u64,
    pub(crate) noted: Generation,
    pub(crate) at: At,
    pub(crate) building: Option<Building>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Building {
    pub(crate) build: BuildId,
    pub(crate) key: BuildKey,
    pub(crate) rev: Rev,
    pub(crate) ended: Option<Ended>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Built(Digest),
    Failed(FailureKind),
}

/// The next effect.
#[derive(Debug, Clone)]
pub(crate) enum At {
    Note,
    ReadApps,
    ReadHead {
        base: AppsId,
    },
    Decide(Sight),
    Start {
        rev: Rev,
        key: BuildKey,
        seen: u64,
    },
    Build,
    Stop {
        superseded: bool,
        seen: u64,
    },
    Fail(FailureKind),
    Record(Digest),
    MarkPushed(Digest),
    GuardApps,
    GuardHead {
        base: AppsId,
    },
    Guard(Sight),
    Intend(Draft),
    Push(Draft),
    /// The push had no answer: whether it arrived is looked up.
    ReadBack {
        tip: AppsId,
    },
    Settle,
    EndBuild,
    Release(Option<Timestamp>),
}

/// Commits made on `sight.base`, not pushed yet.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) sight: Sight,
    pub(crate) commits: Vec<AppsId>,
    /// The target that a person had released when this was decided.
    pub(crate) released: Option<Rev>,
    /// How often `cluster/apps` had been reset by then.
    pub(crate) resets: u32,
    /// What the forge had lost by then: what it loses before the push changes no verdict any more.
    pub(crate) gone: BTreeSet<Rev>,
}

/// The next step of worker `w`: a claim when it is idle, the next effect of its job otherwise.
pub(crate) fn step(world: &mut World, w: usize, impatient: bool) {
    if world.workers[w].stopped {
        return;
    }
    let Some(mut job) = world.workers[w].job.take() else {
        claim(world, w, impatient);
        return;
    };
    let goes_on = Step { world, w, job: &mut job }.take();
    if goes_on {
        world.workers[w].job = Some(job);
    }
}

fn claim(world: &mut World, w: usize, impatient: bool) {
    if world.item(impatient).due(world.now) != Due::Now {
        return;
    }
    if world.work.value.holder.is_some() {
        world.audit.builds_may_start_again();
    }
    let claimed = world.work.value.claimed_by(&format!("w{w}"));
    let token = claimed.token;
    world.work.update(|record| *record = claimed);
    world.log(format!("w{w} claims, token {token}"));
    let job = Job { token, noted: Generation(0), at: At::Note, building: None };
    world.workers[w].job = Some(job);
}

struct Step<'a> {
    world: &'a mut World,
    w: usize,
    job: &'a mut Job,
}

impl Step<'_> {
    /// Takes one step; false when the job is over.
    fn take(&mut self) -> bool {
        match self.job.at.clone() {
            At::Note => {
                self.job.noted = self.world.wanted;
                self.job.at = At::ReadApps;
            }
            At::ReadApps => self.job.at = At::ReadHead { base: self.world.apps.head() },
            At::ReadHead { base } => {
                self.job.at = At::Decide(Sight { base, head: self.world.source.head() });
            }
            At::Decide(sight) => return self.decide(sight),
            At::Start { rev, key, seen } => return self.start(rev, key, seen),
            At::Build => return self.watch(),
            At::Stop { superseded, seen } => self.stop(superseded, seen),
            At::Fail(kind) => return self.fail(kind),
            At::Record(digest) => self.record(digest),
            At::MarkPushed(digest) => return self.mark_pushed(digest),
            At::GuardApps => self.job.at = At::GuardHead { base: self.world.apps.head() },
            At::GuardHead { base } => {
                self.job.at = At::Guard(Sight { base, head: self.world.source.head() });
            }
            At::Guard(sight) => self.guard(sight),
            At::Intend(draft) => return self.intend(draft),
            At::Push(draft) => self.push(&draft),
            At::ReadBack { tip } => self.read_back(tip),
            At::Settle => self.settle(),
            At::EndBuild => self.end_build(),
            At::Release(wait) => {
                self.release(wait);
                return false;
            }
        }
        true
    }

    fn log(&mut self, line: &str) {
        let line = format!("w{} {line}", self.w);
        self.world.log(line);
    }

    fn is_overtaken(&self) -> bool {
        self.world.work.value.token != self.job.token
    }

    /// Whether the worker gives up because another one holds the app.
    fn gives_up(&mut self) -> bool {
        let gives_up = !self.world.setup.heedless && self.is_overtaken();
        if gives_up {
            self.world.audit.builds_may_start_again();
            self.log("lost its lease and gives up");
        }
        gives_up
    }

    /// Settles what an earlier worker left behind, then asks the one function.
    fn decide(&mut self, sight: Sight) -> bool {
        if self.gives_up() {
            return false;
        }
        let mut memory = self.world.memory.value.clone();
        gather::read_back(self.world, sight.base, &mut memory);
        let own = self.job.building.as_ref().map(|b| b.build.clone());
        if memory.running.as_ref().is_some_and(|running| Some(&running.build) != own.as_ref()) {
            memory.running = None;
        }
        if own.is_some() && memory.running.is_none() {
            self.job.building = None;
            self.world.audit.builds_may_start_again();
            self.log("drops a build that is not wanted any more");
        }
        let target = sight.target(self.world).map(|(target, _)| revision(target));
        if memory.released.is_some() && memory.released != target {
            memory.released = None;
        }
        let view = gather::view(self.world, sight, &memory);
        let decision = gather::decide_twice(self.world, &view);
        if matches!(decision.reason, Reason::Settled(_) | Reason::Built(_)) {
            memory.released = None;
        }
        if memory != self.world.memory.value {
            self.world.memory.update(|m| *m = memory);
        }
        self.world.audit.decided = self.world.audit.decided.max(self.job.noted);
        self.log(&format!(
            "decides at a{} and {}: {}",
            sight.base,
            sight.head.map_or("no head".into(), |h| format!("c{h}")),
            decision.reason
        ));
        crate::audit::decision(self.world, sight, &view, &decision);
        let seen = self.world.memory.version;
        self.job.at = match decision.action {
            Action::Build { revision, key, .. } => At::Start { rev: number(&revision), key, seen },
            Action::Continue => At::Build,
            Action::Stop { superseded_by } => At::Stop { superseded: superseded_by.is_some(), seen },
            Action::Commit(advances) => At::Intend(self.draft(sight, &advances)),
            Action::WaitUntil(until) => At::Release(Some(until)),
            Action::Nothing => At::Release(None),
        };
        true
    }

    fn start(&mut self, rev: Rev, key: BuildKey, seen: u64) -> bool {
        if self.gives_up() {
            return false;
        }
        if self.world.memory.version != seen {
            self.job.at = At::ReadApps;
            return true;
        }
        let build = self.world.next_build();
        let running = Running {
            build: build.clone(),
            key: key.clone(),
            revision: revision(rev),
            token: self.job.token,
            started: self.world.now,
            pushed: false,
        };
        self.log(&format!("starts {build} of c{rev}"));
        crate::audit::started(self.world, &key);
        self.world.memory.update(|memory| memory.running = Some(running));
        self.job.building = Some(Building { build, key, rev, ended: None });
        self.job.at = At::Build;
        true
    }

    /// Waits for the build's end and for newer wakes.
    fn watch(&mut self) -> bool {
        if self.gives_up() {
            return false;
        }
        let ended = self.job.building.as_ref().and_then(|building| building.ended.clone());
        match ended {
            Some(Ended::Built(digest)) => self.job.at = At::Record(digest),
            Some(Ended::Failed(kind)) => self.job.at = At::Fail(kind),
            None if self.world.wanted > self.job.noted => self.job.at = At::Note,
            None => {}
        }
        true
    }

    fn stop(&mut self, superseded: bool, seen: u64) {
        self.job.at = At::ReadApps;
        if self.world.memory.version != seen {
            return;
        }
        self.job.building = None;
        self.world.memory.update(|memory| {
            memory.running = None;
            memory.supersedes += u32::from(superseded);
        });
        self.log("stops its build");
        crate::audit::stopped(self.world, superseded);
    }

    fn fail(&mut self, kind: FailureKind) -> bool {
        if self.gives_up() {
            return false;
        }
        self.job.at = At::ReadApps;
        let Some(building) = self.job.building.take() else { return true };
        let attempt = Attempt {
            key: building.key,
            revision: revision(building.rev),
            build: Some(building.build.clone()),
            kind,
            message: "it broke".into(),
            log_tail: Vec::new(),
        };
        let previous = self.world.memory.value.failure.clone();
        let failure = self.world.policy.failure(previous.as_ref(), attempt, self.world.now, 0.5);
        self.world.memory.update(|memory| {
            if memory.running.as_ref().is_some_and(|running| running.build == building.build) {
                memory.running = None;
                memory.failure = Some(failure);
                memory.supersedes = 0;
            }
        });
        self.world.audit.ended();
        self.log(&format!("sees its build fail ({kind})"));
        true
    }

    fn record(&mut self, digest: Digest) {
        if let Some(building) = self.job.building.clone() {
            let recorded = Recorded { digest: digest.clone(), build: building.build };
            self.world.records.insert(building.key, recorded);
            self.log(&format!("records the digest of c{}", building.rev));
        }
        self.job.at = At::MarkPushed(digest);
    }

    fn mark_pushed(&mut self, digest: Digest) -> bool {
        if self.gives_up() {
            return false;
        }
        self.job.at = At::GuardApps;
        let Some(Building { build, key, rev, .. }) = self.job.building.clone() else { return true };
        self.world.memory.update(|memory| {
            if let Some(running) = memory.running.as_mut().filter(|running| running.build == build) {
                running.pushed = true;
            }
            memory.built = Some(Built { build, key, revision: revision(rev), digest });
            memory.failure = None;
            memory.supersedes = 0;
        });
        self.world.audit.ended();
        true
    }

    /// The commit guard: the tree of the base commit, and a head read after it.
    fn guard(&mut self, sight: Sight) {
        let mut memory = self.world.memory.value.clone();
        gather::read_back(self.world, sight.base, &mut memory);
        self.world.memory.update(|m| *m = memory.clone());
        self.job.at = At::EndBuild;
        let (Some(building), Some(head)) = (self.job.building.clone(), sight.head) else { return };
        let Some((target, declared)) = sight.target(self.world) else { return };
        let Some(Ended::Built(digest)) = building.ended else { return };
        if !self.world.registry.contains(&digest) {
            return;
        }
        let released = memory.released == Some(revision(building.rev));
        let source = &self.world.source;
        let target = source.relation(building.rev, target);
        let mut advances = Vec::new();
        for index in 0..self.world.setup.environments.len() {
            let shown = self.world.apps.at(sight.base).environments[index].image.shown.as_ref();
            let deployed_to_head = shown.map(|shown| source.relation(shown.revision, head));
            let view =
                gather::environment(self.world, sight, index, (building.rev, Some(&building.key)), &memory);
            let candidate = Candidate::Build { target, deployed_to_head };
            if judge_image(&view, candidate, released, &declared) == Verdict::Advance {
                advances.push(Advance::Image {
                    environment: environment_name(index),
                    revision: revision(building.rev),
                    image: Recorded { digest: digest.clone(), build: building.build.clone() },
                    key: building.key.clone(),
                });
            }
        }
        let passed = advances.len();
        self.log(&format!("guards c{} at a{} and c{head}: {passed} to commit", building.rev, sight.base));
        if passed > 0 {
            self.job.at = At::Intend(self.draft(sight, &advances));
        }
    }

    /// One commit per advance, chained on the base.
    fn draft(&mut self, sight: Sight, advances: &[Advance]) -> Draft {
        crate::quiet::drafted(self.world, sight.base, advances);
        let mut tip = sight.base;
        let mut commits = Vec::new();
        for advance in advances {
            let (name, automatic) = automatic(advance);
            let index = (0..self.world.setup.environments.len()).find(|i| environment_name(*i) == name);
            let Some(environment) = index else { continue };
            let automatic = Automatic { environment, ..automatic };
            let mut environments = self.world.apps.at(tip).environments.clone();
            environments[environment].channel_mut(automatic.channel).show(automatic.value.clone());
            tip = self.world.apps.commit(tip, environments, Some(automatic));
            commits.push(tip);
        }
        let released = self.world.memory.value.released.as_ref().map(number);
        let (resets, gone) = (self.world.apps.resets(), self.world.source.gone().clone());
        Draft { sight, commits, released, resets, gone }
    }

    fn intend(&mut self, draft: Draft) -> bool {
        if self.gives_up() {
            return false;
        }
        let intents: Vec<_> = draft
            .commits
            .iter()
            .filter_map(|id| Some((*id, self.world.apps.at(*id).automatic.clone()?)))
            .collect();
        let base = apps_revision(draft.sight.base);
        let memory = &self.world.memory.value;
        let is_unread = |(_, automatic): &(AppsId, Automatic)| {
            let name = environment_name(automatic.environment);
            memory.channel(&name, automatic.channel).intent.is_some()
        };
        if intents.iter().any(is_unread) {
            self.log("finds an intent that nobody has read back, and gives the app back undone");
            if !self.is_overtaken() {
                let undone = self.world.work.value.released(self.world.work.value.done);
                self.world.work.update(|record| *record = undone);
            }
            return false;
        }
        self.world.memory.update(|memory| {
            for (id, automatic) in &intents {
                let name = environment_name(automatic.environment);
                let commit = gather::committed(*id, automatic);
                let intent = Intent { base: base.clone(), commit };
                memory.channel_mut(&name, automatic.channel).intent = Some(intent);
            }
        });
        self.job.at = At::Push(draft);
        true
    }

    fn push(&mut self, draft: &Draft) {
        let tip = draft.commits.last().copied().unwrap_or(draft.sight.base);
        if !self.world.apps.push(draft.sight.base, tip) {
            self.log(&format!("is refused: cluster/apps is not at a{} any more", draft.sight.base));
            self.forget(&draft.commits);
            self.job.at = self.again();
            return;
        }
        for id in &draft.commits {
            crate::audit::committed(self.world, *id, draft);
        }
        if std::mem::take(&mut self.world.lose_answer) {
            self.log("does not hear how its push ended");
            self.job.at = At::ReadBack { tip };
        } else {
            self.job.at = At::Settle;
        }
    }

    /// These commits are not on the branch, for certain: nobody has to read them back.
    fn forget(&mut self, commits: &[AppsId]) {
        let is_known = |intent: &mut Intent| {
            intent.commit.commit.as_ref().is_some_and(|commit| commits.contains(&number(commit)))
        };
        self.world.memory.update(|memory| {
            for environment in memory.environments.values_mut() {
                drop(environment.image.intent.take_if(is_known));
                drop(environment.infra.intent.take_if(is_known));
            }
        });
    }

    fn again(&self) -> At {
        if self.job.building.is_some() { At::GuardApps } else { At::ReadApps }
    }

    /// The committer looks for its own commit: it does not judge anew what arrived.
    fn read_back(&mut self, tip: AppsId) {
        self.job.at = if self.world.apps.is_pushed(tip) { At::Settle } else { self.again() };
    }

    fn settle(&mut self) {
        let mut memory = self.world.memory.value.clone();
        gather::read_back(self.world, self.world.apps.head(), &mut memory);
        self.world.memory.update(|m| *m = memory);
        self.job.at = if self.job.building.is_some() { At::EndBuild } else { At::ReadApps };
    }

    fn end_build(&mut self) {
        self.job.at = At::ReadApps;
        let Some(building) = self.job.building.take() else { return };
        self.world.memory.update(|memory| {
            if memory.running.as_ref().is_some_and(|running| running.build == building.build) {
                memory.running = None;
            }
        });
    }

    fn release(&mut self, wait: Option<Timestamp>) {
        if self.is_overtaken() {
            self.log("cannot release: another worker has the app");
            return;
        }
        let noted = self.job.noted;
        let released = match wait {
            Some(until) => self.world.work.value.released_to_wait(noted, until),
            None => self.world.work.value.released(noted),
        };
        self.world.work.update(|record| *record = released);
        self.log("releases");
    }
}

fn automatic(advance: &Advance) -> (fabrique_core::id::EnvironmentName, Automatic) {
    match advance {
        Advance::Image { environment, revision, image, key } => {
            let value = Value {
                revision: number(revision),
                digest: Some(image.digest.clone()),
                build: Some(image.build.clone()),
            };
            let key = Some(key.clone());
            (environment.clone(), Automatic { environment: 0, channel: Channel::Image, value, key })
        }
        Advance::Infra { environment, revision, .. } => {
            let value = Value { revision: number(revision), digest: None, build: None };
            (environment.clone(), Automatic { environment: 0, channel: Channel::Infra, value, key: None })
        }
    }
}
