//! The migrations of an app at the revision of an image, and the file that runs them.

use fabrique_core::app::{App, ImageFrom};
use fabrique_core::id::{EnvironmentName, RelPath, Revision};
use fabrique_core::verdict::{Candidate, Verdict, judge_image, judge_infra};
use fabrique_core::view::{Declared, EnvironmentView};
use fabrique_declarations::{Contract, Declaration, Declares};
use fabrique_gitops::render::Settings;
use fabrique_gitops::render::migrations::{self, Migrations, Target};
use fabrique_gitops::{Finding, Registrations, Tree, layout};
use fabrique_ports::PortResult;
use fabrique_ports::source::{FileKind, SourceFile, SourceHistory};

use crate::apps::entry;
use crate::declared::{Own, declaration_of, declares};
use crate::gather::Observer;
use crate::gathering::{Gathering, needs_history};

/// What one revision of an app wants to be run before it is.
#[derive(Debug)]
pub struct Wanted {
    /// What findings call its declaration.
    file: String,
    declaration: Declaration,
    migrations: Migrations,
}

/// What `app` declares at `revision`, and the files of that revision. Nothing when it declares nothing that can be read:
/// whether such a revision may be deployed at all is judged elsewhere.
///
/// # Errors
/// When the source cannot be read. What a person has to mend is the finding.
pub async fn wanted(
    source: &dyn SourceHistory,
    app: &App,
    revision: &Revision,
) -> PortResult<Result<Option<Wanted>, Finding>> {
    let Some(path) = &app.source.declaration else { return Ok(Ok(None)) };
    let content = match source.read_file(&app.source.repo, revision, path).await? {
        Some(SourceFile { kind: FileKind::Regular | FileKind::Executable, content, .. }) => content,
        Some(SourceFile { kind: FileKind::Symlink | FileKind::Submodule, .. }) | None => return Ok(Ok(None)),
    };
    let (Declares::All(declaration), _) = declares(app, revision, Some(&content)) else {
        return Ok(Ok(None));
    };
    let file = declaration_of(app);
    if declaration.depends_on.migrations.is_empty() {
        let migrations = Migrations::default();
        return Ok(Ok(Some(Wanted { file, declaration: *declaration, migrations })));
    }
    let Some(folder) = &app.source.migrations else {
        let what = format!("{file} names migrations, and spec.source.migrations is not set");
        let registration = layout::registration_of(&app.name);
        return Ok(Err(Finding::of_file(registration.as_str(), what, "name the folder that they are in")));
    };
    let there = source.read_directory(&app.source.repo, revision, folder).await?.unwrap_or_default();
    let there = there.into_iter().map(|file| (file.path, entry(file.kind, file.content)));
    let picked = Migrations::pick(&file, &declaration, folder, there);
    Ok(picked.map(|migrations| Some(Wanted { file, declaration: *declaration, migrations })))
}

/// The file of an environment as it should be for the image of `revision`; nothing where there is nothing to run.
///
/// # Errors
/// When the source cannot be read. What a person has to mend is the finding.
pub async fn rendered_at(
    source: &dyn SourceHistory,
    revision: &Revision,
    tree: &Tree,
    known: (&Registrations, &Contract),
    place: (&App, &EnvironmentName),
    settings: &Settings,
) -> PortResult<Result<Option<(RelPath, String)>, Finding>> {
    let wanted = wanted(source, place.0, revision).await?;
    Ok(wanted.and_then(|wanted| match wanted {
        Some(wanted) => wanted.rendered(tree, known, place, settings),
        None => Ok(None),
    }))
}

impl Wanted {
    /// The file of an environment as it may be deployed: what can be rendered, and is not another one than was applied there,
    /// although whatever was applied has to stay so. A person may have `released` this revision from the latter. Asked before a
    /// build is spent and again by its commit, so that the two cannot judge differently.
    ///
    /// # Errors
    /// What a person has to mend.
    pub fn admitted(
        &self,
        tree: &Tree,
        known: (&Registrations, &Contract),
        place: (&App, &EnvironmentName),
        settings: &Settings,
        released: bool,
    ) -> Result<Option<(RelPath, String)>, Finding> {
        let rendered = self.rendered(tree, known, place, settings)?;
        match self.edited(tree, place.0, place.1).filter(|_| !released) {
            Some(finding) => Err(finding),
            None => Ok(rendered),
        }
    }

    fn edited(&self, tree: &Tree, app: &App, environment: &EnvironmentName) -> Option<Finding> {
        let stands = tree.read(&layout::migrations_of(&app.name, environment)).ok()??;
        self.migrations.edited(&self.file, &self.declaration, stands)
    }

    /// The file of an environment as it should be; nothing where nobody renders for it.
    ///
    /// # Errors
    /// What a person has to mend.
    pub fn rendered(
        &self,
        tree: &Tree,
        (registrations, contract): (&Registrations, &Contract),
        (app, environment): (&App, &EnvironmentName),
        settings: &Settings,
    ) -> Result<Option<(RelPath, String)>, Finding> {
        let Some(destination) = settings.destination(environment) else { return Ok(None) };
        let chosen = registrations.choice(&app.name, environment).namespace;
        let Some(namespace) = chosen.as_ref().or(destination.namespaces.first()) else { return Ok(None) };
        let target = Target::of(&self.file, &self.declaration, contract, namespace);
        if self.migrations.is_empty() {
            // The last one was taken back, where the database is still known; or it was given up as well.
            let Ok(target) = target else { return Ok(migrations::given_up(tree, &app.name, environment)) };
            let Some(runner) = &settings.runner else { return Ok(None) };
            return Ok(migrations::render(tree, &app.name, environment, &self.migrations, &target, runner));
        }
        let target = target?;
        if let Some(finding) = shared(app, environment, settings) {
            return Err(finding);
        }
        let Some(runner) = &settings.runner else {
            let what = "it names migrations, and nothing says which image runs them";
            return Err(Finding::of_file(
                &self.file,
                what,
                "set render.migrations.image in the configuration",
            ));
        };
        Ok(migrations::render(tree, &app.name, environment, &self.migrations, &target, runner))
    }
}

impl Observer {
    /// What speaks against the migrations of a target, told before anything is built or committed for it: what the commit would
    /// be refused for. `seen` is how its environments stand to it. Nothing where one that would be moved could take them, or
    /// nobody renders.
    ///
    /// # Errors
    /// When the source cannot be read, or its history is not wanted now.
    pub(crate) async fn word_of_migrations(
        &self,
        gathering: &Gathering<'_>,
        own: &Own,
        seen: &[EnvironmentView],
    ) -> PortResult<Declared> {
        let (app, apps) = (gathering.app, gathering.apps);
        let (Some(settings), Ok(Some(contract))) = (&self.render, &apps.contract) else {
            return Ok(Declared::Admitted);
        };
        if !own.is_pinned() && !own.names_migrations() {
            return Ok(Declared::Admitted);
        }
        if gathering.tip.is_some() {
            return Err(needs_history());
        }
        let wanted = match wanted(self.source.as_ref(), app, &own.target).await? {
            Ok(Some(wanted)) => wanted,
            Ok(None) => return Ok(Declared::Admitted),
            Err(finding) => return Ok(Declared::Refused(finding.to_string())),
        };
        let is_released = gathering.memory.released.as_ref() == Some(&own.target);
        let known = (&apps.registrations, contract);
        let moved = moved(app, seen, is_released).into_iter();
        let found =
            moved.map(|name| wanted.admitted(&apps.tree, known, (app, name), settings, is_released).err());
        let found: Option<Vec<Finding>> = found.collect();
        let first = found.as_ref().and_then(|found| found.first());
        Ok(first.map_or(Declared::Admitted, |finding| Declared::Refused(finding.to_string())))
    }
}

/// The environments that the target would be brought to by its own build: those that take its image, or, where none does, those
/// that take its overlay. One that is held, say, keeps its migrations, and says nothing of those of the others.
pub(crate) fn moved<'s>(app: &App, seen: &'s [EnvironmentView], released: bool) -> Vec<&'s EnvironmentName> {
    let of_build = |view: &&EnvironmentView| {
        app.environments.iter().any(|it| it.name == view.name && it.image == ImageFrom::Build)
    };
    let takes = |takes: &dyn Fn(&EnvironmentView) -> Verdict| {
        let views = seen.iter().filter(of_build).filter(|view| takes(view) == Verdict::Advance);
        views.map(|view| &view.name).collect::<Vec<_>>()
    };
    let image = takes(&|view| judge_image(view, Candidate::Target, released, &Declared::Admitted));
    if !image.is_empty() {
        return image;
    }
    takes(&|view| judge_infra(view, view.image.digest.is_some(), released, &Declared::Admitted))
}

/// Two environments of one app on one API server have one database and one ledger there, and each its own images.
fn shared(app: &App, environment: &EnvironmentName, settings: &Settings) -> Option<Finding> {
    let here = settings.destination(environment)?;
    let mut others = app.environments.iter().filter(|other| other.name != *environment);
    let other = others
        .find(|other| settings.destination(&other.name).is_some_and(|there| there.server == here.server))?;
    let what = format!(
        "{} names migrations, and {environment} and {} are on one API server: they would migrate one database, each to the \
         list of its own image",
        app.name, other.name
    );
    let remedy = "keep one of the two environments, or move one to another API server: databases of the contract have no \
                  environment";
    Some(Finding::of_file(layout::registration_of(&app.name).as_str(), what, remedy))
}

#[cfg(test)]
mod tests;
