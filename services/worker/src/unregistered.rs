//! What becomes of an app without a registration, and of one whose registration cannot be used.
//!
//! The first has ended: what it was doing is over. The second waits: a slip in a file takes nothing back, so its build
//! goes on and is recorded, nothing is committed, and whoever pushes for it is told what is wrong.

use std::collections::BTreeSet;
use std::fmt;

use fabrique_core::app::App;
use fabrique_core::id::{AppName, RepoName, Revision};
use fabrique_gitops::registration::Wrong;
use fabrique_ports::PortResult;
use fabrique_ports::records::{BuildEntry, BuildPhase};

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
        let told = named.filter(|revision| wrong.is_some() && !memory.pending_statuses.contains(revision));
        let mut open = self.disown_statuses(name, &why).await;
        let source = wrong.and_then(|wrong| wrong.source.as_ref()).map(|(repo, _)| repo);
        let source = source.or(memory.source.as_ref()).cloned();
        let told = told.zip(source);
        let mut missed = None;
        if let Some((revision, repo)) = &told
            && !self.tell_disowned(name, repo, revision, &why).await
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
    pub(crate) async fn disown(&self, app: &App, image: &Image, mut entry: BuildEntry, why: &Unregistered) {
        let status = status::disowned(&app.name, true, why, self.context.config.link.clone());
        self.close_status(app, &image.revision, &status).await;
        entry.phase = BuildPhase::NotCommitted { digest: image.digest.clone(), reason: why.to_string() };
        entry.ended = Some(self.context.ambient.now());
        self.context.announcer.enter(&entry, self.trace.clone());
    }

    /// Closes the statuses that an app without a registration left pending. Returns those that could not be closed,
    /// for which the reconciler wakes the app again.
    async fn disown_statuses(&self, name: &AppName, why: &Unregistered) -> BTreeSet<Revision> {
        let memory = self.memory.get().await;
        let mut open = BTreeSet::new();
        // A memory of an earlier version does not know in which repository they are.
        let Some(source) = &memory.source else { return open };
        for revision in memory.pending_statuses {
            if !self.tell_disowned(name, source, &revision, why).await {
                open.insert(revision);
            }
        }
        open
    }

    async fn tell_disowned(
        &self,
        name: &AppName,
        repo: &RepoName,
        revision: &Revision,
        why: &Unregistered,
    ) -> bool {
        let built = self.memory.get().await.built;
        let is_built = built.is_some_and(|built| built.revision == *revision);
        let status = status::disowned(name, is_built, why, self.context.config.link.clone());
        self.set_status(repo, revision, &status).await
    }
}
