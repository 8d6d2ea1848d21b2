use fabrique_core::decision::Reason;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{EnvironmentName, RepoName};

use super::*;

const PUSHED: Timestamp = Timestamp(10_000);

fn app() -> AppName {
    AppName::parse("citation").unwrap()
}

fn revision(digits: &str) -> Revision {
    Revision::parse(&digits.repeat(10)).unwrap()
}

fn digest() -> Digest {
    Digest::parse(&format!("sha256:{}", "2e".repeat(32))).unwrap()
}

fn build() -> BuildId {
    BuildId::parse("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap()
}

fn event(millis: u64, body: EventBody) -> Event {
    Event { id: format!("{millis:08}"), at: Timestamp(10_000 + millis), trace: None, body }
}

fn delivery(millis: u64, after: &Revision) -> Event {
    let repo = RepoName::parse("atlas/citation").unwrap();
    let reference = "refs/heads/main".to_owned();
    let (after, delivery) = (after.to_string(), String::new());
    event(millis, EventBody::Delivery { repo, reference, after, delivery, woken: vec![app()], ignored: None })
}

fn decision(millis: u64, target: &Revision) -> Event {
    let reason = format!("{} is not built yet", target.short());
    let target = Some(target.clone());
    let action = "build".to_owned();
    event(millis, EventBody::Decision { app: app(), target, action, reason, dead_letter: false })
}

fn phase(millis: u64, of: &Revision, phase: BuildPhase) -> Event {
    event(millis, EventBody::Build { app: app(), build: build(), revision: of.clone(), phase })
}

fn step(millis: u64) -> Event {
    let (name, took) = ("[2/3] RUN make".to_owned(), 400);
    event(
        millis,
        EventBody::Step { app: app(), build: build(), name, cached: false, millis: took, error: None },
    )
}

fn commit(millis: u64, of: &Revision) -> Event {
    event(
        millis,
        EventBody::Commit {
            app: app(),
            environment: EnvironmentName::parse("prod").unwrap(),
            channel: "image".to_owned(),
            commit: revision("c0de"),
            revision: of.clone(),
            digest: Some(digest()),
        },
    )
}

fn fold(events: Vec<Event>) -> Timeline {
    Timeline::fold(&app(), &revision("1b1d"), Some(PUSHED), events)
}

#[test]
fn a_push_is_told_from_its_delivery_to_its_commit() {
    let this = revision("1b1d");
    let committed = BuildPhase::Committed { digest: digest(), commits: vec![revision("c0de")] };
    let timeline = fold(vec![
        phase(1_610, &this, committed),
        delivery(220, &this),
        decision(260, &this),
        phase(300, &this, BuildPhase::Building),
        step(900),
        phase(1_200, &this, BuildPhase::Pushed { digest: digest() }),
        commit(1_600, &this),
    ]);
    assert_eq!(timeline.exit(), Exit::Ok);
    insta::assert_snapshot!(timeline, @r"
      0.000 s  push      1b1d1b1d1b1d arrived at the forge
      0.220 s  delivery  refs/heads/main at 1b1d1b1d1b1d wakes citation
      0.220 s  wake      citation is to be looked at
      0.260 s  decision  build 1b1d1b1d1b1d: 1b1d1b1d1b1d is not built yet
      0.300 s  build     building
      0.900 s  step      [2/3] RUN make 0.4 s
      1.200 s  digest    sha256:2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e
      1.600 s  commit    image of prod shows 1b1d1b1d1b1d as sha256:2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e (commit c0dec0dec0de)
      1.610 s  build     committed sha256:2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e in c0dec0dec0de
    committed citation 1b1d1b1d1b1d sha256:2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e in 1.6 s
    ");
}

#[test]
fn other_pushes_and_doubled_events_leave_no_trace() {
    let this = revision("1b1d");
    let timeline = fold(vec![
        delivery(220, &this),
        delivery(220, &this),
        delivery(230, &revision("aaaa")),
        decision(240, &revision("aaaa")),
        phase(
            250,
            &revision("aaaa"),
            BuildPhase::Failed { kind: FailureKind::Source, message: String::new() },
        ),
    ]);
    assert_eq!(timeline.rows.len(), 3);
    assert_eq!((timeline.end.clone(), timeline.exit()), (None, Exit::Findings));
}

#[test]
fn an_adopted_image_is_committed_without_a_build() {
    let this = revision("1b1d");
    let timeline = fold(vec![delivery(220, &this), commit(400, &this)]);
    let end = End::Committed { digest: digest(), commits: vec![revision("c0de")], after_ms: 400 };
    assert_eq!(timeline.end, Some(end));
}

#[test]
fn a_failed_build_ends_the_timeline_with_its_reason() {
    let this = revision("1b1d");
    let failed = BuildPhase::Failed { kind: FailureKind::Source, message: "exit code 2".to_owned() };
    let timeline = fold(vec![delivery(220, &this), phase(900, &this, failed), decision(950, &this)]);
    let shown = timeline.to_string();
    assert_eq!(
        shown.lines().last().unwrap(),
        "not committed citation 1b1d1b1d1b1d after 0.9 s: failed (source): exit code 2"
    );
}

#[test]
fn a_later_attempt_overrules_a_failed_one() {
    let this = revision("1b1d");
    let failed = BuildPhase::Failed { kind: FailureKind::Infrastructure, message: String::new() };
    let failure = phase(300, &this, failed);
    let timeline = fold(vec![failure.clone()]);
    assert!(!timeline.is_over(), "{timeline}");
    assert!(matches!(timeline.end, Some(End::NotCommitted { tried_again: true, .. })), "{timeline}");
    let timeline = fold(vec![failure, phase(500, &this, BuildPhase::Building)]);
    assert_eq!(timeline.end, None);
}

#[test]
fn a_dead_letter_is_the_end_and_an_attempt_that_follows_is_not() {
    let this = revision("1b1d");
    let failed = |millis| {
        let (kind, message) = (FailureKind::Infrastructure, "no registry".to_owned());
        phase(millis, &this, BuildPhase::Failed { kind, message })
    };
    let waits = |millis, dead| {
        let (kind, message, attempts) = (FailureKind::Infrastructure, "no registry".to_owned(), 5);
        let reason = Reason::Failed { kind, message, attempts, dead };
        let (dead_letter, reason) = (reason.is_dead_letter(), reason.to_string());
        let (target, action) = (Some(this.clone()), "wait".to_owned());
        event(millis, EventBody::Decision { app: app(), target, action, reason, dead_letter })
    };
    assert!(!fold(vec![failed(300), waits(310, false)]).is_over());
    let timeline = fold(vec![failed(300), waits(310, false), failed(900), waits(910, true)]);
    assert!(timeline.is_over());
    assert_eq!(
        timeline.to_string().lines().last().unwrap(),
        "not committed citation 1b1d1b1d1b1d after 0.9 s: dead letter after 5 attempts: no registry; `fabrique dlq \
         replay` starts again"
    );
    let replayed = phase(2_000, &this, BuildPhase::Queued);
    assert_eq!(fold(vec![failed(900), waits(910, true), replayed]).end, None);
}

#[test]
fn an_app_that_waited_and_goes_on_is_under_way_again() {
    let this = revision("1b1d");
    let waits = || {
        let (target, reason) = (Some(this.clone()), "waits: other says ready: false".to_owned());
        let action = "nothing".to_owned();
        event(300, EventBody::Decision { app: app(), target, action, reason, dead_letter: false })
    };
    assert!(fold(vec![delivery(220, &this), waits()]).is_over());
    let timeline = fold(vec![delivery(220, &this), waits(), decision(5_000, &this)]);
    assert_eq!(timeline.end, None, "{timeline}");
    let committed = BuildPhase::Committed { digest: digest(), commits: vec![revision("c0de")] };
    let timeline =
        fold(vec![delivery(220, &this), waits(), decision(5_000, &this), phase(6_000, &this, committed)]);
    assert_eq!(timeline.exit(), Exit::Ok, "{timeline}");
}

#[test]
fn a_push_that_needs_nothing_ends_with_its_reason() {
    let this = revision("1b1d");
    let (target, reason) = (Some(this.clone()), "no watched path changed since aaaaaaaaaaaa".to_owned());
    let action = "nothing".to_owned();
    let nothing = EventBody::Decision { app: app(), target, action, reason, dead_letter: false };
    let timeline = fold(vec![delivery(220, &this), event(300, nothing)]);
    let shown = timeline.to_string();
    assert_eq!(
        shown.lines().last().unwrap(),
        "not committed citation 1b1d1b1d1b1d after 0.3 s: no watched path changed since aaaaaaaaaaaa"
    );
}

#[test]
fn without_the_moment_of_the_push_the_clock_starts_at_the_first_event() {
    let this = revision("1b1d");
    let timeline = Timeline::fold(&app(), &this, None, vec![delivery(220, &this), decision(260, &this)]);
    let offsets: Vec<i64> = timeline.rows.iter().map(|row| row.offset_ms).collect();
    assert_eq!(offsets, [0, 0, 40]);
}

/// An event of `millis` before the end of `git push`.
fn early(millis: u64, mut event: Event) -> Event {
    event.id = format!("early {millis}");
    event.at = Timestamp(PUSHED.0 - millis);
    event
}

#[test]
fn a_delivery_that_came_before_git_push_returned_is_told_with_all_that_follows() {
    let this = revision("1b1d");
    let other = early(900, decision(0, &revision("aaaa")));
    let timeline = fold(vec![other, early(120, delivery(0, &this)), early(80, decision(0, &this)), step(5)]);
    insta::assert_snapshot!(timeline, @r"
     -0.120 s  delivery  refs/heads/main at 1b1d1b1d1b1d wakes citation
     -0.120 s  wake      citation is to be looked at
     -0.080 s  decision  build 1b1d1b1d1b1d: 1b1d1b1d1b1d is not built yet
      0.000 s  push      1b1d1b1d1b1d arrived at the forge
    citation 1b1d1b1d1b1d is still under way
    ");
    assert_eq!(timeline.left_out, 0);
}

#[test]
fn what_belongs_to_an_earlier_push_of_the_same_revision_is_left_out_and_counted() {
    let this = revision("1b1d");
    let committed = BuildPhase::Committed { digest: digest(), commits: vec![revision("c0de")] };
    let earlier = [early(900, delivery(0, &this)), early(500, phase(0, &this, committed))];
    let alone = fold(earlier.to_vec());
    assert!(matches!(alone.end, Some(End::Committed { after_ms: -500, .. })), "{alone}");
    let timeline = fold([earlier.to_vec(), vec![delivery(220, &this)]].concat());
    assert_eq!((timeline.left_out, timeline.end.clone()), (2, None));
    assert!(timeline.to_string().contains("left out 2 events"), "{timeline}");
}

#[test]
fn what_happened_within_a_millisecond_is_told_in_its_order_whatever_the_ids() {
    let this = revision("1b1d");
    let committed = BuildPhase::Committed { digest: digest(), commits: vec![revision("c0de")] };
    let phases = [BuildPhase::Building, BuildPhase::Pushed { digest: digest() }, committed];
    let told = |ids: [&str; 3]| {
        let mut events = vec![delivery(1, &this)];
        for (id, kind) in ids.into_iter().zip(&phases) {
            events.push(Event { id: id.to_owned(), ..phase(5, &this, kind.clone()) });
        }
        fold(events).rows.iter().map(|row| row.stage).collect::<Vec<_>>()
    };
    for ids in [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]] {
        assert_eq!(told(ids), ["push", "delivery", "wake", "build", "digest", "build"], "{ids:?}");
    }
}
