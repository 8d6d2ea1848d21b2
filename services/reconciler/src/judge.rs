//! Whether an app needs a wake: pure.

use std::time::Duration;

use fabrique_core::decision::{Action, Decision};
use fabrique_core::id::Channel;
use fabrique_core::memory::Memory;
use fabrique_core::time::Timestamp;
use fabrique_core::work::{Due, Seen, WorkItem, WorkRecord};

use crate::Depth;
use crate::leases::Holder;

/// One app as a sweep finds it.
pub(crate) struct Standing<'a> {
    pub(crate) item: &'a WorkItem,
    pub(crate) holder: Holder,
    pub(crate) memory: &'a Memory,
    pub(crate) decision: &'a Decision,
    /// What a person changed in `cluster/apps` since a worker looked, as [`unseen`] says it.
    pub(crate) edited: Option<&'static str>,
    pub(crate) now: Timestamp,
}

impl Standing<'_> {
    /// Why the app is to be woken; nothing when it needs nothing, or when its turn comes anyway.
    pub(crate) fn wake(&self) -> Option<String> {
        match self.holder {
            Holder::Silent(still) => Some(silent(&self.item.record, still)),
            // A worker reads the head once and then waits for wakes: it learns of a newer one from here.
            Holder::Working => self.difference(),
            Holder::Nobody if self.item.due(self.now) == Due::Now => None,
            Holder::Nobody => {
                let edited = || self.edited.map(str::to_owned);
                self.difference().or_else(edited).or_else(|| self.leftover())
            }
        }
    }

    fn difference(&self) -> Option<String> {
        match &self.decision.action {
            Action::Build { .. } | Action::Commit(_) | Action::Stop { .. } => {
                Some(self.decision.reason.to_string())
            }
            Action::Continue | Action::WaitUntil(_) | Action::Nothing => None,
        }
    }

    /// What nobody is working on although it was begun.
    fn leftover(&self) -> Option<String> {
        if let Some(running) = &self.memory.running {
            return Some(format!("the build {} has no worker", running.build));
        }
        if matches!(self.item.due(self.now), Due::At(_)) {
            return None;
        }
        let intents = self.memory.environments.iter().find_map(|(environment, memory)| {
            let channel = [Channel::Image, Channel::Infra]
                .into_iter()
                .find(|channel| memory.channel(*channel).intent.is_some())?;
            Some(format!("nobody read back whether the {channel} of {environment} was committed"))
        });
        intents.or_else(|| {
            let pending = self.memory.pending_statuses.first()?;
            Some(format!("the commit status of {} is not final yet", pending.short()))
        })
    }
}

/// What is other than the last look at an app saw it. Nothing for one that nobody has looked at, or by a worker that noted
/// nothing: what it needs shows by itself. What could not follow is told by the full sweeps: what a person mends elsewhere, as in
/// a registry, wakes nobody.
pub(crate) fn unseen(last: Option<&Seen>, now: &Seen, depth: Depth) -> Option<&'static str> {
    let last = last?;
    if last.files != now.files {
        return Some("its files in cluster/apps changed since a worker looked");
    }
    if last.contract != now.contract {
        return Some("contract.yaml changed since a worker looked");
    }
    (last.open && depth == Depth::Full)
        .then_some("what is rendered of it could not follow when a worker looked")
}

/// Why an app is to be woken whose holder has not moved its record for this long.
pub(crate) fn silent(record: &WorkRecord, still: Duration) -> String {
    let holder = record.holder.as_deref().unwrap_or("its worker");
    format!("{holder} holds it and has not moved for {} s", still.as_secs())
}

/// Why an app that is not registered any more is to be woken: its build is to be stopped, or forgotten, and its
/// commit statuses are to be closed.
pub(crate) fn unregistered(item: &WorkItem, memory: &Memory, now: Timestamp) -> Option<String> {
    let idle = item.record.holder.is_none();
    if idle && item.due(now) == Due::Now {
        return None;
    }
    let left = match (&memory.running, memory.pending_statuses.first()) {
        (Some(running), _) => format!("the build {} is under way", running.build),
        (None, Some(revision)) if idle => {
            format!("the commit status of {} is not final yet", revision.short())
        }
        (None, Some(_) | None) => return None,
    };
    Some(format!("it is not registered any more, and {left}"))
}

/// Why an app is to be woken whose registration cannot be used: what nobody is at any more is to be ended. A build under
/// way goes on.
pub(crate) fn unusable(item: &WorkItem, memory: &Memory, now: Timestamp) -> Option<String> {
    if item.record.holder.is_some() || item.due(now) == Due::Now {
        return None;
    }
    let left = match (&memory.running, memory.pending_statuses.first()) {
        (Some(running), _) => format!("the build {} has no worker", running.build),
        (None, Some(revision)) => format!("the commit status of {} is not final yet", revision.short()),
        (None, None) => return None,
    };
    Some(format!("its registration cannot be used, and {left}"))
}

#[cfg(test)]
mod tests {
    use fabrique_core::decision::Reason;
    use fabrique_core::id::{AppName, BuildId, BuildKey, Digest, EnvironmentName, Revision};
    use fabrique_core::memory::{Committed, Intent, Running};
    use fabrique_core::verdict::Verdict;
    use fabrique_core::work::{Generation, Waiting};

    use super::*;

    const NOW: Timestamp = Timestamp(1_000);

    fn revision(digit: &str) -> Revision {
        Revision::parse(&digit.repeat(40)).unwrap()
    }

    fn item(wanted: u64, done: u64) -> WorkItem {
        WorkItem {
            app: AppName::parse("citation").unwrap(),
            wanted: Generation(wanted),
            record: WorkRecord { done: Generation(done), ..WorkRecord::default() },
            revision: 1,
            lease_expired: false,
        }
    }

    fn waiting(mut item: WorkItem) -> WorkItem {
        item.record.waiting = Some(Waiting { at: item.wanted, until: Timestamp(9_000) });
        item
    }

    fn settled(action: Action) -> Decision {
        Decision { action, reason: Reason::Settled(Verdict::UpToDate), channels: vec![] }
    }

    fn build() -> Decision {
        let key = BuildKey::parse(&"ab".repeat(32)).unwrap();
        let action = Action::Build { revision: revision("1"), key, no_cache: false };
        Decision { action, reason: Reason::NotBuilt(revision("1")), channels: vec![] }
    }

    fn half_built() -> Memory {
        let running = Running {
            build: BuildId::parse("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap(),
            key: BuildKey::parse(&"ab".repeat(32)).unwrap(),
            revision: revision("1"),
            token: 3,
            started: Timestamp(0),
            pushed: false,
        };
        Memory { running: Some(running), ..Memory::default() }
    }

    fn wake(item: &WorkItem, holder: Holder, memory: &Memory, decision: &Decision) -> Option<String> {
        Standing { item, holder, memory, decision, edited: None, now: NOW }.wake()
    }

    #[test]
    fn an_edit_of_which_nobody_told_wakes_unless_somebody_looks_anyway() {
        let seen = |files: &[u8], contract: Option<&[u8]>| Seen {
            files: Digest::of(files),
            contract: contract.map(Digest::of),
            open: false,
        };
        let unseen = |last: Option<&Seen>, now: &Seen| unseen(last, now, Depth::Heads);
        let now = seen(b"b", Some(b"2"));
        assert_eq!(unseen(None, &now), None);
        assert_eq!(unseen(Some(&now), &now), None);
        assert!(unseen(Some(&seen(b"a", Some(b"2"))), &now).unwrap().starts_with("its files"));
        assert!(unseen(Some(&seen(b"b", Some(b"1"))), &now).unwrap().starts_with("contract.yaml"));
        let decision = settled(Action::Nothing);
        let memory = Memory::default();
        let standing = |item: WorkItem, holder| {
            let (memory, decision, edited) = (&memory, &decision, Some("it changed"));
            Standing { item: &item, holder, memory, decision, edited, now: NOW }.wake()
        };
        assert_eq!(standing(item(3, 3), Holder::Nobody).as_deref(), Some("it changed"));
        assert_eq!(standing(waiting(item(4, 3)), Holder::Nobody).as_deref(), Some("it changed"));
        assert_eq!(standing(item(4, 3), Holder::Nobody), None, "it is due");
        assert_eq!(standing(item(3, 3), Holder::Working), None, "it is read again before it is given back");
    }

    #[test]
    fn what_could_not_follow_is_tried_again_by_full_sweeps_and_not_by_each() {
        let seen = Seen { files: Digest::of(b"a"), contract: None, open: false };
        let open = Seen { open: true, ..seen.clone() };
        assert_eq!(unseen(Some(&open), &seen, Depth::Heads), None);
        assert!(unseen(Some(&open), &seen, Depth::Full).unwrap().contains("could not follow"));
        assert_eq!(unseen(Some(&seen), &seen, Depth::Full), None);
    }

    #[test]
    fn a_difference_wakes_with_the_reason_of_the_decision() {
        let woken = wake(&item(3, 3), Holder::Nobody, &Memory::default(), &build());
        assert_eq!(woken.as_deref(), Some("111111111111 is not built yet"));
    }

    #[test]
    fn an_app_that_is_due_already_is_not_woken_again() {
        assert_eq!(wake(&item(4, 3), Holder::Nobody, &half_built(), &build()), None);
    }

    #[test]
    fn a_wait_for_something_else_does_not_hide_a_difference() {
        assert!(wake(&waiting(item(4, 3)), Holder::Nobody, &Memory::default(), &build()).is_some());
    }

    #[test]
    fn a_wait_that_the_decision_confirms_is_left_alone() {
        let mut memory = Memory { pending_statuses: [revision("1")].into(), ..Memory::default() };
        memory.failure = None;
        let decision = settled(Action::WaitUntil(Timestamp(9_000)));
        assert_eq!(wake(&waiting(item(4, 3)), Holder::Nobody, &memory, &decision), None);
    }

    #[test]
    fn a_working_holder_is_told_of_a_newer_target_and_otherwise_left_alone() {
        let running = settled(Action::Continue);
        assert_eq!(wake(&item(4, 3), Holder::Working, &half_built(), &running), None);
        let stop = settled(Action::Stop { superseded_by: Some(revision("2")) });
        assert!(wake(&item(4, 3), Holder::Working, &half_built(), &stop).is_some());
    }

    #[test]
    fn a_silent_holder_is_reported_by_name() {
        let mut item = item(3, 3);
        item.record = item.record.claimed_by("worker-1");
        let silent = Holder::Silent(Duration::from_secs(61));
        let woken = wake(&item, silent, &Memory::default(), &settled(Action::Nothing));
        assert_eq!(woken.as_deref(), Some("worker-1 holds it and has not moved for 61 s"));
    }

    #[test]
    fn a_build_without_a_worker_is_woken_for() {
        let woken = wake(&item(3, 3), Holder::Nobody, &half_built(), &settled(Action::Continue));
        assert_eq!(woken.as_deref(), Some("the build citation-01k4z3v5w6x7y8z9a0b1c2d3e4 has no worker"));
    }

    #[test]
    fn an_intent_and_a_pending_status_are_woken_for() {
        let decision = settled(Action::Nothing);
        let mut memory = Memory { pending_statuses: [revision("1")].into(), ..Memory::default() };
        let woken = wake(&item(3, 3), Holder::Nobody, &memory, &decision);
        assert_eq!(woken.as_deref(), Some("the commit status of 111111111111 is not final yet"));

        let prod = EnvironmentName::parse("prod").unwrap();
        let commit = Committed { commit: None, revision: revision("1"), digest: None, key: None };
        memory.channel_mut(&prod, Channel::Infra).intent = Some(Intent { base: revision("2"), commit });
        let woken = wake(&item(3, 3), Holder::Nobody, &memory, &decision);
        assert_eq!(woken.as_deref(), Some("nobody read back whether the infra of prod was committed"));
    }

    #[test]
    fn the_build_of_a_removed_app_is_woken_for_until_it_is_gone() {
        assert!(unregistered(&item(3, 3), &half_built(), NOW).is_some());
        assert_eq!(unregistered(&item(4, 3), &half_built(), NOW), None);
        assert_eq!(unregistered(&item(3, 3), &Memory::default(), NOW), None);
    }

    #[test]
    fn the_build_of_an_app_with_a_wrong_registration_goes_on_and_is_woken_for_only_without_a_worker() {
        let mut held = item(3, 3);
        held.record = held.record.claimed_by("worker-1");
        assert_eq!(unusable(&held, &half_built(), NOW), None);
        assert!(unusable(&item(3, 3), &half_built(), NOW).is_some());
        assert_eq!(unusable(&item(4, 3), &half_built(), NOW), None, "its turn comes anyway");
        assert_eq!(unusable(&item(3, 3), &Memory::default(), NOW), None);
        let memory = Memory { pending_statuses: [revision("1")].into(), ..Memory::default() };
        let expected =
            "its registration cannot be used, and the commit status of 111111111111 is not final yet";
        assert_eq!(unusable(&item(3, 3), &memory, NOW).as_deref(), Some(expected));
    }

    #[test]
    fn the_pending_status_of_a_removed_app_is_woken_for_unless_somebody_is_at_it() {
        let memory = Memory { pending_statuses: [revision("1")].into(), ..Memory::default() };
        let woken = unregistered(&item(3, 3), &memory, NOW);
        let expected =
            "it is not registered any more, and the commit status of 111111111111 is not final yet";
        assert_eq!(woken.as_deref(), Some(expected));
        assert_eq!(unregistered(&item(4, 3), &memory, NOW), None);
        let mut held = item(3, 3);
        held.record = held.record.claimed_by("worker-1");
        assert_eq!(unregistered(&held, &memory, NOW), None);
    }

    #[test]
    fn an_app_with_nothing_to_do_is_left_alone() {
        let decision = settled(Action::Nothing);
        assert_eq!(wake(&item(3, 3), Holder::Nobody, &Memory::default(), &decision), None);
        assert_eq!(wake(&item(0, 0), Holder::Nobody, &Memory::default(), &decision), None);
    }
}
