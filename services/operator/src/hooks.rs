//! Webhooks where they have to be: on every repository that an app is built from, and on `cluster/apps`.

use std::collections::BTreeSet;

use fabrique_core::id::{BranchName, RepoName};
use fabrique_gitops::Registrations;
use fabrique_ports::forge::{HookDifference, HookOutcome, Hooks, WantedHook};
use futures::{StreamExt as _, stream};
use serde::Serialize;

use crate::exit::Exit;

/// How many repositories are looked at at once.
const AT_ONCE: usize = 4;
/// A filter longer than this says "all branches" instead; the receiver filters anyway.
const LONGEST_FILTER: usize = 200;

/// A repository and the branches whose pushes matter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Watched {
    /// The repository.
    pub repo: RepoName,
    /// The branches that apps follow, or that is deployed.
    pub branches: BTreeSet<BranchName>,
}

impl Watched {
    /// The branches as a Gitea branch filter. A name with a character that means something in a glob, or
    /// too many names, make it `*`: a delivery too many costs nothing.
    #[must_use]
    pub fn filter(&self) -> String {
        let plain = |branch: &BranchName| !branch.as_str().contains(['{', '}', ',', '!', '[', ']', '\\']);
        let names: Vec<&str> = self.branches.iter().map(BranchName::as_str).collect();
        let filter = match names.as_slice() {
            [one] => (*one).to_owned(),
            several => format!("{{{}}}", several.join(",")),
        };
        let usable = self.branches.iter().all(plain) && filter.len() <= LONGEST_FILTER && !names.is_empty();
        if usable { filter } else { "*".to_owned() }
    }

    /// The webhook that delivers them to `url`.
    #[must_use]
    pub fn hook(&self, url: &str) -> WantedHook {
        WantedHook { url: url.to_owned(), branch_filter: self.filter() }
    }
}

/// Every repository that needs a webhook, by name: those of registered apps, and `cluster/apps`.
#[must_use]
pub fn watched(registrations: &Registrations, apps: (&RepoName, &BranchName)) -> Vec<Watched> {
    let sources = registrations.apps.values().map(|app| (&app.source.repo, &app.source.branch));
    let mut all: Vec<Watched> = Vec::new();
    for (repo, branch) in sources.chain([apps]) {
        // Gitea compares names without case.
        match all.iter_mut().find(|known| known.repo.same_as(repo)) {
            Some(known) => drop(known.branches.insert(branch.clone())),
            None => all.push(Watched { repo: repo.clone(), branches: BTreeSet::from([branch.clone()]) }),
        }
    }
    all.sort_by_key(|watched| watched.repo.to_string());
    all
}

/// What was found, and done, at every repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ensured {
    /// Whether nothing was written.
    pub dry_run: bool,
    /// Every repository, by name.
    pub repositories: Vec<EnsuredHook>,
}

/// What was found, and done, at one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnsuredHook {
    /// The repository.
    pub repo: RepoName,
    /// Which branches are delivered.
    pub branch_filter: String,
    /// What came of it.
    pub result: HookResult,
    /// What differed, why it failed, or nothing.
    pub detail: String,
    /// How a process ends that this stops.
    #[serde(skip)]
    pub(crate) exit: Exit,
}

/// What came of looking after a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookResult {
    /// It was as it should be.
    Present,
    /// It was missing and is there now, or would be.
    Created,
    /// It differed and is repaired now, or would be.
    Repaired,
    /// There is no such repository, or the token may not see it.
    NoRepository,
    /// The forge refused or did not answer.
    Failed,
}

impl Ensured {
    /// How the process ends: a dry run that would write is a finding.
    #[must_use]
    pub fn exit(&self) -> Exit {
        Exit::worst(self.repositories.iter().map(|hook| match hook.result {
            HookResult::Present => Exit::Ok,
            HookResult::Created | HookResult::Repaired => Exit::ok_if(!self.dry_run),
            HookResult::NoRepository | HookResult::Failed => hook.exit,
        }))
    }
}

/// Makes every watched repository have exactly one webhook that delivers to `url`. With `dry_run` nothing is
/// written. One repository that fails stops no other.
pub async fn ensure(hooks: &dyn Hooks, watched: Vec<Watched>, url: &str, dry_run: bool) -> Ensured {
    let mut repositories: Vec<EnsuredHook> = stream::iter(watched)
        .map(|watched| ensure_one(hooks, watched, url, dry_run))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    repositories.sort_by_key(|hook| hook.repo.to_string());
    Ensured { dry_run, repositories }
}

/// Differences on one line.
pub(crate) fn told(differences: &[HookDifference]) -> String {
    differences.iter().map(|difference| difference.what.as_str()).collect::<Vec<_>>().join(", ")
}

async fn ensure_one(hooks: &dyn Hooks, watched: Watched, url: &str, dry_run: bool) -> EnsuredHook {
    let wanted = watched.hook(url);
    let mut exit = Exit::Ok;
    let (result, detail) = match hooks.ensure_hook(&watched.repo, &wanted, dry_run).await {
        Ok(HookOutcome::Present) => (HookResult::Present, String::new()),
        Ok(HookOutcome::Created) => (HookResult::Created, String::new()),
        Ok(HookOutcome::Repaired(differences)) => (HookResult::Repaired, told(&differences)),
        Ok(HookOutcome::NoRepository) => {
            exit = Exit::Findings;
            let why = "there is no such repository, or the hooks token may not see it";
            (HookResult::NoRepository, why.to_owned())
        }
        Err(error) => {
            exit = Exit::from(&error);
            (HookResult::Failed, error.to_string())
        }
    };
    EnsuredHook { repo: watched.repo, branch_filter: wanted.branch_filter, result, detail, exit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(branches: &[&str]) -> String {
        let branches = branches.iter().map(|name| BranchName::parse(name).unwrap()).collect();
        Watched { repo: RepoName::parse("atlas/citation").unwrap(), branches }.filter()
    }

    #[test]
    fn the_filter_covers_the_branches_in_use_and_no_others() {
        assert_eq!(filter(&["main"]), "main");
        assert_eq!(filter(&["main", "release/1"]), "{main,release/1}");
    }

    #[test]
    fn a_branch_that_would_be_a_glob_makes_the_filter_deliver_everything() {
        assert_eq!(filter(&["a{b}"]), "*");
        assert_eq!(filter(&["a,b", "main"]), "*");
        let long = "x".repeat(120);
        assert_eq!(filter(&[&format!("{long}1"), &format!("{long}2")]), "*");
    }

    #[test]
    fn a_dry_run_that_would_write_is_a_finding() {
        let exit = |dry_run, result, exit| {
            let hook = EnsuredHook {
                repo: RepoName::parse("atlas/citation").unwrap(),
                branch_filter: "main".to_owned(),
                result,
                detail: String::new(),
                exit,
            };
            Ensured { dry_run, repositories: vec![hook] }.exit()
        };
        assert_eq!(exit(true, HookResult::Created, Exit::Ok), Exit::Findings);
        assert_eq!(exit(false, HookResult::Created, Exit::Ok), Exit::Ok);
        assert_eq!(exit(true, HookResult::Present, Exit::Ok), Exit::Ok);
        assert_eq!(exit(false, HookResult::NoRepository, Exit::Findings), Exit::Findings);
        assert_eq!(exit(false, HookResult::Failed, Exit::Unreachable), Exit::Unreachable);
    }
}
