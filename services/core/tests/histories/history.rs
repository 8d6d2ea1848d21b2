//! Random histories: what people, the network, the machines and time do to the world.

mod strategies;

use std::time::Duration;

use fabrique_core::decision::Action;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{Channel, Digest};
use fabrique_core::memory::Memory;
use fabrique_core::policy::Attempt;
use fabrique_core::work::Due;

use crate::apps::{Hold, Value};
use crate::arrivals;
use crate::audit;
use crate::gather::{self, Sight};
use crate::ids::{Rev, revision};
use crate::quiet;
use crate::source::Touch;
use crate::worker::{At, Ended};
use crate::world::{Delivery, Setup, World};

pub(crate) use strategies::{ops, setups};

/// How often everything is done that is to be done before the app has to be at rest.
const ROUNDS: usize = 40;

/// One step of a history. Numbers choose among what is there, modulo how much there is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    Push(Touch, Delivery),
    Merge(usize, Delivery),
    /// What is being built, or the head, merged with what is deployed, which a force push may have left behind.
    MergeDeployed {
        environment: usize,
        delivery: Delivery,
    },
    /// A new commit beside the branch's own.
    ForcePush {
        back: usize,
        touch: Touch,
        delivery: Delivery,
    },
    Rewind(usize, Delivery),
    /// The branch points at any commit there ever was, also when it did not exist.
    Jump(usize, Delivery),
    DeleteBranch,
    /// The forge loses what the branch does not reach.
    Collect,
    Person(PersonOp, Delivery),
    Command(Command),
    LoseDigest(usize),
    DeliverLate,
    Sweep,
    Sleep(u64),
    Work {
        worker: usize,
        steps: usize,
    },
    BuildEnds {
        worker: usize,
        kind: Option<FailureKind>,
    },
    Crash(usize),
    /// SIGSTOP.
    Stop(usize),
    /// SIGCONT.
    Continue(usize),
    /// Claims although the holder lives.
    Overtake(usize),
    LoseAnswer,
}

/// What a person does to `cluster/apps` by hand.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PersonOp {
    Reset(usize),
    RevertLast,
    /// Composition and bindings.
    Edit {
        environment: usize,
        channel: Channel,
        to: usize,
    },
    /// The revision in composition and bindings, under the digest that is there.
    Relabel {
        environment: usize,
        channel: Channel,
        to: usize,
    },
    /// The composition alone, or the binding alone.
    Drift {
        environment: usize,
        channel: Channel,
        to: usize,
        binding: bool,
    },
    Hold {
        environment: usize,
        channel: Channel,
        seconds: Option<u64>,
    },
    Unhold {
        environment: usize,
        channel: Channel,
    },
}

/// `fabrique <command> citation`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Command {
    Retry,
    Rebuild,
    Cancel,
    Release,
    Repair,
}

/// Applies `op`.
pub(crate) fn apply(world: &mut World, op: Op) {
    match op {
        Op::Work { worker, steps } => {
            for _ in 0..steps {
                work(world, worker, false);
            }
            return;
        }
        Op::Sweep => {
            sweep(world);
            return;
        }
        Op::BuildEnds { worker, kind } => {
            build_ends(world, worker, kind);
            return;
        }
        _ => world.log(format!("{op:?}")),
    }
    match op {
        Op::Push(..)
        | Op::Merge(..)
        | Op::MergeDeployed { .. }
        | Op::ForcePush { .. }
        | Op::Rewind(..)
        | Op::Jump(..) => source(world, op),
        Op::DeleteBranch => {
            world.source.point(None);
            arrivals::branch_pointed(world);
            world.told = false;
        }
        Op::Collect => {
            world.source.collect();
            world.told = false;
        }
        Op::Person(person, delivery) => {
            by_person(world, person);
            audit::person_changed(world);
            world.wake(delivery);
        }
        Op::Command(command) => {
            by_command(world, command);
            world.audit.builds_may_start_again();
            world.wake(Delivery::Once);
        }
        Op::LoseDigest(n) => {
            let digests: Vec<Digest> = world.registry.iter().cloned().collect();
            if let Some(digest) = digests.get(n % digests.len().max(1)) {
                world.registry.remove(digest);
                world.audit.builds_may_start_again();
                world.told = false;
            }
        }
        Op::DeliverLate => world.deliver_late(),
        Op::Sleep(seconds) => {
            // It may be the end of a hold.
            world.now = world.now.after(Duration::from_secs(seconds));
            world.told = false;
        }
        Op::Crash(w) => {
            if let Some(worker) = pick(world, w) {
                world.workers[worker] = crate::worker::Worker::default();
                world.audit.builds_may_start_again();
            }
        }
        Op::Stop(w) => set_stopped(world, w, true),
        Op::Continue(w) => set_stopped(world, w, false),
        Op::Overtake(worker) => work(world, worker, true),
        Op::LoseAnswer => world.lose_answer = true,
        Op::Work { .. } | Op::Sweep | Op::BuildEnds { .. } => {}
    }
}

fn pick(world: &World, w: usize) -> Option<usize> {
    let worker = w % world.workers.len();
    world.workers[worker].job.is_some().then_some(worker)
}

fn set_stopped(world: &mut World, w: usize, stopped: bool) {
    let worker = w % world.workers.len();
    world.workers[worker].stopped = stopped;
}

fn work(world: &mut World, worker: usize, impatient: bool) {
    let worker = worker % world.workers.len();
    crate::worker::step(world, worker, impatient);
}

fn source(world: &mut World, op: Op) {
    let built = world.workers.iter().find_map(|worker| worker.job.as_ref()?.building.as_ref());
    let built = built.map(|building| building.rev);
    let deployed: Vec<Option<Rev>> =
        world.apps.now().iter().map(|it| it.image.shown.as_ref().map(|shown| shown.revision)).collect();
    let repository = &mut world.source;
    let any = |n: usize, len: usize| n % len;
    let head = repository.head().unwrap_or(0);
    let (head, delivery) = match op {
        Op::Push(touch, delivery) => (repository.commit(vec![head], touch), delivery),
        Op::Merge(other, delivery) => {
            let other = any(other, repository.len());
            (repository.commit(vec![head, other], Touch::Both), delivery)
        }
        Op::MergeDeployed { environment, delivery } => {
            let deployed = deployed.get(environment % deployed.len().max(1)).copied().flatten();
            let parents = [built.unwrap_or(head)].into_iter().chain(deployed).collect();
            (repository.commit(parents, Touch::Both), delivery)
        }
        Op::ForcePush { back, touch, delivery } => {
            let from = repository.back(head, back);
            (repository.commit(vec![from], touch), delivery)
        }
        Op::Rewind(back, delivery) => (repository.back(head, back), delivery),
        Op::Jump(to, delivery) => (any(to, repository.len()), delivery),
        _ => return,
    };
    repository.point(Some(head));
    arrivals::branch_pointed(world);
    world.log(format!("   the head is c{head}"));
    world.wake(delivery);
}

fn by_person(world: &mut World, op: PersonOp) {
    let count = world.setup.environments.len();
    let mut environments = world.apps.now().to_vec();
    let revisions = world.source.len();
    let value = |channel: Channel, to: usize| Value {
        revision: to % revisions,
        digest: (channel == Channel::Image).then(|| Digest::of(format!("by hand {to}").as_bytes())),
        build: None,
    };
    match op {
        PersonOp::Reset(back) => {
            world.apps.reset(back);
            return;
        }
        PersonOp::RevertLast => {
            let parent = world.apps.at(world.apps.head()).parent.unwrap_or(0);
            environments = world.apps.at(parent).environments.clone();
        }
        _ if count == 0 => return,
        PersonOp::Edit { environment, channel, to } => {
            environments[environment % count].channel_mut(channel).show(value(channel, to));
        }
        PersonOp::Relabel { environment, channel, to } => {
            let state = environments[environment % count].channel_mut(channel);
            if let Some(shown) = &mut state.shown {
                shown.revision = to % revisions;
            }
            state.bind();
        }
        PersonOp::Drift { environment, channel, to, binding } => {
            let state = environments[environment % count].channel_mut(channel);
            let other = value(channel, to);
            if binding {
                state.bound = Some((other.revision, other.digest));
            } else {
                state.shown = Some(other);
            }
        }
        PersonOp::Hold { environment, channel, seconds } => {
            let until = seconds.map(|s| world.now.after(Duration::from_secs(s)));
            environments[environment % count].channel_mut(channel).hold = Some(Hold { until });
        }
        PersonOp::Unhold { environment, channel } => {
            environments[environment % count].channel_mut(channel).hold = None;
        }
    }
    world.apps.by_person(environments);
}

fn by_command(world: &mut World, command: Command) {
    match command {
        Command::Retry => world.memory.update(|memory| memory.failure = None),
        Command::Rebuild => world.memory.update(|memory| memory.rebuild += 1),
        Command::Release => {
            let target = Sight::now(world).target(world).map(|(target, _)| revision(target));
            world.memory.update(|memory| memory.released = target);
        }
        Command::Cancel => {
            let memory = &world.memory.value;
            let Some(running) = memory.running.clone().filter(|running| !running.pushed) else { return };
            let attempt = Attempt {
                key: running.key,
                revision: running.revision,
                build: Some(running.build),
                kind: FailureKind::Cancelled,
                message: "cancelled by ada".into(),
                log_tail: Vec::new(),
            };
            let failure = world.policy.failure(memory.failure.as_ref(), attempt, world.now, 0.0);
            world.memory.update(|memory| memory.failure = Some(failure));
        }
        Command::Repair => {
            let mut environments = world.apps.now().to_vec();
            for environment in &mut environments {
                environment.image.bind();
                environment.infra.bind();
            }
            world.apps.by_person(environments);
            audit::person_changed(world);
        }
    }
}

/// The end of a build on its daemon. The source decides first; then `kind` says what else went wrong.
fn build_ends(world: &mut World, worker: usize, kind: Option<FailureKind>) {
    let worker = worker % world.workers.len();
    let Some(job) = world.workers[worker].job.as_mut() else { return };
    let started = !matches!(job.at, At::Start { .. });
    let Some(building) = job.building.as_mut().filter(|b| started && b.ended.is_none()) else { return };
    let (build, rev, key) = (building.build.clone(), building.rev, building.key.clone());
    let kind = if world.source.is_broken(rev) { Some(FailureKind::Source) } else { kind };
    if let Some(kind) = kind {
        building.ended = Some(Ended::Failed(kind));
        world.audit.failed(&key);
    } else {
        let digest = Digest::of(build.as_str().as_bytes());
        building.ended = Some(Ended::Built(digest.clone()));
        world.registry.insert(digest);
    }
    let how = kind.map_or("well", FailureKind::as_str);
    world.log(format!("the build of c{rev} by w{worker} ends: {how}"));
}

/// The reconciler: decides for itself, wakes when there is something to do, and says what it decided.
pub(crate) fn sweep(world: &mut World) -> Action {
    let sight = Sight::now(world);
    let mut memory = world.memory.value.clone();
    gather::read_back(world, sight.base, &mut memory);
    drop_dead_build(world, &mut memory);
    let view = gather::view(world, sight, &memory);
    let decision = gather::decide_twice(world, &view);
    quiet::decision(world, sight, &view, &decision);
    let wakes = acts(&decision.action);
    if wakes {
        world.wake(Delivery::Once);
    }
    let said = if wakes { "wakes" } else { "is silent" };
    world.log(format!("the reconciler {said}: {}", decision.reason));
    decision.action
}

/// A build whose lease is not the one that lives has no worker: it must not count as under way.
fn drop_dead_build(world: &World, memory: &mut Memory) {
    let work = &world.work.value;
    let lives = |token: u64| work.holder.is_some() && work.token == token;
    if memory.running.as_ref().is_some_and(|running| !lives(running.token)) {
        memory.running = None;
    }
}

fn acts(action: &Action) -> bool {
    match action {
        Action::Build { .. } | Action::Commit(_) | Action::Stop { .. } => true,
        Action::Continue | Action::WaitUntil(_) | Action::Nothing => false,
    }
}

/// No more faults: sweeps, works and waits until nothing is left to do, and judges what is there.
pub(crate) fn come_to_rest(world: &mut World) {
    world.log("-- no more faults");
    end_faults(world);
    for _ in 0..ROUNDS {
        let swept = sweep(world);
        if !work_until_idle(world) {
            world.violate("a worker never comes to an end");
            return;
        }
        match (world.item(false).due(world.now), swept) {
            (Due::At(time), _) => world.now = time,
            // Nobody is woken for a wait; the sweep after it finds that it is over.
            (Due::No, Action::WaitUntil(time)) => world.now = world.now.max(time),
            (Due::Now, _) => {}
            (Due::No, swept) if acts(&swept) => {}
            (Due::No, _) => {
                judge_at_rest(world);
                return;
            }
        }
        if world.verdict().is_err() {
            return;
        }
    }
    world.violate("the app never comes to rest");
}

fn end_faults(world: &mut World) {
    world.lose_answer = false;
    for worker in 0..world.workers.len() {
        set_stopped(world, worker, false);
    }
}

/// No more faults, and no reconciler either: what was acknowledged is decided, and where it told of all that
/// changed, that is enough to come to rest.
pub(crate) fn live_on_wakes(mut world: World) -> Result<(), String> {
    world.log("-- no more faults, and no reconciler");
    end_faults(&mut world);
    for _ in 0..ROUNDS {
        if !work_until_idle(&mut world) {
            world.violate("a worker never comes to an end");
        }
        let Due::At(time) = world.item(false).due(world.now) else { break };
        world.now = time;
    }
    if world.audit.decided < world.wanted {
        world.violate("6: a wake was acknowledged and nobody decided after it");
    }
    if world.told {
        judge_at_rest(&mut world);
    }
    world.verdict()
}

fn work_until_idle(world: &mut World) -> bool {
    const STEPS: usize = 400;
    for _ in 0..STEPS {
        for worker in 0..world.workers.len() {
            build_ends(world, worker, None);
            work(world, worker, false);
        }
        let idle = world.workers.iter().all(|worker| worker.job.is_none());
        if idle && world.item(false).due(world.now) != Due::Now {
            return true;
        }
    }
    false
}

fn judge_at_rest(world: &mut World) {
    let sight = Sight::now(world);
    let mut memory = world.memory.value.clone();
    drop_dead_build(world, &mut memory);
    let view = gather::view(world, sight, &memory);
    let decision = gather::decide_twice(world, &view);
    audit::at_rest(world, &view, &decision);
    if acts(&sweep(world)) {
        world.violate("6: the reconciler is not silent at rest");
    }
}

/// Where all shows the target, nothing follows from heads that change no watched path, heard of or swept up.
fn push_what_changes_nothing(world: &mut World) {
    if world.verdict().is_err() || !quiet::shows_the_target(world) {
        return;
    }
    let done = |world: &World| (world.builds(), world.audit.automatic_commits);
    let before = done(world);
    for delivery in [Delivery::Once, Delivery::Lost] {
        apply(world, Op::Push(Touch::Nothing, delivery));
        if delivery == Delivery::Lost && acts(&sweep(world)) {
            world.violate("6: the reconciler is not silent about a head that changes no watched path");
        }
        work_until_idle(world);
    }
    if done(world) != before {
        world.violate("6: a build or a commit follows from heads that change no watched path");
    }
}

/// Plays `ops` from a new world to its rest.
pub(crate) fn play(setup: Setup, ops: &[Op]) -> Result<World, String> {
    let mut world = World::new(setup);
    for op in ops {
        apply(&mut world, *op);
        world.verdict()?;
    }
    live_on_wakes(world.clone())?;
    come_to_rest(&mut world);
    push_what_changes_nothing(&mut world);
    world.verdict()?;
    Ok(world)
}
