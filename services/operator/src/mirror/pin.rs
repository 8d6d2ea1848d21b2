//! What GitHub says of a revision that a declaration pins: it may be further down than a sync looks.

use fabrique_core::app::App;
use fabrique_core::id::Revision;
use fabrique_core::upstream::{Pinned, UpstreamState, passes};
use fabrique_declarations::{Declaration, pin};
use fabrique_observer::declared::declaration_of;
use fabrique_ports::PortResult;
use fabrique_ports::forge::ForgeFile;

use super::sync::{Answers, Place, Stop, Syncing};

impl Syncing<'_> {
    /// The revision that the app's declaration pins, with its results; nothing where it pins none, where that `passed` or is
    /// the head, and where GitHub has it not on the branch.
    pub(super) async fn pin(
        &self,
        app: &App,
        place: &Place,
        passed: &[Revision],
        known: Option<&UpstreamState>,
        answers: &mut Answers,
    ) -> Result<Option<Pinned>, Stop> {
        let known =
            known.filter(|known| place.has_moved_on_from(known)).and_then(|known| known.pinned.as_ref());
        let revision = match self.pinned(app, place).await {
            Ok(revision) => revision,
            // It stops neither the news of the head nor those of other apps.
            Err(error) => {
                tracing::warn!(app = %app.name, %error, "what its declaration pins is not known");
                return Ok(known.cloned());
            }
        };
        let by_itself =
            |revision: &Revision| place.line.first() == Some(revision) || passed.contains(revision);
        let Some(revision) = revision.filter(|revision| !by_itself(revision)) else { return Ok(None) };
        let Some(upstream) = &app.source.upstream else { return Ok(None) };
        let known = known.filter(|known| known.revision == revision);
        if let Some(known) = known.filter(|known| passes(&upstream.checks, &known.results)) {
            return Ok(Some(known.clone()));
        }
        let is_there = known.is_some() || place.line.contains(&revision) || {
            let (github, branch) = (&self.mirrored.github, &app.source.branch);
            self.asked(self.ports.origin.contains(github, branch, &revision)).await?
        };
        if !is_there {
            return Ok(None);
        }
        let mut results = self.results(&revision, answers).await?;
        results.retain(|check, _| upstream.checks.contains(check));
        Ok(Some(Pinned { revision, results }))
    }

    /// What the declaration at the head of the mirror pins, as whoever builds it reads it. A wrong one is for that to tell.
    async fn pinned(&self, app: &App, place: &Place) -> PortResult<Option<Revision>> {
        let (Some(path), Some(head)) = (&app.source.declaration, &place.mirrored) else { return Ok(None) };
        let repo = &app.source.repo;
        let Some(ForgeFile::Content(content)) = self.ports.forge.file(repo, head, path).await? else {
            return Ok(None);
        };
        let Ok(declaration) = Declaration::parse(&declaration_of(app), &content) else { return Ok(None) };
        let Some(pinned) = declaration.revision.map(|revision| revision.value) else { return Ok(None) };
        if let Ok(whole) = Revision::parse(pinned.as_str()) {
            return Ok(Some(whole));
        }
        let ancestors = self.ports.source.ancestors(repo, head, pinned.as_str()).await?;
        Ok(pin::resolve(&pinned, &ancestors).ok())
    }
}
