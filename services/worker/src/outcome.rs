//! What an app's memory learns from a push whose outcome is known.

use fabrique_core::id::{Channel, EnvironmentName, Revision};
use fabrique_core::memory::{Committed, Intent, Memory};

use crate::committer::Landed;
use crate::writeback::Proposal;

/// Notes commits that are about to be pushed: all of them, or none where one would replace an intent that is not among those
/// `noted` before for the same write, and whose outcome is therefore unread.
pub(crate) fn intend(
    memory: &mut Memory,
    noted: &[Revision],
    intents: &[(EnvironmentName, Channel, Intent)],
) {
    let is_known = |intent: &Intent| intent.commit.commit.as_ref().is_some_and(|of| noted.contains(of));
    let is_free = |(environment, channel, _): &(EnvironmentName, Channel, Intent)| {
        memory.channel(environment, *channel).intent.as_ref().is_none_or(is_known)
    };
    if !intents.iter().all(is_free) {
        return;
    }
    for (environment, channel, intent) in intents {
        memory.channel_mut(environment, *channel).intent = Some(intent.clone());
    }
}

/// The environment of which `memory` holds another intent than the one that was to be noted.
pub(crate) fn unread<'i>(
    memory: &Memory,
    intents: &'i [(EnvironmentName, Channel, Intent)],
) -> Option<&'i EnvironmentName> {
    let is_noted = |(environment, channel, intent): &&(EnvironmentName, Channel, Intent)| {
        memory.channel(environment, *channel).intent.as_ref() == Some(intent)
    };
    intents.iter().find(|intent| !is_noted(intent)).map(|(environment, ..)| environment)
}

/// What `memory` learns of the commits that are on the branch now, of all that were `noted` as intents for them.
pub(crate) fn remember(memory: &mut Memory, noted: &[Revision], proposal: &Proposal, landed: &[Landed]) {
    forget(memory, noted);
    let automatic = || landed.iter().filter_map(|landed| landed.automatic.as_ref());
    for (environment, channel, committed) in automatic() {
        let channel = memory.channel_mut(environment, *channel);
        (channel.committed, channel.failure) = (Some(committed.clone()), None);
    }
    for (environment, channel, committed) in &proposal.shown {
        let channel = memory.channel_mut(environment, *channel);
        let commit = channel.committed.as_ref().and_then(|known| known.commit.clone());
        (channel.committed, channel.failure) = (Some(Committed { commit, ..committed.clone() }), None);
    }
    for (environment, channel, refused) in &proposal.to_remember {
        memory.channel_mut(environment, *channel).refused = Some(refused.clone());
    }
    // A person's word says nothing of what failed, nor does an overlay of a build.
    if automatic().any(|(_, channel, _)| *channel == Channel::Image) {
        memory.failure = None;
    }
    // Spent with the image it was for: a person who removes it again is not overruled by the old word.
    let released = memory.released.clone();
    let is_spent = |(_, channel, committed): &(EnvironmentName, Channel, Committed)| {
        *channel == Channel::Image && released.as_ref() == Some(&committed.revision)
    };
    if automatic().any(is_spent) {
        memory.released = None;
    }
}

/// The outcome of these commits is known.
pub(crate) fn forget(memory: &mut Memory, commits: &[Revision]) {
    let is_known = |intent: &mut Intent| intent.commit.commit.as_ref().is_some_and(|of| commits.contains(of));
    for environment in memory.environments.values_mut() {
        for channel in [&mut environment.image, &mut environment.infra] {
            drop(channel.intent.take_if(is_known));
        }
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::failure::{Failure, FailureKind};
    use fabrique_core::id::BuildKey;
    use fabrique_core::time::Timestamp;

    use super::*;

    fn revision(digit: char) -> Revision {
        Revision::parse(&digit.to_string().repeat(40)).unwrap()
    }

    fn failed() -> Memory {
        let failure = Failure {
            key: BuildKey::parse(&"ab".repeat(32)).unwrap(),
            revision: revision('a'),
            build: None,
            kind: FailureKind::Source,
            message: "cargo build failed".to_owned(),
            log_tail: Vec::new(),
            attempts: 1,
            at: Timestamp(0),
            not_before: Timestamp(0),
            dead: true,
        };
        Memory { failure: Some(failure), ..Memory::default() }
    }

    #[test]
    fn a_failed_build_is_forgotten_with_an_image_of_automation_and_not_with_an_overlay_or_a_persons_commit() {
        let prod = EnvironmentName::parse("prod").unwrap();
        let committed = Committed { commit: None, revision: revision('b'), digest: None, key: None };
        let of = |channel| Some((prod.clone(), channel, committed.clone()));
        for (automatic, stays) in [(None, true), (of(Channel::Infra), true), (of(Channel::Image), false)] {
            let (mut memory, landed) =
                (failed(), Landed { commit: revision('c'), automatic: automatic.clone() });
            remember(&mut memory, &[], &Proposal::default(), &[landed]);
            assert_eq!(memory.failure.is_some(), stays);
            for channel in [Channel::Image, Channel::Infra] {
                let known = memory.channel(&prod, channel).committed;
                let is_its = automatic.as_ref().is_some_and(|(_, its, _)| *its == channel);
                assert_eq!(known, is_its.then(|| committed.clone()), "a person's commit is not automation's");
            }
        }
        let mut memory = failed();
        remember(&mut memory, &[], &Proposal::default(), &[]);
        assert!(memory.failure.is_some(), "nothing landed");
    }

    #[test]
    fn how_an_overlay_was_refused_is_forgotten_with_its_commit_and_with_no_other() {
        let [prod, staging] = ["prod", "staging"].map(|name| EnvironmentName::parse(name).unwrap());
        let refused = failed().failure;
        let mut memory = failed();
        for environment in [&prod, &staging] {
            memory.channel_mut(environment, Channel::Infra).failure.clone_from(&refused);
        }
        let committed = Committed { commit: None, revision: revision('b'), digest: None, key: None };
        let automatic = Some((prod.clone(), Channel::Infra, committed));
        let landed = Landed { commit: revision('c'), automatic };
        remember(&mut memory, &[], &Proposal::default(), &[landed]);
        let known = |environment| memory.channel(environment, Channel::Infra).failure;
        assert_eq!((known(&prod), known(&staging), &memory.failure), (None, refused.clone(), &refused));
        memory.forget_refusals();
        assert_eq!(memory.channel(&staging, Channel::Infra).failure, None, "a person wants it tried again");
    }

    #[test]
    fn an_intent_that_somebody_else_noted_is_theirs_to_read_back() {
        let prod = EnvironmentName::parse("prod").unwrap();
        let intent = |digit| Intent {
            base: revision('a'),
            commit: Committed {
                commit: Some(revision(digit)),
                revision: revision('b'),
                digest: None,
                key: None,
            },
        };
        let mut memory = Memory::default();
        memory.channel_mut(&prod, Channel::Image).intent = Some(intent('d'));
        memory.channel_mut(&prod, Channel::Infra).intent = Some(intent('e'));
        // As by a command, which notes none, while a push of another worker is under way.
        remember(
            &mut memory,
            &[],
            &Proposal::default(),
            &[Landed { commit: revision('c'), automatic: None }],
        );
        assert_eq!(memory.channel(&prod, Channel::Image).intent, Some(intent('d')));
        let mine = |channel| (prod.clone(), channel, intent('f'));
        intend(&mut memory, &[revision('e')], &[mine(Channel::Infra), mine(Channel::Image)]);
        assert_eq!(memory.channel(&prod, Channel::Infra).intent, Some(intent('e')), "all of them, or none");
        assert_eq!(unread(&memory, &[mine(Channel::Image)]), Some(&prod));
        intend(&mut memory, &[revision('d'), revision('e')], &[mine(Channel::Image)]);
        assert_eq!(unread(&memory, &[mine(Channel::Image)]), None, "of the round before, which was refused");
        memory.channel_mut(&prod, Channel::Image).intent = Some(intent('d'));
        forget(&mut memory, &[revision('e'), revision('f')]);
        assert_eq!(memory.channel(&prod, Channel::Image).intent, Some(intent('d')));
        assert_eq!(memory.channel(&prod, Channel::Infra).intent, None);
    }
}
