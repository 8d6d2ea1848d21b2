//! Rules that hold for every view, also for views that no history leads to.

use std::collections::BTreeSet;

use fabrique_core::decision::{Action, Advance, Decision, Reason, decide};
use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::{Channel, Digest};
use fabrique_core::memory::{Memory, Running};
use fabrique_core::policy::Policy;
use fabrique_core::relation::{Relation, Watched};
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::{Candidate, Verdict, judge_image, judge_infra};
use fabrique_core::view::{
    Declared, EnvironmentView, HoldView, ImageView, InfraView, Recorded, Step, Target, View,
};
use proptest::option::of;
use proptest::prelude::*;

use crate::ids::{app, build_id, environment_name, key, revision};

const NOW: Timestamp = Timestamp(10_000);
const TARGET: usize = 9;

fn relations() -> impl Strategy<Value = Relation> {
    prop_oneof![
        1 => Just(Relation::Same),
        3 => Just(Relation::Ahead),
        2 => Just(Relation::Behind),
        1 => Just(Relation::Diverged),
        1 => Just(Relation::Unknown),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    (relations(), any::<bool>()).prop_map(|(relation, changed)| Step {
        from: revision(if relation == Relation::Same { TARGET } else { 3 }),
        relation,
        watched: if changed && relation != Relation::Same { Watched::Changed } else { Watched::Unchanged },
    })
}

fn holds() -> impl Strategy<Value = Option<HoldView>> {
    let hold = of(1..9_000_u64).prop_map(|after| HoldView {
        by: "ada".into(),
        reason: "trying something".into(),
        until: after.map(|after| Timestamp(NOW.0 + after)),
    });
    prop_oneof![3 => Just(None), 1 => hold.prop_map(Some)]
}

fn taken_back() -> impl Strategy<Value = Option<Step>> {
    prop_oneof![2 => Just(None), 1 => steps().prop_map(Some)]
}

fn environments() -> impl Strategy<Value = EnvironmentView> {
    let image = (prop::bool::weighted(0.8), holds(), of(steps()), any::<bool>(), taken_back()).prop_map(
        |(follows_builds, hold, step, same_inputs, taken_back)| ImageView {
            follows_builds,
            trouble: None,
            waits: None,
            hold,
            digest: step.as_ref().map(|_| Digest::of(b"deployed")),
            step,
            same_inputs,
            taken_back,
        },
    );
    let infra = (prop::bool::weighted(0.8), holds(), of(steps()), taken_back()).prop_map(
        |(follows_head, hold, step, taken_back)| InfraView {
            follows_head,
            trouble: None,
            waits: None,
            hold,
            step,
            taken_back,
        },
    );
    let trouble = || of(Just("a binding was changed".to_owned()));
    (image, infra, trouble(), trouble()).prop_map(|(image, infra, changed, elsewhere)| EnvironmentView {
        name: environment_name(0),
        image: ImageView { trouble: changed, ..image },
        infra: InfraView { trouble: elsewhere, ..infra },
    })
}

fn declared() -> impl Strategy<Value = Declared> {
    prop_oneof![
        4 => Just(Declared::Admitted),
        1 => Just(Declared::Waits("not ready".into())),
        1 => Just(Declared::Suspended("base waits".into())),
        1 => Just(Declared::Refused("no such version".into())),
    ]
}

fn failures() -> impl Strategy<Value = Failure> {
    let kind = prop_oneof![
        Just(FailureKind::Source),
        Just(FailureKind::Environment),
        Just(FailureKind::Infrastructure),
        Just(FailureKind::Unplaced),
        Just(FailureKind::Cancelled),
    ];
    (kind, prop_oneof![Just(TARGET), Just(4)], 1..9_u32, 0..20_000_u64).prop_map(
        |(kind, rev, attempts, not_before)| Failure {
            key: key(&app(), rev, 0),
            revision: revision(rev),
            build: None,
            kind,
            message: "it broke".into(),
            log_tail: Vec::new(),
            attempts,
            at: Timestamp(0),
            not_before: Timestamp(not_before),
            dead: attempts >= 5,
        },
    )
}

fn memories() -> impl Strategy<Value = Memory> {
    let running = (prop_oneof![Just(TARGET), Just(4)], any::<bool>()).prop_map(|(rev, pushed)| Running {
        build: build_id(&app(), 1),
        key: key(&app(), rev, 0),
        revision: revision(rev),
        token: 1,
        started: Timestamp(0),
        pushed,
    });
    let released = of(prop_oneof![Just(TARGET), Just(4)]);
    (of(running), of(failures()), of(failures()), 0..5_u32, released).prop_map(
        |(running, failure, refused_overlay, supersedes, released)| {
            let mut memory = Memory {
                running,
                failure,
                supersedes,
                released: released.map(revision),
                ..Memory::default()
            };
            memory.channel_mut(&environment_name(0), Channel::Infra).failure = refused_overlay;
            memory
        },
    )
}

fn views() -> impl Strategy<Value = View> {
    let target = prop::bool::weighted(0.95).prop_map(|there| {
        if there {
            Target::At { revision: revision(TARGET), key: key(&app(), TARGET, 0) }
        } else {
            Target::Nothing("no branch".into())
        }
    });
    let environments = proptest::collection::vec(environments(), 0..3);
    (target, declared(), environments, memories(), any::<bool>(), of(any::<bool>())).prop_map(
        |(target, declared, mut environments, memory, recorded, running_changed)| {
            for (index, environment) in environments.iter_mut().enumerate() {
                environment.name = environment_name(index % 2);
            }
            let record =
                recorded.then(|| Recorded { digest: Digest::of(b"recorded"), build: build_id(&app(), 7) });
            let running_to_target =
                running_changed.map(|c| if c { Watched::Changed } else { Watched::Unchanged });
            View {
                now: NOW,
                head: Some(revision(TARGET)),
                target,
                declared,
                awaits: BTreeSet::new(),
                environments,
                last_built: None,
                record,
                running_to_target,
                memory,
                policy: Policy::default(),
            }
        },
    )
}

fn advances(decision: &Decision) -> &[Advance] {
    match &decision.action {
        Action::Commit(advances) => advances,
        Action::Build { .. }
        | Action::Continue
        | Action::Stop { .. }
        | Action::WaitUntil(_)
        | Action::Nothing => &[],
    }
}

fn channel_of(advance: &Advance) -> Channel {
    match advance {
        Advance::Image { .. } => Channel::Image,
        Advance::Infra { .. } => Channel::Infra,
    }
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn a_build_starts_only_where_it_is_wanted_and_nothing_speaks_against_it(view in views()) {
        let decision = decide(&view);
        let Action::Build { key: built, .. } = &decision.action else { return Ok(()) };
        prop_assert!(view.memory.running.is_none() && view.record.is_none());
        prop_assert_eq!(built, &key(&app(), TARGET, 0));
        let wanted = |c: &fabrique_core::decision::ChannelVerdict| {
            c.channel == Channel::Image && c.verdict == Verdict::Advance
        };
        prop_assert!(view.environments.is_empty() || decision.channels.iter().any(wanted));
        let failure = view.memory.failure.as_ref().filter(|failure| failure.key == *built);
        prop_assert!(failure.is_none_or(|f| f.kind.retryable() && f.not_before <= view.now));
    }

    #[test]
    fn commits_are_what_the_verdicts_say_and_never_empty(view in views()) {
        let decision = decide(&view);
        if let Action::Commit(advances) = &decision.action {
            prop_assert!(!advances.is_empty());
            prop_assert!(view.memory.running.is_none());
        }
        let mut advancing = decision.channels.iter().filter(|c| c.verdict == Verdict::Advance);
        for advance in advances(&decision) {
            let channel = channel_of(advance);
            prop_assert!(advancing.any(|c| c.channel == channel));
        }
    }

    #[test]
    fn an_overlay_that_the_forge_refused_rests_stops_no_build_and_is_looked_at_when_it_is_due(view in views()) {
        let decision = decide(&view);
        let Target::At { key, .. } = &view.target else { return Ok(()) };
        let wanted = decision.channels.iter().filter(|channel| {
            channel.channel == Channel::Infra && channel.verdict == Verdict::Advance
        });
        let refused = wanted.filter_map(|channel| {
            let memory = view.memory.channel(&channel.environment, Channel::Infra);
            let due = memory.failure_at(key).map(|failure| failure.not_before)?;
            (due > view.now).then(|| (channel.environment.clone(), due))
        });
        for (name, due) in refused {
            let is_its = |advance: &Advance| matches!(advance, Advance::Infra { environment, .. } if *environment == name);
            prop_assert!(!advances(&decision).iter().any(is_its), "it is hammered");
            if view.memory.running.is_none() {
                prop_assert!(decision.action != Action::Nothing, "nobody comes back to it");
            }
            if let Action::WaitUntil(until) = decision.action {
                prop_assert!(until <= due);
                prop_assert!(matches!(decision.reason, Reason::Failed { .. }), "{}", decision.reason);
            }
            let mut without = view.clone();
            without.environments.iter_mut().for_each(|environment| environment.infra.follows_head = false);
            if let build @ Action::Build { .. } = decide(&without).action {
                prop_assert!(decision.action == build || matches!(decision.action, Action::Commit(_)));
            }
        }
    }

    #[test]
    fn a_wait_ends_in_the_future(view in views()) {
        if let Action::WaitUntil(until) = decide(&view).action {
            prop_assert!(until > view.now);
        }
    }

    #[test]
    fn past_the_point_of_no_return_nothing_stops_a_build(mut view in views()) {
        let Some(running) = view.memory.running.as_mut() else { return Ok(()) };
        running.pushed = true;
        let ends_it = matches!(decide(&view).action, Action::Stop { .. } | Action::Build { .. });
        prop_assert!(!ends_it);
    }

    #[test]
    fn a_build_is_superseded_at_most_as_often_in_a_row_as_the_policy_says(view in views()) {
        if matches!(decide(&view).reason, Reason::Superseded { .. }) {
            // A build that left the branch can never be committed, so finishing it would serve nobody.
            let left_the_branch = view.running_to_target.is_none();
            prop_assert!(left_the_branch || view.memory.supersedes < view.policy.max_supersedes);
        }
    }

    #[test]
    fn a_persons_word_stands(
        environment in environments(),
        released in any::<bool>(),
        declared in declared(),
    ) {
        if judge_image(&environment, Candidate::Target, released, &declared) != Verdict::Advance {
            return Ok(());
        }
        let image = &environment.image;
        prop_assert!(image.hold.is_none() && image.trouble.is_none() && image.follows_builds);
        let relation = image.step.as_ref().map(|step| step.relation);
        prop_assert!(released || relation != Some(Relation::Behind));
        // Where the composition shows the target, only its outdated inputs can have moved it.
        if released || relation == Some(Relation::Same) {
            return Ok(());
        }
        if let Some(removed) = &image.taken_back {
            let newer = !matches!(removed.relation, Relation::Same | Relation::Behind);
            prop_assert!(newer, "what a person removed comes back");
        }
    }

    #[test]
    fn what_is_declared_stops_changes_and_nothing_else(
        environment in environments(),
        released in any::<bool>(),
        has_image in any::<bool>(),
        declared in declared(),
    ) {
        let judged = |declared: &Declared| {
            let image = judge_image(&environment, Candidate::Target, released, declared);
            [image, judge_infra(&environment, has_image, released, declared)]
        };
        for (free, said) in judged(&Declared::Admitted).into_iter().zip(judged(&declared)) {
            match declared.verdict() {
                Some(stopped) if said == stopped => {
                    let moves_or_leads_back = matches!(
                        free,
                        Verdict::Advance | Verdict::Rewound { .. } | Verdict::DeployedUnknown { .. }
                    );
                    prop_assert!(moves_or_leads_back, "{free} became {said}");
                }
                Some(_) => prop_assert!(said == free && free != Verdict::Advance),
                None => prop_assert_eq!(said, free),
            }
        }
    }

    #[test]
    fn a_slip_in_another_apps_registration_stops_no_build(view in views()) {
        let with = |declared| decide(&View { declared, ..view.clone() }).action;
        if with(Declared::Admitted) == Action::Continue {
            prop_assert_eq!(with(Declared::Suspended("base waits".into())), Action::Continue);
        }
    }

    #[test]
    fn nothing_is_built_or_committed_that_is_not_admitted(view in views()) {
        let decision = decide(&view);
        if matches!(decision.action, Action::Build { .. } | Action::Commit(_)) {
            prop_assert_eq!(&view.declared, &Declared::Admitted);
        }
    }

    #[test]
    fn the_guard_is_never_weaker_than_the_decision(
        environment in environments(),
        released in any::<bool>(),
        declared in declared(),
    ) {
        let target = judge_image(&environment, Candidate::Target, released, &declared);
        let deployed_to_head = environment.image.step.as_ref().map(|step| step.relation);
        let at_head = Candidate::Build { target: Relation::Same, deployed_to_head };
        let guard = judge_image(&environment, at_head, released, &declared);
        prop_assert!(guard != Verdict::Advance || target == Verdict::Advance);
    }

    #[test]
    fn a_build_that_left_the_branch_is_never_committed(
        environment in environments(),
        released in any::<bool>(),
        deployed_to_head in of(relations()),
        left in prop_oneof![Just(Relation::Behind), Just(Relation::Diverged), Just(Relation::Unknown)],
    ) {
        let candidate = Candidate::Build { target: left, deployed_to_head };
        prop_assert_ne!(judge_image(&environment, candidate, released, &Declared::Admitted), Verdict::Advance);
    }
}

/// The guard's word on a build that stands so to what is deployed.
fn guarded(relation: Relation, candidate: Candidate, released: bool) -> Verdict {
    let step = Step { from: revision(3), relation, watched: Watched::Changed };
    let image = ImageView {
        follows_builds: true,
        trouble: None,
        waits: None,
        hold: None,
        step: Some(step),
        digest: None,
        same_inputs: true,
        taken_back: None,
    };
    let infra = InfraView::default();
    let environment = EnvironmentView { name: environment_name(0), image, infra };
    judge_image(&environment, candidate, released, &Declared::Admitted)
}

#[test]
fn an_older_build_on_the_branch_replaces_what_a_force_push_left_behind() {
    let guard = |deployed_to_head| {
        guarded(Relation::Behind, Candidate::Build { target: Relation::Ahead, deployed_to_head }, false)
    };
    assert_eq!(guard(Some(Relation::Diverged)), Verdict::Advance);
    assert_eq!(guard(Some(Relation::Ahead)), Verdict::Older { deployed: revision(3) });
}

#[test]
fn a_build_beside_what_is_deployed_is_committed_only_where_the_branch_left_that_or_it_is_the_target() {
    let guard = |target, deployed_to_head, released| {
        guarded(Relation::Diverged, Candidate::Build { target, deployed_to_head }, released)
    };
    let refused = Verdict::NotDescendant { deployed: revision(3) };
    assert_eq!(guard(Relation::Ahead, Some(Relation::Diverged), false), Verdict::Advance);
    for merged in [Relation::Same, Relation::Ahead, Relation::Behind, Relation::Unknown] {
        assert_eq!(guard(Relation::Ahead, Some(merged), false), refused, "{merged:?}");
    }
    assert_eq!(guard(Relation::Ahead, Some(Relation::Ahead), true), Verdict::Advance, "a person released it");
    assert_eq!(guard(Relation::Same, Some(Relation::Ahead), false), Verdict::Advance, "a pin beside it");
    assert!(!refused.needs_person());
    assert_eq!(refused.to_string(), "without the deployed c00000000003, which the branch holds");
}

#[test]
fn what_came_too_early_waits_for_nobody_to_mend_it_unless_something_is_to_be_mended() {
    let judged = |trouble: Option<&str>| {
        let image = ImageView {
            follows_builds: true,
            trouble: trouble.map(str::to_owned),
            waits: Some("base is not deployed".to_owned()),
            hold: None,
            step: None,
            digest: None,
            same_inputs: true,
            taken_back: None,
        };
        let infra = InfraView {
            follows_head: true,
            trouble: trouble.map(str::to_owned),
            waits: image.waits.clone(),
            hold: None,
            step: None,
            taken_back: None,
        };
        let environment = EnvironmentView { name: environment_name(0), image, infra };
        let image = judge_image(&environment, Candidate::Target, false, &Declared::Admitted);
        assert_eq!(image, judge_infra(&environment, true, false, &Declared::Admitted));
        image
    };
    let waits = judged(None);
    assert_eq!((&waits, waits.needs_person()), (&Verdict::NotReady("base is not deployed".into()), false));
    assert_eq!(judged(Some("a binding was changed")), Verdict::Trouble("a binding was changed".into()));
}
