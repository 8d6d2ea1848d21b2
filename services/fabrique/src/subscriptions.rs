//! The registrations, as the receiver asks about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use fabrique_core::id::{AppName, BranchName, RelPath, RepoName, Revision};
use fabrique_declarations::contract;
use fabrique_gitops::{Registrations, Tree, layout};
use fabrique_observer::{Apps, AppsReader};
use fabrique_ports::PortResult;
use fabrique_ports::delivery::Push;
use fabrique_ports::deployments::{CommitFate, Deployments};
use fabrique_receiver::{Followers, SubscriptionIndex, Subscriptions, Unusable};
use tokio::time::Instant;

/// Reads registrations from `cluster/apps`.
pub(crate) struct RegisteredApps {
    reader: Arc<AppsReader>,
    deployments: Arc<dyn Deployments>,
    repo: RepoName,
    branch: BranchName,
    index: RwLock<SubscriptionIndex>,
    /// Where the source of each app is, or was when its registration could be read last.
    sources: Mutex<Sources>,
    /// What the last reload saw, to tell the next one what changed.
    seen: Mutex<Option<Arc<Apps>>>,
    /// What the first reload saw, as long as pushes from before it are expected.
    first: Mutex<Option<First>>,
    /// How long that is.
    late_pushes: Duration,
}

/// The source of each app.
type Sources = BTreeMap<AppName, (RepoName, BranchName)>;

/// The first reading.
#[derive(Clone)]
struct First {
    commit: Revision,
    at: Instant,
}

impl RegisteredApps {
    pub(crate) fn new(
        reader: Arc<AppsReader>,
        deployments: Arc<dyn Deployments>,
        repo: RepoName,
        branch: BranchName,
        late_pushes: Duration,
    ) -> Self {
        let (index, seen, first) = (RwLock::default(), Mutex::default(), Mutex::default());
        Self { reader, deployments, repo, branch, index, sources: Mutex::default(), seen, first, late_pushes }
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> Option<Arc<Apps>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the first reading saw, unless it is too long ago for a push from before it.
    fn first(&self) -> Option<Revision> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_some_and(|first| first.at.elapsed() > self.late_pushes) {
            *first = None;
        }
        first.as_ref().map(|first| first.commit.clone())
    }

    /// The paths that a push changed; nothing where one of its ends is no commit, or gone.
    async fn changed(&self, push: &Push, after: &Revision) -> PortResult<Option<Vec<String>>> {
        let new = push.before.bytes().all(|digit| digit == b'0');
        match Revision::parse(&push.before) {
            Ok(before) if !new => self.deployments.changed_since(&before, after).await,
            Ok(_) | Err(_) => Ok(None),
        }
    }
}

#[async_trait]
impl Subscriptions for RegisteredApps {
    fn followers(&self, repo: &RepoName, branch: &BranchName) -> Followers {
        self.index.read().unwrap_or_else(PoisonError::into_inner).followers(repo, branch)
    }

    fn unusable(&self) -> Vec<Unusable> {
        let Some(apps) = self.seen() else { return Vec::new() };
        let sources = self.sources();
        let unusable = apps.registrations.wrong.iter().map(|(app, wrong)| Unusable {
            app: app.clone(),
            why: wrong.to_string(),
            followed: sources.contains_key(app),
        });
        unusable.collect()
    }

    fn is_apps_repo(&self, repo: &RepoName, branch: &BranchName) -> bool {
        repo.same_as(&self.repo) && *branch == self.branch
    }

    fn loaded(&self) -> bool {
        self.seen().is_some()
    }

    async fn reload(&self) -> PortResult<BTreeSet<AppName>> {
        let apps = self.reader.read().await?;
        let sources = sources(&apps.registrations, &self.sources());
        let index = SubscriptionIndex::new(
            sources.iter().map(|(app, (repo, branch))| (app.clone(), repo.clone(), branch.clone())),
        );
        *self.sources() = sources;
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = index;
        let before = self.seen.lock().unwrap_or_else(PoisonError::into_inner).replace(Arc::clone(&apps));
        let Some(before) = before else {
            let first = First { commit: apps.commit.clone(), at: Instant::now() };
            *self.first.lock().unwrap_or_else(PoisonError::into_inner) = Some(first);
            return Ok(BTreeSet::new());
        };
        Ok(touched(&before, &apps))
    }

    async fn missed(&self, push: &Push) -> PortResult<BTreeSet<AppName>> {
        let (Some(first), Some(apps)) = (self.first(), self.seen()) else { return Ok(BTreeSet::new()) };
        let Ok(after) = Revision::parse(&push.after) else { return Ok(BTreeSet::new()) };
        match self.deployments.fate(&after, &first).await? {
            CommitFate::OnBranch => {}
            // Newer, and told by a reload; or replaced by a push that tells of both.
            CommitFate::OffBranch => return Ok(BTreeSet::new()),
        }
        let registrations = &apps.registrations;
        let Some(changed) = self.changed(push, &after).await? else {
            return Ok(registrations.apps.keys().cloned().collect());
        };
        let changed: Vec<RelPath> = changed.iter().filter_map(|path| RelPath::parse(path).ok()).collect();
        Ok(concerned(&apps, &changed))
    }
}

/// Where the source of each app is. One whose registration is wrong is followed where that says so, or else where it was
/// when it could be read: what is pushed there meanwhile is not to be lost.
fn sources(registrations: &Registrations, known: &Sources) -> Sources {
    let right = registrations.apps.values();
    let right = right.map(|app| (app.name.clone(), (app.source.repo.clone(), app.source.branch.clone())));
    let wrong = registrations.wrong.iter().filter_map(|(app, wrong)| {
        let source = wrong.source.as_ref().or_else(|| known.get(app))?;
        Some((app.clone(), source.clone()))
    });
    right.chain(wrong).collect()
}

/// The apps that a push from before these registrations concerns, by the paths that it changed: those that it
/// unregistered too, of which only the path tells.
fn concerned(apps: &Apps, changed: &[RelPath]) -> BTreeSet<AppName> {
    let mut concerned = apps.registrations.touching(changed);
    concerned.extend(changed.iter().filter_map(registered_by));
    concerned
}

/// The app whose registration lies at a path.
fn registered_by(path: &RelPath) -> Option<AppName> {
    let name = AppName::parse(path.as_str().split('/').nth(1)?).ok()?;
    (layout::registration_of(&name) == *path).then_some(name)
}

/// The apps whose files differ: registered before, now, or both. What the contract says concerns all that declare
/// something. What is wrong with an app may be another one's file, as where two have one image: it is told when that changes.
fn touched(before: &Apps, now: &Apps) -> BTreeSet<AppName> {
    let changed = differing(&before.tree, &now.tree);
    let mut touched = now.registrations.touching(changed.iter().copied());
    touched.extend(before.registrations.touching(changed.iter().copied()));
    let (was, is) = (&before.registrations.wrong, &now.registrations.wrong);
    touched.extend(was.keys().chain(is.keys()).filter(|app| was.get(*app) != is.get(*app)).cloned());
    if changed.iter().any(|path| path.as_str() == contract::FILE_NAME) {
        let declaring = now.registrations.apps.values().filter(|app| app.source.declaration.is_some());
        touched.extend(declaring.map(|app| app.name.clone()));
    }
    touched
}

fn differing<'t>(before: &'t Tree, now: &'t Tree) -> BTreeSet<&'t RelPath> {
    let (old, new): (BTreeMap<_, _>, BTreeMap<_, _>) = (before.iter().collect(), now.iter().collect());
    let gone_or_changed =
        old.iter().filter(|(path, entry)| new.get(*path) != Some(*entry)).map(|(path, _)| *path);
    let added = new.keys().filter(|path| !old.contains_key(*path)).copied();
    gone_or_changed.chain(added).collect()
}

#[cfg(test)]
mod tests {
    use fabrique_gitops::{Entry, Rules};

    use super::*;

    fn paths(paths: &[&str]) -> Vec<RelPath> {
        paths.iter().map(|path| RelPath::parse(path).unwrap()).collect()
    }

    fn registered(text: &str) -> Registrations {
        let file = (RelPath::parse("apps/citation/app.yaml").unwrap(), Entry::regular(text.to_owned()));
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        Registrations::load(&[file].into_iter().collect(), &rules)
    }

    #[test]
    fn an_app_whose_registration_became_wrong_is_followed_still_and_one_without_is_not() {
        let right = "apiVersion: fabrique/v1\nkind: App\nmetadata: {name: citation}\nspec:\n  \
                     source: {repo: atlas/citation}\n  image: registry:80/citation\n";
        let shown = |sources: &Sources| {
            let all = sources.iter().map(|(app, (repo, branch))| format!("{app} {repo} {branch}"));
            all.collect::<Vec<_>>().join(", ")
        };
        let first = sources(&registered(right), &Sources::default());
        assert_eq!(shown(&first), "citation atlas/citation main");
        // What it says of its source counts, also where something else of it is wrong.
        let moved = sources(
            &registered(&right.replace("atlas/citation", "atlas/moved").replace("image", "imago")),
            &first,
        );
        assert_eq!(shown(&moved), "citation atlas/moved main");
        let unread = sources(&registered("spec: ["), &moved);
        assert_eq!(shown(&unread), "citation atlas/moved main");
        assert_eq!(shown(&sources(&registered("spec: ["), &Sources::default())), "");
        assert_eq!(shown(&sources(&Registrations::default(), &unread)), "", "it was unregistered");
    }

    #[test]
    fn an_app_that_is_wrong_because_of_anothers_file_is_told_when_that_comes_and_goes() {
        let state = |commit: &str, ledger: &str| {
            let file = |app: &str, image: &str| {
                let text = format!(
                    "apiVersion: fabrique/v1\nkind: App\nmetadata: {{name: {app}}}\nspec:\n  source: {{repo: \
                     atlas/{app}}}\n  image: registry:80/{image}\n"
                );
                (RelPath::parse(&format!("apps/{app}/app.yaml")).unwrap(), Entry::regular(text))
            };
            let rules = Rules { registries: vec!["registry:80".to_owned()] };
            let files =
                [file("citation", "citation"), file("ledger", ledger), file("mediawatch", "mediawatch")];
            Apps::parse(Revision::parse(&commit.repeat(40)).unwrap(), files.into_iter().collect(), &rules)
        };
        let (right, shared) = (state("a", "ledger"), state("b", "citation"));
        assert_eq!((right.registrations.wrong.len(), shared.registrations.wrong.len()), (0, 2));
        let names = |before: &Apps, now: &Apps| {
            touched(before, now).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&right, &shared), "citation ledger");
        assert_eq!(names(&shared, &right), "citation ledger", "what was recorded meanwhile is deployed now");
        assert_eq!(names(&shared, &shared), "");
    }

    #[test]
    fn a_push_concerns_the_apps_that_it_unregistered_too() {
        let citation = "apiVersion: fabrique/v1\nkind: App\nmetadata: {name: citation}\nspec:\n  \
                        source: {repo: atlas/citation}\n  image: registry:80/citation\n";
        let file = (RelPath::parse("apps/citation/app.yaml").unwrap(), Entry::regular(citation.to_owned()));
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        let apps =
            Apps::parse(Revision::parse(&"a".repeat(40)).unwrap(), [file].into_iter().collect(), &rules);
        assert_eq!(apps.registrations.apps.len(), 1, "{:?}", apps.registrations.findings);
        let by = |changed: &[&str]| {
            let names = concerned(&apps, &paths(changed));
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            by(&["apps/ledger/app.yaml", "apps/citation/prod/kustomization.yaml"]),
            ["citation", "ledger"]
        );
        assert_eq!(by(&["contract.yaml", "apps/ledger/app.yaml"]), ["citation", "ledger"]);
        let none = ["README.md", "apps", "apps/app.yaml", "apps/ledger/prod/app.yaml", "old/ledger/app.yaml"];
        assert!(by(&none).is_empty(), "{:?}", by(&none));
    }
}
