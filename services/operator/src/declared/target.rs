//! What a declaration says of the revision that it means: its pin, and the migrations there.

use fabrique_core::app::{App, ImageFrom};
use fabrique_core::id::{EnvironmentName, Revision};
use fabrique_core::relation::Relation;
use fabrique_declarations::name::RevisionPrefix;
use fabrique_declarations::pin::{self, PinRefusal};
use fabrique_declarations::{Contract, Declaration, Finding};
use fabrique_gitops::composition;
use fabrique_gitops::render::Settings;
use fabrique_observer::{Apps, declared, migrations};
use fabrique_ports::PortResult;
use fabrique_ports::source::SourceHistory;

/// Where targets are looked at.
pub(super) struct Ground<'a> {
    pub(super) apps: &'a Apps,
    pub(super) source: &'a dyn SourceHistory,
    /// Where Applications go, where they are rendered.
    pub(super) settings: Option<&'a Settings>,
}

impl Ground<'_> {
    /// Everything that would be refused of the target of `app`, which declares this at `head`. Only one that pins a
    /// revision or names migrations is asked about.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub(super) async fn findings(
        &self,
        app: &App,
        head: &Revision,
        declaration: &Declaration,
    ) -> PortResult<Vec<Finding>> {
        let mut findings = match &declaration.revision {
            Some(pinned) => match self.pinned(app, head, &pinned.value).await? {
                Ok(target) => self.migrations(app, &target).await?,
                Err(refusal) => vec![refusal.finding(&declared::declaration_of(app), pinned.place())],
            },
            None if declaration.depends_on.migrations.is_empty() => Vec::new(),
            None => self.migrations(app, head).await?,
        };
        findings.sort();
        findings.dedup();
        Ok(findings.into_iter().map(|finding| finding.concerning([app.name.clone()])).collect())
    }

    /// The ancestor that is pinned, unless that is behind what is deployed.
    async fn pinned(
        &self,
        app: &App,
        head: &Revision,
        prefix: &RevisionPrefix,
    ) -> PortResult<Result<Revision, PinRefusal>> {
        let ancestors = self.source.ancestors(&app.source.repo, head, prefix.as_str()).await?;
        let target = match pin::resolve(prefix, &ancestors) {
            Ok(target) => target,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let deployed = self.deployed(app, &target).await?;
        let deployed = deployed.iter().map(|(name, revision, relation)| (*name, revision, *relation));
        Ok(pin::admit(&target, deployed).map(|()| target))
    }

    /// What automation would move to the target, and where that stands as seen from it.
    async fn deployed<'a>(
        &self,
        app: &'a App,
        target: &Revision,
    ) -> PortResult<Vec<(&'a EnvironmentName, Revision, Relation)>> {
        let mut deployed = Vec::new();
        for environment in &app.environments {
            let name = &environment.name;
            let Ok(Some(composition)) = composition::load(&self.apps.tree, app, name) else { continue };
            for revision in composition.followed(environment) {
                let relation = self.source.relation(&app.source.repo, revision, target).await?;
                deployed.push((name, revision.clone(), relation));
            }
        }
        Ok(deployed)
    }

    async fn migrations(&self, app: &App, target: &Revision) -> PortResult<Vec<Finding>> {
        let wanted = match migrations::wanted(self.source, app, target).await? {
            Ok(Some(wanted)) => wanted,
            Ok(None) => return Ok(Vec::new()),
            Err(finding) => return Ok(vec![finding.into()]),
        };
        let (Some(settings), Some(contract)) = (self.settings, self.contract()) else {
            return Ok(Vec::new());
        };
        let (tree, known) = (&self.apps.tree, (&self.apps.registrations, contract));
        let moved = app.environments.iter().filter(|environment| {
            // One that is held keeps those that it has.
            let composition = composition::load(tree, app, &environment.name);
            let is_held = composition.is_ok_and(|it| it.is_some_and(|it| it.image.hold.is_some()));
            environment.image == ImageFrom::Build && !is_held
        });
        let judged =
            moved.map(|environment| wanted.admitted(tree, known, (app, &environment.name), settings, false));
        Ok(judged.filter_map(Result::err).map(Finding::from).collect())
    }

    fn contract(&self) -> Option<&Contract> {
        self.apps.contract.as_ref().ok()?.as_ref()
    }
}
