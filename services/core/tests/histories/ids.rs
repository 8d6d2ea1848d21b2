//! Small numbers for people, real identifiers for the decision.
//!
//! Source commits are `c0, c1, …` and commits of `cluster/apps` are `a0, a1, …`, in the log as well as in
//! the first digits of the revisions made from them.

use std::collections::BTreeMap;
use std::time::Duration;

use fabrique_core::app::{App, BuildResources, BuildSpec, Source};
use fabrique_core::build::BuildInputs;
use fabrique_core::id::{
    AppName, BranchName, BuildId, BuildKey, EnvironmentName, ImageRepository, Platform, RelPath, RepoName,
    Revision, TrustDomain,
};

/// A commit of the source repository, by its number.
pub(crate) type Rev = usize;
/// A commit of `cluster/apps`, by its number.
pub(crate) type AppsId = usize;

pub(crate) fn revision(rev: Rev) -> Revision {
    numbered('c', rev)
}

pub(crate) fn apps_revision(id: AppsId) -> Revision {
    numbered('a', id)
}

fn numbered(kind: char, number: usize) -> Revision {
    Revision::parse(&format!("{kind}{number:011x}{:028x}", 0)).expect("hexadecimal digits")
}

/// The number of a revision made by [`revision`] or [`apps_revision`].
pub(crate) fn number(revision: &Revision) -> usize {
    usize::from_str_radix(&revision.as_str()[1..12], 16).expect("made by this module")
}

pub(crate) fn build_id(app: &App, number: u64) -> BuildId {
    BuildId::new(&app.name, &format!("{number:026}")).expect("digits are a ULID's letters")
}

pub(crate) fn environment_name(index: usize) -> EnvironmentName {
    EnvironmentName::parse(["prod", "second"][index]).expect("a label")
}

pub(crate) fn key(app: &App, rev: Rev, rebuild: u32) -> BuildKey {
    BuildInputs::of(app, &revision(rev), rebuild).key()
}

pub(crate) fn app() -> App {
    App {
        name: AppName::parse("citation").expect("a label"),
        source: Source {
            repo: RepoName::parse("atlas/atlas").expect("two names"),
            branch: BranchName::parse("main").expect("a branch"),
            declaration: None,
            migrations: None,
            upstream: None,
        },
        image: ImageRepository::parse("registry:80/citation").expect("host and name"),
        build: BuildSpec {
            context: RelPath::root(),
            dockerfile: RelPath::parse("Dockerfile").expect("a path"),
            target: None,
            args: BTreeMap::new(),
            secrets: Vec::new(),
            platforms: vec![Platform::parse("linux/amd64").expect("a platform")],
            watch: Vec::new(),
            timeout: Duration::from_mins(30),
            trust: TrustDomain::parse("atlas").expect("a name"),
            resources: BuildResources::default(),
            registry_cache: None,
        },
        environments: Vec::new(),
    }
}
