//! What becomes of an app without a registration, and of one whose registration cannot be used.
//!
//! The first has ended: what it was doing is over. The second waits: a slip in a file takes nothing back, so its build
//! goes on and is recorded, nothing is committed, and whoever pushes for it is told what is wrong.

use std::collections::BTreeSet;
use std::fmt;

use fabrique_core::app::App;
use fabrique_core::id::{AppName, Digest, RepoName, Revision};
use fabrique_core::memory::Memory;
use fabrique_core::verdict::Verdict;
use fabrique_core::work::Seen;
use fabrique_gitops::registration::Wrong;
use fabrique_ports::PortResult;
use fabrique_ports::forge::CommitStatus;
use fabrique_ports::records::{BuildEntry, BuildPhase};

use crate::ending;
use crate::session::Session;
use crate::status;
use crate::statuses::open_status;
use crate::writeback::Image;

/// Why nothing may be done for an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unregistered {
    /// Its registration is gone.
    Gone,
    /// Its registration cannot be used: where, why, and what to do.
    Wrong(String),
}

impl Unregistered {
    /// Of an app that is not among the registered ones.
    pub(crate) fn by(wrong: Option<&Wrong>) -> Self {
        wrong.map_or(Self::Gone, |wrong| Self::Wrong(wrong.to_string()))
    }
}

impl fmt::Display for Unregistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the app is not registered any more"),
            Self::Wrong(why) => write!(f, "the registration is wrong: {why}"),
        }
    }
}

impl Session {
    /// Tells why nothing is done for an app that is not among the registered ones, and closes what was left open.
    /// `named` is the revision that was pushed, where a push to its source woke it.
    pub(crate) async fn without_registration(
        &self,
        name: &AppName,
        wrong: Option<&Wrong>,
        named: Option<Revision>,
    ) -> PortResult<()> {
        let why = Unregistered::by(wrong);
        match &why {
            Unregistered::Gone => tracing::info!(app = %name, "not registered, nothing to do"),
            Unregistered::Wrong(what) => self.warn(&format!("it waits for its registration: {what}")),
        }
        let memory = self.memory.get().await;
        // A webhook that comes again tells nothing new of what is deployed, whose status is true still.
        let is_news = |revision: &Revision| {
            !memory.pending_statuses.contains(revision) && memory.deployed(revision).next().is_none()
        };
        let told = named.filter(|revision| wrong.is_some() && is_news(revision));
        let mut open = self.disown_statuses(name, &memory, &why).await;
        let source = wrong.and_then(|wrong| wrong.source.as_ref()).map(|(repo, _)| repo);
        let source = source.or(memory.source.as_ref()).cloned();
        let told = told.zip(source);
        let mut missed = None;
        if let Some((revision, repo)) = &told
            && !self.tell_disowned(name, &memory, (repo, revision), &why).await
        {
            // Kept with the others where it lies with them, or by itself.
            if memory.source.as_ref() == Some(repo) {
                open.insert(revision.clone());
            } else if open.is_empty() {
                missed = Some((repo.clone(), revision.clone()));
            }
        }
        let hidden = told.is_some() || !memory.pending_statuses.is_empty();
        self.memory
            .update(|memory| {
                memory.running = None;
                memory.pending_statuses.clone_from(&open);
                if let Some((repo, revision)) = &missed {
                    open_status(memory, repo, revision);
                }
                // What was told before is hidden by this: once the registration is right it is told again.
                if hidden {
                    memory.reported = None;
                }
            })
            .await
            .map(drop)
    }

    /// A build whose app was unregistered meanwhile, or whose registration cannot be used: recorded, and deployed
    /// nowhere for now.
    pub(crate) async fn disown(&self, app: &App, image: &Image, entry: BuildEntry, why: &Unregistered) {
        let status = status::disowned(&app.name, true, why, self.context.config.link.clone());
        self.close_status(app, &image.revision, &status).await;
        let phase = BuildPhase::NotCommitted { digest: image.digest.clone(), reason: why.to_string() };
        ending::tell(&self.context, entry, phase, self.trace.clone());
    }

    /// Closes the statuses that an app without a registration left pending. Returns those that could not be closed,
    /// for which the reconciler wakes the app again.
    async fn disown_statuses(
        &self,
        name: &AppName,
        memory: &Memory,
        why: &Unregistered,
    ) -> BTreeSet<Revision> {
        let mut open = BTreeSet::new();
        // A memory of an earlier version does not know in which repository they are.
        let Some(source) = &memory.source else { return open };
        for revision in &memory.pending_statuses {
            if !self.tell_disowned(name, memory, (source, revision), why).await {
                open.insert(revision.clone());
            }
        }
        open
    }

    async fn tell_disowned(
        &self,
        name: &AppName,
        memory: &Memory,
        (repo, revision): (&RepoName, &Revision),
        why: &Unregistered,
    ) -> bool {
        let status = told(name, revision, why, memory, self.context.config.link.clone());
        self.set_status(repo, revision, &status).await
    }
}

/// How far a revision got.
fn told(
    name: &AppName,
    revision: &Revision,
    why: &Unregistered,
    memory: &Memory,
    link: Option<String>,
) -> CommitStatus {
    let deployed: Vec<_> = memory.deployed(revision).collect();
    if let Some((_, digest)) = deployed.first() {
        let places: Vec<_> = deployed.iter().map(|(name, _)| ((*name).clone(), Verdict::UpToDate)).collect();
        return status::deployed(name, &places, *digest, link);
    }
    let is_built = memory.built.as_ref().is_some_and(|built| built.revision == *revision);
    status::disowned(name, is_built, why, link)
}

/// What a look at an app with a wrong registration leaves as seen, after `last`: whatever the file says once it is right is
/// something else, so that a sweep has the app looked at and told of again although nobody told of the correction. The
/// contract that was seen last counts on.
pub(crate) fn seen_wrong(last: Option<Seen>, wrong: &Wrong) -> Option<Seen> {
    last.map(|last| Seen { files: Digest::of(format!("wrong: {wrong}").as_bytes()), ..last })
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::{BuildId, BuildKey, Channel, EnvironmentName};
    use fabrique_core::memory::{Built, Committed};
    use fabrique_gitops::{Finding, layout};
    use fabrique_ports::forge::StatusState;

    use super::*;

    fn name() -> AppName {
        AppName::parse("citation").unwrap()
    }

    fn wrong() -> Wrong {
        let file = layout::registration_of(&name()).to_string();
        Wrong { finding: Finding::of_file(file, "has no colour", "remove it"), more: 0, source: None }
    }

    #[test]
    fn a_revision_is_told_as_far_as_it_got_although_the_registration_is_wrong() {
        let revisions = ["a", "b", "c"].map(|digit| Revision::parse(&digit.repeat(40)).unwrap());
        let [deployed, built, pushed] = &revisions;
        let digest = Digest::of(b"image");
        let key = BuildKey::parse(&"ab".repeat(32)).unwrap();
        let build = BuildId::parse("citation-01k4z3v5w6x7y8z9a0b1c2d3e4").unwrap();
        let newest = Built { build, key: key.clone(), revision: built.clone(), digest: digest.clone() };
        let mut memory = Memory { built: Some(newest), ..Memory::default() };
        let prod = EnvironmentName::parse("prod").unwrap();
        memory.channel_mut(&prod, Channel::Image).committed = Some(Committed {
            commit: None,
            revision: deployed.clone(),
            digest: Some(digest.clone()),
            key: Some(key),
        });
        let why = Unregistered::by(Some(&wrong()));
        let told = |revision| {
            let status = told(&name(), revision, &why, &memory, None);
            (status.state, status.description.replace(digest.as_str(), "DIGEST"))
        };
        let slip = "the registration is wrong: apps/citation/app.yaml: has no colour; remove it";
        assert_eq!(told(deployed), (StatusState::Success, "deployed to prod: built DIGEST".to_owned()));
        assert_eq!(told(built), (StatusState::Error, format!("built, not deployed: {slip}")));
        assert_eq!(told(pushed), (StatusState::Error, format!("not built: {slip}")));
    }

    #[test]
    fn a_slip_that_is_reverted_is_seen_as_an_edit_and_the_contract_as_before() {
        let contract = Some(Digest::of(b"contract"));
        let last = Seen { files: Digest::of(b"files"), contract, open: false };
        let seen = seen_wrong(Some(last.clone()), &wrong()).unwrap();
        assert_ne!(seen.files, last.files);
        assert_eq!(seen.contract, last.contract);
        assert_eq!(seen_wrong(None, &wrong()), None, "nobody has looked at it yet");
    }
}
