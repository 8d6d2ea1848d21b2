use super::*;
use fabrique_core::quantity::Millicores;

use crate::testing::{AppDaemon, PATIENCE, rules};

const START: Timestamp = Timestamp(1_000_000);

fn at(seconds: u64) -> Timestamp {
    START.after(Duration::from_secs(seconds))
}

fn app(name: &str) -> AppName {
    AppName::parse(name).unwrap()
}

fn atlas() -> TrustDomain {
    TrustDomain::parse("atlas").unwrap()
}

fn pool_with(daemons: Vec<Daemon>) -> Pool {
    pool_by(rules(), daemons)
}

fn pool_by(rules: Rules, daemons: Vec<Daemon>) -> Pool {
    let mut pool = Pool::new(rules);
    pool.resync(daemons, START);
    pool
}

/// Without pods kept ahead, so that only what the test is about happens.
fn quiet() -> Rules {
    let mut rules = rules();
    rules.pool.warm = 0;
    rules
}

fn claims(actions: &[Action]) -> Vec<u16> {
    let seat = |action: &Action| match action {
        Action::Claim { seat, .. } => Some(*seat),
        Action::Create { .. }
        | Action::Release { .. }
        | Action::Renew { .. }
        | Action::Look { .. }
        | Action::Delete { .. } => None,
    };
    actions.iter().filter_map(seat).collect()
}

fn creates(actions: &[Action]) -> Vec<u16> {
    let seat = |action: &Action| match action {
        Action::Create { seat, .. } => Some(*seat),
        Action::Claim { .. }
        | Action::Release { .. }
        | Action::Renew { .. }
        | Action::Look { .. }
        | Action::Delete { .. } => None,
    };
    actions.iter().filter_map(seat).collect()
}

fn deletes(actions: &[Action]) -> Vec<(u16, Retirement)> {
    let seat = |action: &Action| match action {
        Action::Delete { seat, why, .. } => Some((*seat, why.clone())),
        Action::Claim { .. }
        | Action::Create { .. }
        | Action::Release { .. }
        | Action::Renew { .. }
        | Action::Look { .. } => None,
    };
    actions.iter().filter_map(seat).collect()
}

#[test]
fn an_app_gets_the_daemon_that_has_its_cache() {
    let daemons = (0..4).map(|seat| AppDaemon::ready(seat).apps(&[&format!("app-{seat}")]).daemon());
    let mut pool = pool_by(quiet(), daemons.collect());
    for seat in [2, 0, 3] {
        pool.join(app(&format!("app-{seat}")), atlas(), START);
        assert_eq!(claims(&pool.decide(START, 0.0)), [seat]);
    }
}

#[test]
fn a_busy_warm_daemon_is_waited_for_a_little_and_then_another_is_taken() {
    let busy = AppDaemon::ready(0).apps(&["citation"]).claimed_by("worker-2").daemon();
    let mut pool = pool_by(quiet(), vec![busy, AppDaemon::ready(1).daemon()]);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(pool.decide(at(2), 0.0), []);
    assert_eq!(claims(&pool.decide(at(3), 0.0)), [1]);
}

#[test]
fn a_cold_daemon_is_made_at_once_where_there_is_none_and_after_a_wait_where_all_are_busy() {
    let mut pool = pool_by(quiet(), vec![]);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(creates(&pool.decide(START, 0.0)), [0]);
    // It is on its way: not again.
    assert_eq!(pool.decide(at(1), 0.0), []);

    let mut pool = pool_by(quiet(), vec![AppDaemon::ready(0).claimed_by("worker-2").daemon()]);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(pool.decide(at(2), 0.0), []);
    assert_eq!(creates(&pool.decide(at(3), 0.0)), [1]);
}

#[test]
fn ready_daemons_are_kept_ahead_of_demand() {
    let mut pool = pool_with(vec![AppDaemon::ready(0).daemon()]);
    // A daemon that never built anything for anybody is no reason to make more.
    assert_eq!(pool.decide(START, 0.0), []);
    pool.join(app("citation"), atlas(), START);
    let actions = pool.decide(START, 0.0);
    assert_eq!((claims(&actions), creates(&actions)), (vec![0], vec![1]));
}

#[test]
fn idle_daemons_beyond_those_kept_ready_retire_and_a_quiet_domain_keeps_none() {
    let mut rules = rules();
    rules.pool.warm = 1;
    let built = |seat: u16| AppDaemon::ready(seat).apps(&["citation"]).builds(1);
    let idle = rules.pool.idle.as_secs();
    let mut pool = pool_by(rules.clone(), vec![built(0).idle_since(at(60)).daemon(), built(1).daemon()]);
    assert_eq!(pool.decide(at(idle - 1), 0.0), []);
    assert_eq!(deletes(&pool.decide(at(idle), 0.0)), [(1, Retirement::Idle)]);
    assert_eq!(deletes(&pool.decide(at(idle + 60), 0.0)), [(0, Retirement::Idle)]);

    rules.pool.always_warm.insert(atlas(), 1);
    let mut pool = pool_by(rules, vec![built(0).daemon()]);
    assert_eq!(pool.decide(at(idle * 2), 0.0), []);
}

#[test]
fn a_daemon_that_only_some_apps_could_take_is_none_of_those_that_are_kept_ahead() {
    let special = Resources { cpu_limit: Some(Millicores(4000)), ..rules().resources };
    let built = |seat: u16| AppDaemon::ready(seat).apps(&["citation"]).builds(1);
    let mut pool = pool_with(vec![built(0).resources(special).daemon()]);
    assert_eq!(creates(&pool.decide(START, 0.0)), [1]);
    // Nor while it is on its way: whoever asks for nothing beyond the others could not take it.
    let wishes = BuildResources { cpu_limit: special.cpu_limit, ..BuildResources::default() };
    let mut pool = pool_with(vec![]);
    pool.ask(app("citation"), atlas(), &wishes, PATIENCE, START);
    assert_eq!(creates(&pool.decide(START, 0.0)), [0]);
    pool.see(built(1).claimed_by("worker-2").daemon(), START);
    assert_eq!(creates(&pool.decide(START, 0.0)), [2]);

    // It goes when it was idle for as long as others may be, and they are kept as if it were not there.
    let mut rules = rules();
    rules.pool.always_warm.insert(atlas(), 1);
    let idle = rules.pool.idle.as_secs();
    let mut pool = pool_by(rules, vec![built(0).resources(special).daemon(), built(1).daemon()]);
    assert_eq!(pool.decide(at(idle - 1), 0.0), []);
    assert_eq!(deletes(&pool.decide(at(idle), 0.0)), [(0, Retirement::Idle)]);
}

#[test]
fn a_daemon_is_idle_only_since_its_claim_came_off() {
    let mut pool = pool_by(quiet(), vec![AppDaemon::ready(0).daemon()]);
    let idle = quiet().pool.idle.as_secs();
    pool.join(app("citation"), atlas(), at(idle - 1));
    let actions = pool.decide(at(idle - 1), 0.0);
    let [Action::Claim { claim, .. }] = &actions[..] else { panic!("{actions:?}") };
    let held = Daemon { claim: Some(claim.clone()), version: "6".into(), ..AppDaemon::ready(0).daemon() };
    let uid = held.uid.clone();
    pool.claimed(&uid, Attempt::Done(Box::new(held)), at(idle - 1)).unwrap();
    assert!(pool.give_back(&uid, false));
    let actions = pool.decide(at(idle + 60), 0.0);
    assert!(matches!(&actions[..], [Action::Release { .. }]), "{actions:?}");
}

#[test]
fn a_rootless_daemon_never_serves_two_apps() {
    let mut rules = quiet();
    rules.isolation = Isolation::Rootless;
    rules.pool.total = 2;
    let first = AppDaemon::ready(0).rootless().apps(&["citation"]).daemon();
    let mut pool = pool_by(rules, vec![first]);
    pool.join(app("other"), atlas(), START);
    assert_eq!(creates(&pool.decide(START, 0.0)), [1]);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(claims(&pool.decide(START, 0.0)), [0]);
}

#[test]
fn no_trust_domain_gets_anothers_daemon_and_idle_ones_make_room() {
    let mut rules = quiet();
    (rules.pool.total, rules.pool.per_domain) = (2, 2);
    let other = |seat: u16| AppDaemon::ready(seat).trust("other");
    let daemons = vec![other(0).daemon(), other(1).idle_since(at(10)).daemon()];
    let mut pool = pool_by(rules, daemons);
    pool.join(app("citation"), atlas(), at(20));
    assert_eq!(deletes(&pool.decide(at(20), 0.0)), [(0, Retirement::Reclaimed)]);
    // Room is on its way: the other one stays.
    assert_eq!(pool.decide(at(21), 0.0), []);
}

#[test]
fn somebody_who_waits_too_long_gets_the_next_seat_before_younger_ones() {
    let mut rules = quiet();
    (rules.pool.total, rules.pool.per_domain) = (1, 1);
    let mut pool = pool_by(rules, vec![AppDaemon::ready(0).trust("other").claimed_by("worker-2").daemon()]);
    pool.join(app("citation"), atlas(), START);
    pool.join(app("busy"), TrustDomain::parse("other").unwrap(), at(19));
    assert_eq!(pool.decide(at(19), 0.0), []);
    pool.see(AppDaemon::ready(0).trust("other").version(9).daemon(), at(20));
    assert_eq!(deletes(&pool.decide(at(20), 0.0)), [(0, Retirement::Reclaimed)]);
}

#[test]
fn a_daemon_in_doubt_is_deleted_and_never_used_again() {
    let mut pool = pool_by(quiet(), vec![AppDaemon::ready(0).daemon()]);
    let ticket = pool.join(app("citation"), atlas(), START);
    let (uid, held) = granted(&mut pool, ticket);
    assert!(pool.give_back(&uid, true));
    pool.see(Daemon { version: "50".into(), ..held }, at(1));
    pool.join(app("citation"), atlas(), at(1));
    let actions = pool.decide(at(1), 0.0);
    assert_eq!((claims(&actions), deletes(&actions)), (vec![], vec![(0, Retirement::Doubt)]));
    assert!(!pool.give_back(&uid, true), "given back twice");
}

/// Lets the one claim that is asked for succeed.
fn granted(pool: &mut Pool, wanted: Ticket) -> (Uid, Daemon) {
    let actions = pool.decide(START, 0.0);
    let [Action::Claim { uid, seat, ticket, claim, apps, builds, .. }] = actions.as_slice() else {
        panic!("{actions:?}")
    };
    assert_eq!(*ticket, wanted);
    let mut daemon = AppDaemon::ready(*seat).version(20).builds(*builds).daemon();
    (daemon.claim, daemon.apps) = (Some(claim.clone()), apps.clone());
    let grant = pool.claimed(uid, Attempt::Done(Box::new(daemon)), START).unwrap();
    assert_eq!(grant.ticket, wanted);
    (uid.clone(), grant.daemon)
}

#[test]
fn a_daemon_goes_to_the_next_one_who_waits_without_being_released_first() {
    let mut pool = pool_by(quiet(), vec![AppDaemon::ready(0).daemon()]);
    let first = pool.join(app("citation"), atlas(), START);
    let (uid, held) = granted(&mut pool, first);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(pool.decide(at(1), 0.0), []);
    assert!(pool.give_back(&uid, false));
    let actions = pool.decide(at(1), 0.0);
    assert_eq!(claims(&actions), [0]);
    assert!(
        matches!(&actions[..], [Action::Claim { claim, builds: 2, .. }] if claim.beat == 1),
        "{actions:?}"
    );

    let mut alone = pool_by(quiet(), vec![AppDaemon::ready(0).daemon()]);
    let only = alone.join(app("citation"), atlas(), START);
    let (uid, _) = granted(&mut alone, only);
    alone.give_back(&uid, false);
    assert!(
        matches!(&alone.decide(at(1), 0.0)[..], [Action::Release { version, .. }] if *version == held.version)
    );
}

#[test]
fn a_claim_is_renewed_while_a_build_runs() {
    let mut rules = quiet();
    rules.pool.claim = Duration::from_secs(90);
    let mut pool = pool_by(rules, vec![AppDaemon::ready(0).daemon()]);
    let ticket = pool.join(app("citation"), atlas(), START);
    let (uid, held) = granted(&mut pool, ticket);
    assert_eq!(pool.decide(at(29), 0.0), []);
    let actions = pool.decide(at(30), 0.0);
    assert!(matches!(&actions[..], [Action::Renew { claim, .. }] if claim.beat == 1), "{actions:?}");
    assert_eq!(pool.decide(at(31), 0.0), []);
    // It failed: again soon, not in thirty seconds.
    pool.renewed(&uid, Attempt::Failed("away".into()), at(31));
    assert_eq!(pool.decide(at(32), 0.0).len(), 1);
    let claim = Some(Claim { beat: 1, ..held.claim.clone().unwrap() });
    pool.renewed(&uid, Attempt::Done(Box::new(Daemon { claim, version: "21".into(), ..held })), at(33));
    assert_eq!(pool.decide(at(62), 0.0), []);
}

/// Twenty apps push ten times each, once a second in any order; builds of one to three seconds on four daemons.
#[test]
fn later_builds_of_an_app_find_its_cache() {
    let mut pool = pool_by(quiet(), (0..4).map(|seat| AppDaemon::ready(seat).daemon()).collect());
    let shuffled = |push: usize| fabrique_core::id::Digest::of(format!("{push}").as_bytes());
    let mut pushes: Vec<usize> = (0..200).collect();
    pushes.sort_by_key(|&push| shuffled(push));
    let (mut version, mut hits, mut later) = (100, 0, 0);
    let mut built = BTreeSet::new();
    let mut running: BTreeMap<Uid, u64> = BTreeMap::new();
    for second in 0..400 {
        if let Some(push) = pushes.pop() {
            pool.join(app(&format!("app-{}", push % 20)), atlas(), at(second));
        }
        let over: Vec<Uid> =
            running.iter().filter(|&(_, &end)| end <= second).map(|(uid, _)| uid.clone()).collect();
        for uid in over {
            running.remove(&uid);
            assert!(pool.give_back(&uid, false));
        }
        for action in pool.decide(at(second), 0.0) {
            version += 1;
            match action {
                Action::Claim { uid, seat, claim, apps, builds, .. } => {
                    let known = pool.daemons().find(|daemon| daemon.uid == uid).unwrap().clone();
                    if !built.insert(apps[0].clone()) {
                        later += 1;
                        hits += usize::from(known.apps.contains(&apps[0]));
                    }
                    let daemon =
                        Daemon { claim: Some(claim), apps, builds, version: version.to_string(), ..known };
                    assert_eq!(daemon.seat, seat);
                    pool.claimed(&uid, Attempt::Done(Box::new(daemon)), at(second)).unwrap();
                    running.insert(uid, second + 1 + u64::from(builds % 3));
                }
                Action::Release { uid, .. } => {
                    let known = pool.daemons().find(|daemon| daemon.uid == uid).unwrap().clone();
                    let idle_since = at(second);
                    let daemon = Daemon { claim: None, idle_since, version: version.to_string(), ..known };
                    pool.released(&uid, Attempt::Done(Box::new(daemon)), at(second));
                }
                Action::Create { .. }
                | Action::Renew { .. }
                | Action::Look { .. }
                | Action::Delete { .. } => {
                    panic!("{action:?}")
                }
            }
        }
    }
    assert_eq!((pool.waiting(), later), (0, 180));
    assert!(hits * 100 >= later * 95, "{hits} of {later}");
}

#[test]
fn what_nobody_holds_is_adopted_with_its_cache_and_a_claim_of_an_earlier_start_is_somebody_elses() {
    let mut former = AppDaemon::ready(0).claimed_by("worker-1").daemon();
    former.claim.as_mut().unwrap().holder.incarnation = "before".into();
    let mut pool = pool_by(quiet(), vec![former, AppDaemon::ready(1).apps(&["citation"]).daemon()]);
    assert_eq!(pool.decide(START, 0.0), []);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(claims(&pool.decide(START, 0.0)), [1]);
}

#[test]
fn a_claim_whose_answer_was_lost_is_found_and_used() {
    let mut pool = pool_by(quiet(), vec![AppDaemon::ready(0).daemon()]);
    pool.join(app("citation"), atlas(), START);
    let actions = pool.decide(START, 0.0);
    let [Action::Claim { uid, claim, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(pool.claimed(uid, Attempt::Failed("timeout".into()), START), None);
    let mut ours = AppDaemon::ready(0).version(9).daemon();
    ours.claim = Some(claim.clone());
    pool.see(ours, START);
    assert_eq!(claims(&pool.decide(START, 0.0)), [0]);
}

#[test]
fn a_lost_race_waits_for_the_view_to_change() {
    let mut pool = pool_by(quiet(), vec![AppDaemon::ready(0).daemon()]);
    pool.join(app("citation"), atlas(), START);
    let actions = pool.decide(START, 0.0);
    let [Action::Claim { uid, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(pool.claimed(uid, Attempt::Conflict, START), None);
    assert_eq!(claims(&pool.decide(START, 0.0)), Vec::<u16>::new());
    pool.see(AppDaemon::ready(0).version(9).daemon(), START);
    assert_eq!(claims(&pool.decide(START, 0.0)), [0]);
}

#[test]
fn old_daemons_get_no_further_build() {
    let rules = quiet();
    let life = rules.pool.life.as_secs();
    let spent = AppDaemon::ready(2).builds(rules.pool.builds).daemon();
    let mut pool = pool_by(rules.clone(), vec![spent]);
    assert_eq!(deletes(&pool.decide(START, 0.0)), [(2, Retirement::Spent)]);
    let mut pool = pool_by(rules, vec![AppDaemon::ready(3).idle_since(at(life)).daemon()]);
    assert_eq!(deletes(&pool.decide(at(life), 0.0)), [(3, Retirement::Spent)]);
}

#[test]
fn a_pod_that_never_starts_is_given_up_and_its_reason_told() {
    let rules = quiet();
    let overdue = rules.pool.start.as_secs();
    let cause = Cause::Unschedulable("0/1 nodes are available".into());
    let mut pool =
        pool_by(rules, vec![AppDaemon::ready(0).phase(Phase::Starting(Some(cause.clone()))).daemon()]);
    let ticket = pool.join(app("citation"), atlas(), START);
    assert_eq!(pool.decide(START, 0.0), []);
    assert!(pool.why_waiting(ticket).contains("0/1 nodes"), "{}", pool.why_waiting(ticket));
    let actions = pool.decide(at(overdue), 0.0);
    assert_eq!(deletes(&actions), [(0, Retirement::Overdue(Some(cause)))]);
    pool.gone(&Uid("uid-0".into()), None, START);
    // Not at once: something is wrong that a pause may mend.
    assert_eq!(pool.decide(at(overdue), 0.0), []);
    assert!(pool.why_waiting(ticket).contains("0/1 nodes"), "{}", pool.why_waiting(ticket));
    assert_eq!(creates(&pool.decide(at(overdue + 1), 0.0)), [0]);
}

#[test]
fn attempts_that_fail_come_ever_more_seldom() {
    let mut pool = pool_by(quiet(), vec![]);
    let ticket = pool.join(app("citation"), atlas(), START);
    let mut attempts = Vec::new();
    for second in 0..600 {
        for seat in creates(&pool.decide(at(second), 0.5)) {
            attempts.push(second);
            let number = attempts.len().try_into().unwrap();
            pool.created(seat, number, Attempt::Failed("quota exceeded".into()), at(second), 0.5);
        }
    }
    assert!((15..40).contains(&attempts.len()), "{attempts:?}");
    assert_eq!(pool.why_waiting(ticket), "quota exceeded");
}

#[test]
fn a_seat_that_somebody_else_filled_is_left_until_the_view_shows_it() {
    let mut pool = pool_by(quiet(), vec![]);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(creates(&pool.decide(START, 0.0)), [0]);
    pool.created(0, 1, Attempt::Conflict, START, 0.0);
    assert_eq!(pool.decide(START, 0.0), []);
    // It was one of those that are just going: the seat is free again.
    assert_eq!(creates(&pool.decide(at(1), 0.0)), [0]);
}

#[test]
fn an_app_that_ran_out_of_memory_gets_a_larger_daemon_up_to_its_limit() {
    let mut rules = quiet();
    let limit = Bytes::gibi(3);
    rules.apps.insert(app("citation"), AppMemory { start: None, limit });
    let mut pool = pool_by(rules, vec![AppDaemon::ready(0).daemon()]);
    assert_eq!(pool.grow(&app("citation")), Some(Bytes::gibi(2)));
    assert_eq!(pool.grow(&app("citation")), Some(limit));
    assert_eq!(pool.grow(&app("citation")), None);
    assert_eq!(pool.grow(&app("other")), None);
    pool.join(app("citation"), atlas(), START);
    let actions = pool.decide(START, 0.0);
    assert!(
        matches!(&actions[..], [Action::Create { resources, .. }] if resources.memory == limit),
        "{actions:?}"
    );
}

#[test]
fn how_a_daemon_ended_is_told_after_it_is_gone() {
    let mut pool = pool_by(quiet(), vec![AppDaemon::ready(0).daemon()]);
    let (seat, address) = (0, AppDaemon::address(0));
    assert_eq!(pool.fate(seat, address), Fate::Alive { node: Some("worker-1".into()) });
    let last = AppDaemon::ready(0).phase(Phase::Over(Cause::Evicted)).daemon();
    pool.gone(&Uid("uid-0".into()), Some(&last), START);
    pool.see(Daemon { uid: Uid("uid-9".into()), ..AppDaemon::ready(0).on(9).daemon() }, START);
    let end = End { cause: Cause::Evicted, node: Some("worker-1".into()), app: None };
    assert_eq!(pool.fate(seat, address), Fate::Over(end));
}

#[test]
fn an_older_view_is_no_news() {
    let mut pool = pool_by(quiet(), vec![AppDaemon::ready(0).version(10).daemon()]);
    pool.see(AppDaemon::ready(0).version(9).claimed_by("worker-2").daemon(), START);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(claims(&pool.decide(START, 0.0)), [0]);
}

/// Removed before it was scheduled, while its certificate was still being written.
#[test]
fn a_pod_that_is_gone_is_not_brought_back_by_the_answer_of_whoever_made_it() {
    let mut pool = pool_by(quiet(), vec![]);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(creates(&pool.decide(START, 0.0)), [0]);
    let made = AppDaemon::ready(0).phase(Phase::Starting(None)).daemon();
    pool.see(made.clone(), at(1));
    pool.gone(&made.uid, None, at(2));
    assert_eq!(creates(&pool.decide(at(2), 0.0)), [0], "the seat is empty");
    pool.created(0, 1, Attempt::Done(Box::new(made)), at(3), 0.0);
    assert_eq!(pool.daemons().count(), 0);
    // Nor does it stand for the one that is being made now.
    assert_eq!(pool.decide(at(4), 0.0), []);
}

#[test]
fn a_pod_that_was_never_seen_and_is_gone_is_not_brought_back_either() {
    let mut pool = pool_by(quiet(), vec![]);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(creates(&pool.decide(START, 0.0)), [0]);
    let made = AppDaemon::ready(0).phase(Phase::Starting(None)).daemon();
    pool.gone(&made.uid, Some(&made), at(1));
    pool.created(0, 1, Attempt::Done(Box::new(made)), at(2), 0.0);
    assert_eq!(pool.daemons().count(), 0);
    assert_eq!(creates(&pool.decide(at(2), 0.0)), [0], "nobody waits for it");
}

#[test]
fn late_answers_of_renewals_and_looks_bring_no_daemon_back() {
    let mut pool = pool_by(quiet(), vec![AppDaemon::ready(0).daemon()]);
    let ticket = pool.join(app("citation"), atlas(), START);
    let (uid, held) = granted(&mut pool, ticket);
    pool.gone(&uid, None, at(1));
    pool.renewed(&uid, Attempt::Done(Box::new(held.clone())), at(2));
    pool.looked(&uid, Attempt::Done(Box::new(held)), at(2));
    assert_eq!(pool.daemons().count(), 0);
}

/// The watch had to start over, and its list is from before the pod was made.
#[test]
fn a_pod_that_an_older_list_lacks_is_known_again_as_soon_as_the_watch_tells_of_it() {
    let mut pool = pool_by(quiet(), vec![]);
    pool.join(app("citation"), atlas(), START);
    assert_eq!(creates(&pool.decide(START, 0.0)), [0]);
    let made = AppDaemon::ready(0).phase(Phase::Starting(None)).daemon();
    pool.created(0, 1, Attempt::Done(Box::new(made.clone())), at(1), 0.0);
    pool.resync(vec![], at(2));
    pool.see(made.clone(), at(2));
    assert_eq!((pool.daemons().count(), pool.decide(at(2), 0.0)), (1, vec![]));
    // And so is one that the next list has.
    pool.resync(vec![], at(3));
    pool.resync(vec![made], at(4));
    assert_eq!((pool.daemons().count(), pool.decide(at(4), 0.0)), (1, vec![]));
}

/// Whatever the reason why the pool believes in it.
#[test]
fn a_pod_that_the_api_server_does_not_know_any_more_is_forgotten() {
    let over = AppDaemon::ready(0).phase(Phase::Over(Cause::Evicted)).daemon();
    let mut pool = pool_by(quiet(), vec![over]);
    assert_eq!(deletes(&pool.decide(START, 0.0)), [(0, Retirement::Over(Cause::Evicted))]);
    pool.deleted(&Uid("uid-0".into()), &Attempt::Conflict, START);
    assert_eq!(deletes(&pool.decide(at(1), 0.0)), [(0, Retirement::Over(Cause::Evicted))]);
    pool.deleted(&Uid("uid-0".into()), &Attempt::Gone, at(1));
    assert_eq!((pool.daemons().count(), pool.decide(at(2), 0.0)), (0, vec![]));
}
