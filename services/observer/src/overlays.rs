//! The overlay of an app at a revision, and whether it can be deployed.

use fabrique_core::app::{DeployedInfra, Environment, InfraFrom, OverlaySource};
use fabrique_core::id::{RelPath, Revision};
use fabrique_core::view::{Declared, EnvironmentView};
use fabrique_gitops::overlay::{Collector, Next, OverlayFiles};
use fabrique_gitops::{Entry, Refusal, plan};
use fabrique_ports::source::{SourceFile, SourceHistory};
use fabrique_ports::{PortError, PortResult};

use crate::apps::entry;
use crate::declared::Own;
use crate::gather::Observer;
use crate::gathering::{Gathering, needs_history};
use crate::migrations::moved;

impl Observer {
    /// What speaks against the overlay of an app that declares something, told before anything is built for its first
    /// deployment: what the copy would be refused for, without which the image runs nowhere. Later on an overlay is judged
    /// by its own commit, and the image goes on without it. Nothing where one environment that would be moved could take it.
    ///
    /// # Errors
    /// When the source cannot be read, or its history is not wanted now.
    pub(crate) async fn word_of_overlays(
        &self,
        gathering: &Gathering<'_>,
        own: &Own,
        seen: &[EnvironmentView],
    ) -> PortResult<Declared> {
        let app = gathering.app;
        if !own.declares() {
            return Ok(Declared::Admitted);
        }
        let is_released = gathering.memory.released.as_ref() == Some(&own.target);
        let mut first = None;
        for name in moved(app, seen, is_released) {
            let environment = app.environments.iter().find(|environment| environment.name == *name);
            let view = seen.iter().find(|view| view.name == *name);
            let Some((environment, view)) = environment.zip(view) else { continue };
            if view.image.digest.is_some() {
                return Ok(Declared::Admitted);
            }
            match self.refusal(gathering, environment, &own.target).await? {
                Some(refusal) => first = first.or(Some(refusal)),
                None => return Ok(Declared::Admitted),
            }
        }
        Ok(first.map_or(Declared::Admitted, |refusal| Declared::Refused(refusal.to_string())))
    }

    /// Why an environment would get no first copy; nothing where it would, or has none.
    async fn refusal(
        &self,
        gathering: &Gathering<'_>,
        environment: &Environment,
        revision: &Revision,
    ) -> PortResult<Option<Refusal>> {
        let InfraFrom::Head(overlay) = &environment.infra else { return Ok(None) };
        if gathering.tip.is_some() {
            return Err(needs_history());
        }
        let (app, tree, now) = (gathering.app, &gathering.apps.tree, gathering.now);
        let infra = DeployedInfra { overlay: overlay.clone(), revision: revision.clone() };
        let files = collect(self.source.as_ref(), overlay, revision).await?;
        Ok(files.and_then(|files| plan::fits(tree, app, &environment.name, &files, &infra, now)).err())
    }
}

/// The overlay at `revision` with everything that it reaches. What a person has to mend is the refusal.
///
/// # Errors
/// When the source cannot be read.
pub async fn collect(
    source: &dyn SourceHistory,
    overlay: &OverlaySource,
    revision: &Revision,
) -> PortResult<Result<OverlayFiles, Refusal>> {
    let mut collector = Collector::new(overlay.path.clone());
    loop {
        let next = match collector.next() {
            Ok(Some(next)) => next,
            Ok(None) => return Ok(collector.finish()),
            Err(refusal) => return Ok(Err(refusal)),
        };
        match read(source, overlay, revision, &next).await {
            Ok(files) => collector.add(next, files),
            // One that is too much to be read stops its overlay, and nothing else of the app.
            Err((path, error)) if error.is_of_content() => {
                let remedy = error.advice().unwrap_or("refer to something else");
                return Ok(Err(collector.refuse(&path, &error.finding(), remedy)));
            }
            Err((_, error)) => return Err(error),
        }
    }
}

/// What the collector asks for, by path from the root of the repository. An error comes with what it is about.
async fn read(
    source: &dyn SourceHistory,
    overlay: &OverlaySource,
    revision: &Revision,
    next: &Next,
) -> Result<Vec<(RelPath, Entry)>, (RelPath, PortError)> {
    let files = match next {
        Next::Directory(directory) => {
            let files = source.read_directory(&overlay.repo, revision, directory).await;
            let files = files.map_err(|error| (directory.clone(), error))?.unwrap_or_default();
            files.into_iter().map(|file| SourceFile { path: directory.join(&file.path), ..file }).collect()
        }
        Next::Files(paths) => match source.read_files(&overlay.repo, revision, paths).await {
            Err(error) if error.is_of_content() => {
                // All at once it is not told whose it is.
                let mut files = Vec::new();
                for path in paths {
                    let file = source.read_file(&overlay.repo, revision, path).await;
                    files.extend(file.map_err(|error| (path.clone(), error))?);
                }
                files
            }
            files => files.map_err(|error| (overlay.path.clone(), error))?,
        },
    };
    Ok(files.into_iter().map(|file| (file.path, entry(file.kind, file.content))).collect())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fabrique_core::id::RepoName;
    use fabrique_ports::source::FileKind;
    use fabrique_ports::testing::SourceStub;
    use fabrique_ports::{Fault, Peer};

    use super::*;

    fn too_big<T>() -> PortResult<T> {
        Err(PortError::new(Peer::Git, Fault::Unexpected, "it is too big")
            .remedy("make it smaller")
            .of_content())
    }

    fn away<T>() -> PortResult<T> {
        Err(PortError::new(Peer::Git, Fault::Transient, "the forge is away"))
    }

    /// A source with one overlay, which reaches files that are too much to be read.
    fn huge() -> SourceStub {
        SourceStub::default()
            .directories(|_, directory| {
                let reaches = match directory.as_str() {
                    "file" => "../files/a.yaml, ../files/huge",
                    "directory" => "../base",
                    "away" => "../gone",
                    _ => return too_big(),
                };
                let content = Bytes::from(format!("resources: [{reaches}]\n"));
                let path = RelPath::parse("kustomization.yaml").unwrap();
                Ok(Some(vec![SourceFile { path, kind: FileKind::Regular, content }]))
            })
            .files(|_, path| match path.as_str() {
                "files/a.yaml" => {
                    let content = Bytes::from_static(b"a: 1\n");
                    Ok(Some(SourceFile { path: path.clone(), kind: FileKind::Regular, content }))
                }
                "files/huge" => too_big(),
                "gone" => away(),
                _ => Ok(None),
            })
    }

    #[tokio::test]
    async fn an_overlay_that_is_too_much_to_be_read_is_refused_where_it_says_so_and_stops_nothing_else() {
        let revision = Revision::parse(&"a".repeat(40)).unwrap();
        for (path, expected) in [
            (
                "file",
                "file/kustomization.yaml:1:30: \"../files/huge\" cannot be copied: git: it is too big; make it smaller",
            ),
            (
                "directory",
                "directory/kustomization.yaml:1:13: \"../base\" cannot be copied: git: it is too big; make it smaller",
            ),
            ("huge", "huge cannot be copied: git: it is too big; make it smaller"),
        ] {
            let repo = RepoName::parse("atlas/atlas").unwrap();
            let overlay = OverlaySource { repo, path: RelPath::parse(path).unwrap() };
            let refusal = collect(&huge(), &overlay, &revision).await.unwrap().unwrap_err();
            assert_eq!(refusal.to_string(), expected);
        }
        let repo = RepoName::parse("atlas/atlas").unwrap();
        let overlay = OverlaySource { repo, path: RelPath::parse("away").unwrap() };
        assert!(collect(&huge(), &overlay, &revision).await.unwrap_err().transient(), "it is asked again");
    }
}
