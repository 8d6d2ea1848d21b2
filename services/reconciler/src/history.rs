//! Attempts that the history shows as under way although nobody is at them: pure.
//!
//! A worker notes the end of an attempt in the app's memory first and in the history after that. One that dies
//! in between leaves an entry that no later claim looks at, since the memory has nothing to settle any more.

use std::time::Duration;

use fabrique_core::app::App;
use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::{Channel, Digest, Revision};
use fabrique_core::memory::{Committed, Memory};
use fabrique_core::time::Timestamp;
use fabrique_core::work::WorkRecord;
use fabrique_ports::records::{BuildEntry, BuildPhase};

/// Why an attempt ended of which nothing else is known.
const GONE: &str = "its worker went away";

/// An entry of the history, and the app as it is after the entry was read.
pub(crate) struct Attempt<'a> {
    pub(crate) entry: &'a BuildEntry,
    pub(crate) work: &'a WorkRecord,
    pub(crate) memory: &'a Memory,
    /// Its registration, while there is one.
    pub(crate) app: Option<&'a App>,
}

impl Attempt<'_> {
    /// Whether nobody is at it. An attempt runs under a claim and in the memory, and the one that the memory
    /// names is settled by the next claim.
    pub(crate) fn is_abandoned(&self, lease: Duration, now: Timestamp) -> bool {
        let running = self.memory.running.as_ref().is_some_and(|running| running.build == self.entry.build);
        !self.entry.phase.is_final()
            && self.work.holder.is_none()
            && !running
            && self.entry.queued.until(now) >= lease
    }

    /// The entry as it ended, by what the app remembers.
    pub(crate) fn ended(&self, now: Timestamp) -> BuildEntry {
        let mut entry = self.entry.clone();
        entry.enter(self.ending(), now);
        entry
    }

    fn ending(&self) -> BuildPhase {
        if let Some(digest) = self.digest() {
            return self.ending_of(digest);
        }
        match self.failure() {
            Some(failure) => BuildPhase::Failed { kind: failure.kind, message: failure.message.clone() },
            None => BuildPhase::Failed { kind: FailureKind::Infrastructure, message: GONE.to_owned() },
        }
    }

    /// How it failed, in the build or, with an image, on the way to `cluster/apps`.
    fn failure(&self) -> Option<&Failure> {
        self.memory.failure.as_ref().filter(|failure| failure.build.as_ref() == Some(&self.entry.build))
    }

    /// What it built, where that was recorded.
    fn digest(&self) -> Option<&Digest> {
        if let BuildPhase::Pushed { digest } = &self.entry.phase {
            return Some(digest);
        }
        let built = self.memory.built.as_ref().filter(|built| built.build == self.entry.build);
        built.map(|built| &built.digest)
    }

    fn ending_of(&self, digest: &Digest) -> BuildPhase {
        let committed: Vec<&Committed> = self
            .memory
            .environments
            .values()
            .filter_map(|environment| environment.channel(Channel::Image).committed.as_ref())
            .filter(|committed| {
                committed.digest.as_ref() == Some(digest) && committed.key.as_ref() == Some(&self.entry.key)
            })
            .collect();
        let digest = digest.clone();
        if committed.is_empty() && self.app.is_none_or(|app| !app.environments.is_empty()) {
            let reason = self.failure().map_or(GONE, |failure| &failure.message).to_owned();
            return BuildPhase::NotCommitted { digest, reason };
        }
        let mut commits: Vec<Revision> = committed.iter().filter_map(|it| it.commit.clone()).collect();
        commits.dedup();
        BuildPhase::Committed { digest, commits }
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::failure::Failure;
    use fabrique_core::id::{BuildId, BuildKey, EnvironmentName};
    use fabrique_core::memory::{Built, Running};

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);
    const NOW: Timestamp = Timestamp(100_000);

    fn build() -> BuildId {
        BuildId::parse("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap()
    }

    fn revision(digit: &str) -> Revision {
        Revision::parse(&digit.repeat(40)).unwrap()
    }

    fn key() -> BuildKey {
        BuildKey::parse(&"ab".repeat(32)).unwrap()
    }

    fn entry(phase: BuildPhase) -> BuildEntry {
        BuildEntry {
            build: build(),
            app: build().app(),
            key: key(),
            revision: revision("1"),
            reason: "it is not built yet".to_owned(),
            phase,
            daemon: None,
            queued: Timestamp(1_000),
            ended: None,
            egress: None,
        }
    }

    fn abandoned(entry: &BuildEntry, work: &WorkRecord, memory: &Memory) -> bool {
        Attempt { entry, work, memory, app: None }.is_abandoned(LEASE, NOW)
    }

    fn ending(phase: BuildPhase, memory: &Memory) -> BuildPhase {
        let (entry, work) = (entry(phase), WorkRecord::default());
        let ended = Attempt { entry: &entry, work: &work, memory, app: None }.ended(NOW);
        assert_eq!(ended.ended, Some(NOW));
        assert!(ended.phase.is_final());
        ended.phase
    }

    fn built(digest: &Digest) -> Memory {
        let built = Built { build: build(), key: key(), revision: revision("1"), digest: digest.clone() };
        Memory { built: Some(built), ..Memory::default() }
    }

    #[test]
    fn an_attempt_is_abandoned_when_nobody_holds_the_app_and_the_memory_does_not_name_it() {
        let (entry, work, memory) = (entry(BuildPhase::Building), WorkRecord::default(), Memory::default());
        assert!(abandoned(&entry, &work, &memory));
        assert!(!abandoned(&entry, &work.claimed_by("worker"), &memory));
        let running = Running {
            build: build(),
            key: key(),
            revision: revision("1"),
            token: 3,
            started: Timestamp(1_000),
            pushed: false,
        };
        assert!(!abandoned(&entry, &work, &Memory { running: Some(running), ..Memory::default() }));
        let young = BuildEntry { queued: Timestamp(NOW.0 - 29_999), ..entry.clone() };
        assert!(!abandoned(&young, &work, &memory));
        let over = BuildEntry { phase: BuildPhase::Superseded { by: None }, ..entry };
        assert!(!abandoned(&over, &work, &memory));
    }

    #[test]
    fn an_attempt_of_which_nothing_is_known_lost_its_worker() {
        let gone = BuildPhase::Failed { kind: FailureKind::Infrastructure, message: GONE.to_owned() };
        assert_eq!(ending(BuildPhase::Building, &Memory::default()), gone);
        assert_eq!(ending(BuildPhase::Queued, &Memory::default()), gone);
    }

    #[test]
    fn a_failure_that_the_memory_knows_is_how_it_ended() {
        let failure = Failure {
            key: key(),
            revision: revision("1"),
            build: Some(build()),
            kind: FailureKind::Source,
            message: "exit code 2".to_owned(),
            log_tail: Vec::new(),
            attempts: 1,
            at: NOW,
            not_before: NOW,
            dead: false,
        };
        let memory = Memory { failure: Some(failure), ..Memory::default() };
        let failed = BuildPhase::Failed { kind: FailureKind::Source, message: "exit code 2".to_owned() };
        assert_eq!(ending(BuildPhase::Building, &memory), failed);
        let digest = Digest::of(b"image");
        let refused = BuildPhase::NotCommitted { digest: digest.clone(), reason: "exit code 2".to_owned() };
        assert_eq!(ending(BuildPhase::Pushed { digest }, &memory), refused, "on the way to the branch");
    }

    #[test]
    fn a_recorded_image_is_committed_where_the_memory_knows_of_a_commit_of_this_very_key() {
        let digest = Digest::of(b"image");
        let pushed = || BuildPhase::Pushed { digest: digest.clone() };
        let not = BuildPhase::NotCommitted { digest: digest.clone(), reason: GONE.to_owned() };
        assert_eq!(ending(pushed(), &Memory::default()), not);
        assert_eq!(ending(BuildPhase::Building, &built(&digest)), not);

        let mut memory = Memory::default();
        let mut commit = |name: &str, key| {
            let committed = Committed {
                commit: Some(revision("c")),
                revision: revision("1"),
                digest: Some(digest.clone()),
                key: Some(key),
            };
            let environment = EnvironmentName::parse(name).unwrap();
            memory.channel_mut(&environment, Channel::Image).committed = Some(committed);
            memory.clone()
        };
        let other = commit("prod", BuildKey::parse(&"cd".repeat(32)).unwrap());
        assert_eq!(ending(pushed(), &other), not);
        let both = (commit("prod", key()), commit("test", key())).1;
        let committed = BuildPhase::Committed { digest: digest.clone(), commits: vec![revision("c")] };
        assert_eq!(ending(pushed(), &both), committed);
    }
}
