//! Which paths of a source repository ask for a build.

use std::collections::BTreeSet;

use fabrique_core::app::{App, OverlaySource};
use fabrique_core::id::RelPath;
use fabrique_core::relation::Watched;
use fabrique_ports::source::ChangedPaths;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// The paths that matter to one channel.
#[derive(Debug, Clone)]
pub struct WatchedPaths(GlobSet);

impl WatchedPaths {
    /// What asks for a build of `app`: its `watch` globs (everything below the context when it has none),
    /// and always its Dockerfile and its declaration.
    ///
    /// # Errors
    /// When a glob does not compile, with its text; registrations are checked, so this is a surprise.
    pub fn of_image(app: &App) -> Result<Self, globset::Error> {
        let mut globs = app.build.watch.clone();
        if globs.is_empty() {
            globs.push(everything_below(app.build.context.as_str()));
        }
        globs.push(literal(app.build.dockerfile_in_repo().as_str()));
        globs.extend(app.source.declaration.iter().map(|path| literal(path.as_str())));
        Self::compile(&globs)
    }

    /// What asks for another copy of `overlay`: its directory, and the directories beside it that its present
    /// copy reached into.
    ///
    /// # Errors
    /// Never for a parsed path; see [`Self::of_image`].
    pub fn of_overlay(overlay: &OverlaySource, beside: &BTreeSet<RelPath>) -> Result<Self, globset::Error> {
        let directories = std::iter::once(&overlay.path).chain(beside);
        let globs: Vec<String> = directories.map(|directory| everything_below(directory.as_str())).collect();
        Self::compile(&globs)
    }

    fn compile(globs: &[String]) -> Result<Self, globset::Error> {
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            set.add(GlobBuilder::new(glob).literal_separator(true).build()?);
        }
        Ok(Self(set.build()?))
    }

    /// Whether any of these paths is one of those that matter.
    pub(crate) fn matter(&self, paths: &[String]) -> bool {
        paths.iter().any(|path| self.0.is_match(path))
    }

    /// Whether any of `paths` matters. What cannot be told counts as changed.
    #[must_use]
    pub fn judge(&self, paths: &ChangedPaths) -> Watched {
        match paths {
            ChangedPaths::CannotTell => Watched::Changed,
            ChangedPaths::These(paths) if self.matter(paths) => Watched::Changed,
            ChangedPaths::These(_) => Watched::Unchanged,
        }
    }
}

fn everything_below(directory: &str) -> String {
    if directory == "." { "**".to_owned() } else { format!("{}/**", literal(directory)) }
}

fn literal(path: &str) -> String {
    globset::escape(path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use fabrique_core::app::{BuildResources, BuildSpec, Source};
    use fabrique_core::id::{AppName, BranchName, ImageRepository, Platform, RelPath, RepoName, TrustDomain};

    use super::*;

    fn app(context: &str, watch: &[&str]) -> App {
        App {
            name: AppName::parse("citation").unwrap(),
            source: Source {
                repo: RepoName::parse("atlas/atlas").unwrap(),
                branch: BranchName::parse("main").unwrap(),
                declaration: Some(RelPath::parse("decl/manifest.yaml").unwrap()),
                migrations: None,
                upstream: None,
            },
            image: ImageRepository::parse("registry:80/citation").unwrap(),
            build: BuildSpec {
                context: RelPath::parse(context).unwrap(),
                dockerfile: RelPath::parse("Dockerfile").unwrap(),
                target: None,
                args: BTreeMap::new(),
                secrets: vec![],
                platforms: vec![Platform::parse("linux/amd64").unwrap()],
                watch: watch.iter().map(ToString::to_string).collect(),
                timeout: Duration::from_mins(30),
                trust: TrustDomain::parse("atlas").unwrap(),
                resources: BuildResources::default(),
                registry_cache: None,
            },
            environments: vec![],
        }
    }

    fn judge(app: &App, paths: &[&str]) -> Watched {
        let paths = ChangedPaths::These(paths.iter().map(ToString::to_string).collect());
        WatchedPaths::of_image(app).unwrap().judge(&paths)
    }

    #[test]
    fn the_dockerfile_and_the_declaration_are_watched_whatever_the_globs_say() {
        let app = app("svc", &["svc/src/**"]);
        assert_eq!(judge(&app, &["svc/src/a/b.py"]), Watched::Changed);
        assert_eq!(judge(&app, &["svc/Dockerfile"]), Watched::Changed);
        assert_eq!(judge(&app, &["decl/manifest.yaml"]), Watched::Changed);
        assert_eq!(judge(&app, &["svc/README.md", "other/Dockerfile"]), Watched::Unchanged);
    }

    #[test]
    fn without_globs_everything_below_the_context_is_watched() {
        assert_eq!(judge(&app("svc", &[]), &["svc/x"]), Watched::Changed);
        assert_eq!(judge(&app("svc", &[]), &["svc2/x"]), Watched::Unchanged);
        assert_eq!(judge(&app(".", &[]), &["anything/at/all"]), Watched::Changed);
    }

    #[test]
    fn one_star_stays_within_a_directory_and_brackets_in_paths_are_literal() {
        assert_eq!(judge(&app("svc", &["svc/*.py"]), &["svc/deep/x.py"]), Watched::Unchanged);
        assert_eq!(judge(&app("a[b]", &[]), &["a[b]/x"]), Watched::Changed);
    }

    #[test]
    fn what_cannot_be_told_counts_as_changed() {
        let watched = WatchedPaths::of_image(&app("svc", &[])).unwrap();
        assert_eq!(watched.judge(&ChangedPaths::CannotTell), Watched::Changed);
        assert_eq!(watched.judge(&ChangedPaths::These(vec![])), Watched::Unchanged);
    }
}
