//! How often each thing happens in a random history.

use fabrique_core::failure::FailureKind;
use fabrique_core::id::Channel;
use proptest::prelude::*;

use super::{Command, Op, PersonOp};
use crate::source::Touch;
use crate::world::{Delivery, EnvironmentSetup, Setup};

pub(crate) fn setups() -> impl Strategy<Value = Setup> {
    let environment = |follows_builds, follows_head| EnvironmentSetup { follows_builds, follows_head };
    let environments = prop_oneof![
        1 => Just(vec![]),
        4 => Just(vec![environment(true, true)]),
        2 => Just(vec![environment(true, true), environment(true, false)]),
        1 => Just(vec![environment(true, false), environment(false, true)]),
    ];
    (environments, any::<bool>()).prop_map(|(environments, heedless)| Setup { environments, heedless })
}

fn touches() -> impl Strategy<Value = Touch> {
    prop_oneof![
        2 => Just(Touch::Nothing),
        5 => Just(Touch::Watched),
        1 => Just(Touch::Broken),
        2 => Just(Touch::Overlay),
        2 => Just(Touch::Both),
        1 => (0..8_usize).prop_map(Touch::Restore),
        2 => (prop::bool::weighted(0.3), proptest::option::of(0..12_usize))
            .prop_map(|(not_ready, pin)| Touch::Declare { not_ready, pin }),
    ]
}

fn deliveries() -> impl Strategy<Value = Delivery> {
    prop_oneof![
        4 => Just(Delivery::Once),
        1 => Just(Delivery::Twice),
        1 => Just(Delivery::Late),
        2 => Just(Delivery::Lost),
    ]
}

fn channels() -> impl Strategy<Value = Channel> {
    prop_oneof![3 => Just(Channel::Image), 1 => Just(Channel::Infra)]
}

fn person_ops() -> impl Strategy<Value = PersonOp> {
    let place = || (0..2_usize, channels());
    prop_oneof![
        3 => (1..4_usize).prop_map(PersonOp::Reset),
        2 => Just(PersonOp::RevertLast),
        2 => (place(), 0..12_usize)
            .prop_map(|((environment, channel), to)| PersonOp::Edit { environment, channel, to }),
        1 => (place(), 0..12_usize)
            .prop_map(|((environment, channel), to)| PersonOp::Relabel { environment, channel, to }),
        1 => (place(), 0..12_usize, any::<bool>()).prop_map(|((environment, channel), to, binding)| {
            PersonOp::Drift { environment, channel, to, binding }
        }),
        1 => (place(), proptest::option::of(1..200_u64)).prop_map(|((environment, channel), seconds)| {
            PersonOp::Hold { environment, channel, seconds }
        }),
        1 => place().prop_map(|(environment, channel)| PersonOp::Unhold { environment, channel }),
    ]
}

fn source_ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (touches(), deliveries()).prop_map(|(touch, delivery)| Op::Push(touch, delivery)),
        1 => (0..12_usize, deliveries()).prop_map(|(other, delivery)| Op::Merge(other, delivery)),
        1 => (0..2_usize, deliveries())
            .prop_map(|(environment, delivery)| Op::MergeDeployed { environment, delivery }),
        2 => (0..4_usize, touches(), deliveries())
            .prop_map(|(back, touch, delivery)| Op::ForcePush { back, touch, delivery }),
        2 => (1..4_usize, deliveries()).prop_map(|(back, delivery)| Op::Rewind(back, delivery)),
        2 => (0..12_usize, deliveries()).prop_map(|(to, delivery)| Op::Jump(to, delivery)),
        1 => Just(Op::DeleteBranch),
        1 => Just(Op::Collect),
    ]
}

fn commands() -> impl Strategy<Value = Command> {
    prop_oneof![
        1 => Just(Command::Retry),
        1 => Just(Command::Rebuild),
        1 => Just(Command::Cancel),
        3 => Just(Command::Release),
        1 => Just(Command::Repair),
    ]
}

fn faults() -> impl Strategy<Value = Op> {
    let worker = || 0..2_usize;
    prop_oneof![
        1 => (0..6_usize).prop_map(Op::LoseDigest),
        3 => worker().prop_map(Op::Crash),
        3 => worker().prop_map(Op::Stop),
        3 => worker().prop_map(Op::Continue),
        2 => worker().prop_map(Op::Overtake),
        1 => Just(Op::LoseAnswer),
    ]
}

fn build_ends_ops() -> impl Strategy<Value = Op> {
    let kinds = prop_oneof![
        5 => Just(None),
        1 => Just(Some(FailureKind::Environment)),
        1 => Just(Some(FailureKind::Infrastructure)),
    ];
    (0..2_usize, kinds).prop_map(|(worker, kind)| Op::BuildEnds { worker, kind })
}

pub(crate) fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        14 => (0..2_usize, 1..14_usize).prop_map(|(worker, steps)| Op::Work { worker, steps }),
        6 => build_ends_ops(),
        7 => source_ops(),
        3 => (person_ops(), deliveries()).prop_map(|(op, delivery)| Op::Person(op, delivery)),
        1 => commands().prop_map(Op::Command),
        3 => faults(),
        1 => Just(Op::DeliverLate),
        1 => Just(Op::Sweep),
        1 => (1..400_u64).prop_map(Op::Sleep),
    ]
}
