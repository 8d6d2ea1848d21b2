//! Histories that are told on purpose, where random ones would seldom come by.

use fabrique_core::id::{Channel, Digest};

use crate::history::{Command, Op, PersonOp, apply, come_to_rest, live_on_wakes, play, sweep};
use crate::ids::{Rev, key};
use crate::source::Touch;
use crate::worker::{At, Building, Ended, Job, Worker};
use crate::world::{Delivery, EnvironmentSetup, Setup, World};

fn one_environment() -> Setup {
    let environment = EnvironmentSetup { follows_builds: true, follows_head: false };
    Setup { environments: vec![environment], heedless: false }
}

const PUSH: Op = Op::Push(Touch::Watched, Delivery::Once);
const WORK: Op = Op::Work { worker: 0, steps: 40 };
const BUILT: Op = Op::BuildEnds { worker: 0, kind: None };

fn deployed(world: &World) -> Option<Rev> {
    world.apps.now()[0].image.shown.as_ref().map(|shown| shown.revision)
}

/// What the reconciler would say now.
fn reason(world: &World) -> String {
    let mut world = world.clone();
    sweep(&mut world);
    world.last_line()
}

/// Panics with the history when an invariant was broken.
fn holds(world: &World) {
    if let Err(report) = world.verdict() {
        panic!("{report}");
    }
}

fn told(ops: &[Op]) -> World {
    let mut world = World::new(one_environment());
    for op in ops {
        apply(&mut world, *op);
    }
    holds(&world);
    world
}

#[test]
fn a_push_is_built_and_deployed_in_one_commit() {
    let world = told(&[PUSH, WORK, BUILT, WORK]);
    assert_eq!(deployed(&world), Some(1));
    assert_eq!(world.audit.automatic_commits, 1);
}

#[test]
fn every_completion_order_of_five_builds_ends_on_the_newest() {
    for order in permutations(5) {
        for all_read_first in [false, true] {
            let world = finish_in(&order, all_read_first);
            holds(&world);
            assert_eq!(
                deployed(&world),
                Some(5),
                "{order:?}, all read before the first push: {all_read_first}"
            );
        }
    }
}

/// Five workers hold a finished build each, of five commits in a row, and write back in this order.
fn finish_in(order: &[usize], all_read_first: bool) -> World {
    let mut world = World::new(Setup { heedless: true, ..one_environment() });
    for parent in 0..5 {
        let rev = world.source.commit(vec![parent], Touch::Watched);
        world.source.point(Some(rev));
    }
    world.workers = (1..=5).map(|rev| finished(&mut world, rev)).collect();
    if all_read_first {
        for worker in order {
            steps_until(&mut world, *worker, |at| matches!(at, At::Push(_) | At::ReadApps));
        }
    }
    for worker in order {
        steps_until(&mut world, *worker, |at| matches!(at, At::ReadApps));
    }
    world
}

fn finished(world: &mut World, rev: Rev) -> Worker {
    let build = world.next_build();
    let digest = Digest::of(build.as_str().as_bytes());
    world.registry.insert(digest.clone());
    let key = key(&world.app, rev, 0);
    let building = Building { build, key, rev, ended: Some(Ended::Built(digest.clone())) };
    let job = Job { token: 0, noted: world.wanted, at: At::Record(digest), building: Some(building) };
    Worker { stopped: false, job: Some(job) }
}

fn steps_until(world: &mut World, worker: usize, done: fn(&At) -> bool) {
    for _ in 0..100 {
        if world.workers[worker].job.as_ref().is_none_or(|job| done(&job.at)) {
            return;
        }
        crate::worker::step(world, worker, false);
    }
    panic!("the write-back never ends");
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(n - 1);
    shorter
        .iter()
        .flat_map(|order| {
            (0..n).map(|at| {
                let mut longer = order.clone();
                longer.insert(at, n - 1);
                longer
            })
        })
        .collect()
}

#[test]
fn after_three_supersedes_in_a_row_the_build_is_finished_and_the_newest_follows() {
    let mut world = told(&[PUSH, WORK]);
    for _ in 0..3 {
        apply(&mut world, PUSH);
        apply(&mut world, WORK);
    }
    assert_eq!(world.memory.value.supersedes, 3);
    let running = |world: &World| world.memory.value.running.as_ref().map(|running| running.revision.clone());
    let fourth = running(&world);
    apply(&mut world, PUSH);
    apply(&mut world, WORK);
    assert_eq!(running(&world), fourth, "the fourth build must not be superseded");
    apply(&mut world, BUILT);
    apply(&mut world, WORK);
    assert_eq!(deployed(&world), Some(4));
    assert_eq!(running(&world), Some(crate::ids::revision(5)));
    come_to_rest(&mut world);
    holds(&world);
    assert_eq!(deployed(&world), Some(5));
}

#[test]
fn a_head_that_changes_no_watched_path_is_said_to_and_left_alone() {
    let quiet = Op::Push(Touch::Nothing, Delivery::Lost);
    let world = told(&[PUSH, WORK, BUILT, WORK, quiet, quiet]);
    assert!(reason(&world).contains("is silent: no watched path changed since c00000000001"));
}

#[test]
fn what_changes_and_changes_back_between_two_sweeps_is_not_a_difference() {
    let back = Op::Push(Touch::Restore(1), Delivery::Lost);
    let world = told(&[PUSH, WORK, BUILT, WORK, Op::Push(Touch::Watched, Delivery::Lost), back]);
    assert!(reason(&world).contains("is silent: no watched path changed"));
}

#[test]
fn a_rewound_branch_waits_until_a_newer_head() {
    let rewound = [PUSH, WORK, BUILT, WORK, Op::Rewind(1, Delivery::Once), WORK];
    let world = told(&rewound);
    assert_eq!(deployed(&world), Some(1));
    assert!(reason(&world).contains("is silent: rewound"));
    let newer = [Op::Jump(1, Delivery::Once), WORK, PUSH, WORK, BUILT, WORK];
    assert_eq!(deployed(&told(&[&rewound[..], &newer].concat())), Some(2));
}

#[test]
fn a_rewound_branch_moves_on_release() {
    let release = Op::Command(Command::Release);
    let ops = [PUSH, WORK, BUILT, WORK, Op::Rewind(1, Delivery::Once), release, WORK, BUILT, WORK];
    assert_eq!(deployed(&told(&ops)), Some(0));
}

#[test]
fn after_a_force_push_the_head_wins() {
    let force = Op::ForcePush { back: 1, touch: Touch::Watched, delivery: Delivery::Once };
    assert_eq!(deployed(&told(&[PUSH, WORK, BUILT, WORK, force, WORK, BUILT, WORK])), Some(2));
}

#[test]
fn a_build_of_one_side_never_replaces_the_deployed_other_side_of_a_merge() {
    let force = Op::ForcePush { back: 1, touch: Touch::Watched, delivery: Delivery::Once };
    let merge = Op::MergeDeployed { environment: 0, delivery: Delivery::Lost };
    let mut world = told(&[PUSH, WORK, BUILT, WORK, force, WORK, merge, BUILT]);
    steps_until(&mut world, 0, |at| matches!(at, At::EndBuild));
    holds(&world);
    assert_eq!((deployed(&world), world.source.head()), (Some(1), Some(3)));
    come_to_rest(&mut world);
    holds(&world);
    assert_eq!((deployed(&world), world.audit.automatic_commits), (Some(3), 2));
}

#[test]
fn a_head_that_leaves_and_comes_back_is_deployed_again_from_its_record() {
    let force = Op::ForcePush { back: 1, touch: Touch::Watched, delivery: Delivery::Once };
    let away = [PUSH, WORK, BUILT, WORK, force, WORK, BUILT, WORK];
    let world = told(&[&away[..], &[Op::Jump(1, Delivery::Once), WORK]].concat());
    assert_eq!(deployed(&world), Some(1));
    assert_eq!(world.records.len(), 2, "the first build's record must be adopted, not built again");
}

#[test]
fn a_build_is_committed_once_for_each_arrival_of_its_target() {
    let force = Op::ForcePush { back: 1, touch: Touch::Watched, delivery: Delivery::Once };
    let mut world = told(&[PUSH, WORK, BUILT, WORK, force, WORK, BUILT, WORK]);
    for (arrivals, target) in (3..).zip([1, 2, 1, 2, 1]) {
        for op in [Op::Jump(target, Delivery::Twice), WORK, Op::Sweep, WORK, Op::Crash(0), Op::Sweep, WORK] {
            apply(&mut world, op);
        }
        holds(&world);
        assert_eq!((deployed(&world), world.audit.automatic_commits), (Some(target), arrivals));
    }
    assert_eq!(world.records.len(), 2, "each build's record must be adopted, not built again");
}

#[test]
fn a_push_during_the_write_back_is_built_and_deployed_without_the_reconciler() {
    let mut world = told(&[PUSH, WORK, BUILT]);
    steps_until(&mut world, 0, |at| matches!(at, At::Settle));
    for op in [PUSH, WORK, BUILT, WORK] {
        apply(&mut world, op);
    }
    holds(&world);
    assert_eq!((deployed(&world), world.audit.decided), (Some(2), world.wanted));
    live_on_wakes(world).unwrap_or_else(|report| panic!("{report}"));
}

#[test]
fn what_a_person_removed_stays_away_until_a_newer_target() {
    for removal in [PersonOp::Reset(1), PersonOp::RevertLast] {
        let removed = [PUSH, WORK, BUILT, WORK, Op::Person(removal, Delivery::Once), WORK, Op::Sweep, WORK];
        let world = told(&removed);
        assert_eq!(deployed(&world), None);
        assert!(reason(&world).contains("is silent: taken back"));
        let newer = told(&[&removed[..], &[PUSH, WORK, BUILT, WORK]].concat());
        assert_eq!(deployed(&newer), Some(2));
    }
}

#[test]
fn what_a_person_removed_returns_on_release_and_can_be_removed_again() {
    let remove = Op::Person(PersonOp::Reset(1), Delivery::Once);
    let released = [PUSH, WORK, BUILT, WORK, remove, WORK, Op::Command(Command::Release), WORK];
    assert_eq!(deployed(&told(&released)), Some(1));
    let world = told(&[&released[..], &[remove, WORK, Op::Sweep, WORK]].concat());
    assert_eq!(deployed(&world), None);
}

#[test]
fn what_a_person_removed_stays_away_although_the_restored_forge_lost_it() {
    let removed = [PUSH, PUSH, PUSH, WORK, BUILT, WORK, Op::Person(PersonOp::Reset(1), Delivery::Once), WORK];
    let restored = [Op::Rewind(1, Delivery::Once), Op::Collect, WORK, BUILT, WORK];
    assert_eq!(deployed(&told(&[&removed[..], &restored].concat())), None);
}

#[test]
fn a_commit_whose_answer_was_lost_is_read_back_and_not_made_twice() {
    let world = told(&[PUSH, WORK, BUILT, Op::LoseAnswer, WORK, Op::Sweep, WORK]);
    assert_eq!((deployed(&world), world.audit.automatic_commits), (Some(1), 1));
}

#[test]
fn a_commit_that_was_removed_before_it_was_read_back_counts_as_taken_back() {
    let mut world = told(&[PUSH, WORK, BUILT]);
    steps_until(&mut world, 0, |at| matches!(at, At::Settle));
    apply(&mut world, Op::Crash(0));
    apply(&mut world, Op::Person(PersonOp::Reset(1), Delivery::Once));
    apply(&mut world, WORK);
    assert_eq!(deployed(&world), None);
    assert!(reason(&world).contains("is silent: taken back"));
    holds(&world);
}

#[test]
fn a_crash_before_or_after_any_effect_still_ends_with_one_commit() {
    for crash_at in 0..40 {
        let mut ops = vec![PUSH, Op::Work { worker: 0, steps: crash_at.min(12) }, BUILT];
        ops.push(Op::Work { worker: 0, steps: crash_at.saturating_sub(12) });
        ops.push(Op::Crash(0));
        let world = play(one_environment(), &ops).unwrap_or_else(|report| panic!("{report}"));
        let ends = (deployed(&world), world.audit.automatic_commits);
        assert_eq!(ends, (Some(1), 1), "crash after {crash_at} steps");
    }
}

#[test]
fn a_held_channel_does_not_move_and_its_neighbour_does() {
    let both = EnvironmentSetup { follows_builds: true, follows_head: true };
    let mut world = World::new(Setup { environments: vec![both], heedless: false });
    let hold = PersonOp::Hold { environment: 0, channel: Channel::Image, seconds: None };
    let touch_both = Op::Push(Touch::Both, Delivery::Once);
    let ops = [PUSH, WORK, BUILT, WORK, Op::Person(hold, Delivery::Once), touch_both, WORK];
    for op in ops {
        apply(&mut world, op);
    }
    holds(&world);
    let state = &world.apps.now()[0];
    let shown = |channel: Channel| state.channel(channel).shown.as_ref().map(|shown| shown.revision);
    assert_eq!((shown(Channel::Image), shown(Channel::Infra)), (Some(1), Some(2)));
}

#[test]
fn a_drifted_binding_stops_its_environment_until_repair() {
    let drift = PersonOp::Drift { environment: 0, channel: Channel::Image, to: 0, binding: true };
    let drifted = [PUSH, WORK, BUILT, WORK, Op::Person(drift, Delivery::Once), PUSH, WORK];
    let world = told(&drifted);
    assert_eq!(deployed(&world), Some(1));
    let repaired = [Op::Command(Command::Repair), WORK, BUILT, WORK];
    assert_eq!(deployed(&told(&[&drifted[..], &repaired].concat())), Some(2));
}

#[test]
fn a_rebuild_replaces_the_image_of_the_same_revision_once() {
    let rebuild = Op::Command(Command::Rebuild);
    let world = told(&[PUSH, WORK, BUILT, WORK, rebuild, WORK, BUILT, WORK, Op::Sweep, WORK]);
    assert_eq!((deployed(&world), world.audit.automatic_commits), (Some(1), 2));
    let committed = world.memory.value.channel(&crate::ids::environment_name(0), Channel::Image).committed;
    assert_eq!(committed.and_then(|committed| committed.key), Some(key(&world.app, 1, 1)));
}

#[test]
fn a_push_that_changes_no_watched_path_does_not_stop_a_build() {
    let quiet = Op::Push(Touch::Nothing, Delivery::Once);
    let world = told(&[PUSH, WORK, quiet, WORK]);
    let running = world.memory.value.running.as_ref().map(|running| running.revision.clone());
    assert_eq!(running, Some(crate::ids::revision(1)));
}

#[test]
fn a_hold_stops_the_build_that_nothing_else_needs() {
    let hold = PersonOp::Hold { environment: 0, channel: Channel::Image, seconds: None };
    let world = told(&[PUSH, WORK, Op::Person(hold, Delivery::Once), WORK]);
    assert_eq!(world.memory.value.running, None);
    assert!(reason(&world).contains("is silent: held by ada"));
}

#[test]
fn a_hold_with_an_end_lets_the_newest_target_through_afterwards() {
    let hold = PersonOp::Hold { environment: 0, channel: Channel::Image, seconds: Some(60) };
    let world = play(one_environment(), &[Op::Person(hold, Delivery::Once), PUSH, WORK]);
    let world = world.unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(deployed(&world), Some(1));
}

#[test]
fn a_source_that_cannot_be_built_waits_for_a_newer_one() {
    let broken = Op::Push(Touch::Broken, Delivery::Once);
    let failed = [broken, WORK, BUILT, WORK];
    assert!(reason(&told(&failed)).contains("is silent: failed by its source"));
    assert_eq!(deployed(&told(&[&failed[..], &[PUSH, WORK, BUILT, WORK]].concat())), Some(2));
}

#[test]
fn a_cancelled_build_stays_cancelled_until_retry() {
    let cancelled = [PUSH, WORK, Op::Command(Command::Cancel), WORK];
    assert!(reason(&told(&cancelled)).contains("is silent: cancelled by ada"));
    let retried = [Op::Command(Command::Retry), WORK, BUILT, WORK];
    assert_eq!(deployed(&told(&[&cancelled[..], &retried].concat())), Some(1));
}

#[test]
fn a_digest_that_the_registry_lost_before_its_commit_is_built_again() {
    let mut world = told(&[PUSH, WORK, BUILT]);
    steps_until(&mut world, 0, |at| matches!(at, At::GuardApps));
    for op in [Op::LoseDigest(0), WORK, BUILT, WORK] {
        apply(&mut world, op);
    }
    holds(&world);
    assert_eq!((deployed(&world), world.audit.automatic_commits), (Some(1), 1));
}
