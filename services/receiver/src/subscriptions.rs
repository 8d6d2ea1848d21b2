//! Who follows which branch.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use fabrique_core::id::{AppName, BranchName, RepoName};
use fabrique_ports::PortResult;
use fabrique_ports::delivery::Push;

/// The apps that a push concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Followers {
    /// These follow the branch; at least one.
    Apps(Vec<AppName>),
    /// The repository is registered, and no app follows this branch of it.
    OtherBranch,
    /// No app is registered for this repository.
    UnknownRepository,
}

/// An app whose registration cannot be used: nothing is done for it until that is corrected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// The app, by the directory of its registration.
    pub app: AppName,
    /// What is wrong, with its place and what to do.
    pub why: String,
    /// Whether its source is known all the same, so that pushes there wake it.
    pub followed: bool,
}

/// The registrations on `cluster/apps`, as far as a push needs them.
///
/// The answers come from memory, from the last successful [`reload`](Subscriptions::reload); with none yet,
/// every repository is unknown.
#[async_trait]
pub trait Subscriptions: Send + Sync {
    /// Who follows this branch. Repository names are compared without case, branches with it.
    fn followers(&self, repo: &RepoName, branch: &BranchName) -> Followers;

    /// The apps whose registration cannot be used, to be told to who pushes for them.
    fn unusable(&self) -> Vec<Unusable> {
        Vec::new()
    }

    /// Whether this is the branch of `cluster/apps` that registrations and compositions are read from. Known
    /// from the configuration, before anything is read.
    fn is_apps_repo(&self, repo: &RepoName, branch: &BranchName) -> bool;

    /// Whether a reload has succeeded yet.
    fn loaded(&self) -> bool;

    /// Reads the head of `cluster/apps`, asked for after the call, and answers with the apps whose
    /// registration, composition or bindings have changed since the last successful reload: each change is
    /// told once. The first reload has nothing to compare with and tells nothing; [`missed`](Subscriptions::missed)
    /// does, for the pushes that are still delivered.
    async fn reload(&self) -> PortResult<BTreeSet<AppName>>;

    /// The apps whose registration, composition or bindings a push to `cluster/apps` changed which the first reload
    /// had seen already: made around the start, delivered after it, and told by no reload. All apps where it cannot be
    /// known what it changed; nothing for a push that came later than the first reload.
    async fn missed(&self, push: &Push) -> PortResult<BTreeSet<AppName>>;
}

/// A look-up from repository and branch to apps, for implementations of [`Subscriptions`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubscriptionIndex {
    by_repo: HashMap<String, Vec<(BranchName, AppName)>>,
}

impl SubscriptionIndex {
    /// Indexes each app under the branch it follows.
    pub fn new(apps: impl IntoIterator<Item = (AppName, RepoName, BranchName)>) -> Self {
        let mut by_repo: HashMap<String, Vec<(BranchName, AppName)>> = HashMap::new();
        for (app, repo, branch) in apps {
            by_repo.entry(key(&repo)).or_default().push((branch, app));
        }
        Self { by_repo }
    }

    /// See [`Subscriptions::followers`].
    #[must_use]
    pub fn followers(&self, repo: &RepoName, branch: &BranchName) -> Followers {
        let Some(entries) = self.by_repo.get(&key(repo)) else { return Followers::UnknownRepository };
        let apps: Vec<AppName> =
            entries.iter().filter(|(followed, _)| followed == branch).map(|(_, app)| app.clone()).collect();
        if apps.is_empty() { Followers::OtherBranch } else { Followers::Apps(apps) }
    }
}

fn key(repo: &RepoName) -> String {
    repo.to_string().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(name: &str) -> AppName {
        AppName::parse(name).unwrap()
    }

    #[test]
    fn repositories_are_found_without_case_and_branches_with_it() {
        let repo = |name| RepoName::parse(name).unwrap();
        let branch = |name| BranchName::parse(name).unwrap();
        let index = SubscriptionIndex::new([
            (app("citation"), repo("atlas/Atlas"), branch("main")),
            (app("graph"), repo("Atlas/atlas"), branch("main")),
            (app("next"), repo("atlas/atlas"), branch("next")),
        ]);
        let both = Followers::Apps(vec![app("citation"), app("graph")]);
        assert_eq!(index.followers(&repo("ATLAS/ATLAS"), &branch("main")), both);
        assert_eq!(
            index.followers(&repo("atlas/atlas"), &branch("next")),
            Followers::Apps(vec![app("next")])
        );
        assert_eq!(index.followers(&repo("atlas/atlas"), &branch("Main")), Followers::OtherBranch);
        assert_eq!(index.followers(&repo("atlas/other"), &branch("main")), Followers::UnknownRepository);
    }
}
