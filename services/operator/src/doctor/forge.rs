//! Gitea: the server, `cluster/apps`, and what every token may do.

use fabrique_core::id::{BranchName, RepoName};
use fabrique_observer::Apps;
use fabrique_ports::PortResult;
use fabrique_ports::forge::{BranchHead, ForgeInspection, RepoRights};
use futures::{StreamExt as _, stream};

use super::{Check, Doctor, Purpose};
use crate::hooks::{self, Watched};

/// How many repositories are asked about at once.
const AT_ONCE: usize = 4;

/// The server's version, and whether it takes each token.
pub(super) async fn server(doctor: &Doctor) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut version = None;
    for (purpose, inspection) in &doctor.ports.tokens {
        let name = format!("token {}", purpose.as_str());
        match inspection.info().await {
            Ok(info) => {
                let as_whom = info.login.map_or_else(
                    || "accepted, its user is not told".to_owned(),
                    |login| format!("is {login}'s"),
                );
                checks.push(Check::ok(name, as_whom));
                version.get_or_insert(info.version);
            }
            Err(error) => checks.push(Check::error(name, &error)),
        }
    }
    if let Some(version) = version {
        checks.insert(0, Check::ok("gitea", format!("answers as {version}")));
    }
    checks
}

/// Whether `cluster/apps` can be read, and written by the token that is for it.
pub(super) async fn deployments(doctor: &Doctor) -> Vec<Check> {
    let (repo, branch) = (&doctor.config.apps_repo, &doctor.config.apps_branch);
    let name = repo.to_string();
    let mut checks = vec![match doctor.ports.forge.branch_head(repo, branch).await {
        Ok(BranchHead::At(head)) => Check::ok(&name, format!("{branch} is at {}", head.short())),
        Ok(BranchHead::NoBranch) => Check::fail(
            &name,
            format!("there is no branch {branch}"),
            format!("push a first commit to {branch}, or configure the branch that is deployed"),
        ),
        Ok(BranchHead::NoRepository) => Check::fail(
            &name,
            "there is no such repository, or the apps token may not read it",
            "create it, and give the token's user write access",
        ),
        Err(error) => Check::error(&name, &error),
    }];
    for (_, inspection) in doctor.ports.tokens.iter().filter(|(purpose, _)| *purpose == Purpose::Apps) {
        let writable = writable(inspection.as_ref(), repo, branch).await;
        checks.push(writable.unwrap_or_else(|error| Check::error(&name, &error)));
    }
    checks
}

async fn writable(
    inspection: &dyn ForgeInspection,
    repo: &RepoName,
    branch: &BranchName,
) -> PortResult<Check> {
    let name = repo.to_string();
    let unwritable = unwritable(&name, inspection.rights(repo).await?);
    if let Some(unwritable) = unwritable {
        return Ok(unwritable);
    }
    Ok(match inspection.may_push(repo, branch).await? {
        Some(false) => Check::fail(
            name,
            format!("{branch} is protected against pushes with the apps token"),
            "let the token's user push in the protection of that branch",
        ),
        // That there is no such branch is told of the branch.
        Some(true) | None => Check::ok(name, format!("the apps token may push to {branch}")),
    })
}

/// Why nothing can be pushed to a repository, whatever its branches are protected against.
fn unwritable(name: &str, rights: Option<RepoRights>) -> Option<Check> {
    match rights {
        None => {
            Some(Check::fail(name, "the apps token may not see it", "give the token's user write access"))
        }
        Some(RepoRights { archived: true, .. }) => {
            let remedy = "unarchive it in Gitea's settings";
            Some(Check::fail(name, "it is archived, so nobody can push", remedy))
        }
        Some(RepoRights { push: false, .. }) => {
            let remedy = "give the token's user write access to code";
            Some(Check::fail(name, "the apps token may not push", remedy))
        }
        Some(RepoRights { push: true, .. }) => None,
    }
}

/// Whether every token may do what it is for, at every repository that it is for.
pub(super) async fn rights(doctor: &Doctor, apps: Option<&Apps>) -> Vec<Check> {
    let Some(apps) = apps else { return Vec::new() };
    let place = (&doctor.config.apps_repo, &doctor.config.apps_branch);
    let watched = hooks::watched(&apps.registrations, place);
    let mut checks = Vec::new();
    for (purpose, inspection) in &doctor.ports.tokens {
        let repos = needed_at(*purpose, &watched, &doctor.config.apps_repo);
        let wrong: Vec<Option<String>> = stream::iter(repos.clone())
            .map(|repo| lacks(*purpose, inspection.as_ref(), repo))
            .buffered(AT_ONCE)
            .collect()
            .await;
        let wrong: Vec<String> = wrong.into_iter().flatten().collect();
        let name = format!("token {}", purpose.as_str());
        if !wrong.is_empty() {
            checks.push(Check::fail(name, wrong.join("; "), remedy(*purpose)));
        } else if !repos.is_empty() {
            let what = format!("may {} at {} repositories", right(*purpose), repos.len());
            checks.push(Check::ok(name, what));
        }
    }
    checks
}

/// The repositories a token is for. `cluster/apps` itself is looked at by [`deployments`].
fn needed_at(purpose: Purpose, watched: &[Watched], apps_repo: &RepoName) -> Vec<RepoName> {
    let repos = watched.iter().map(|watched| watched.repo.clone());
    match purpose {
        Purpose::Hooks => repos.collect(),
        Purpose::Read | Purpose::Status => repos.filter(|repo| !repo.same_as(apps_repo)).collect(),
        Purpose::Apps => Vec::new(),
    }
}

async fn lacks(purpose: Purpose, inspection: &dyn ForgeInspection, repo: RepoName) -> Option<String> {
    match inspection.rights(&repo).await {
        Ok(None) => Some(format!("{repo} is not there, or the token may not see it")),
        Ok(Some(rights)) if suffices(purpose, rights) => None,
        Ok(Some(_)) => Some(format!("it may not {} at {repo}", right(purpose))),
        Err(error) => Some(format!("{repo}: {error}")),
    }
}

fn suffices(purpose: Purpose, rights: RepoRights) -> bool {
    match purpose {
        Purpose::Read => rights.pull,
        Purpose::Status | Purpose::Apps => rights.push,
        Purpose::Hooks => rights.admin,
    }
}

fn right(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Read => "read code",
        Purpose::Status => "set commit statuses",
        Purpose::Hooks => "change webhooks",
        Purpose::Apps => "push",
    }
}

fn remedy(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Read => "give the token's user read access to code, and the token the scope read:repository",
        Purpose::Status | Purpose::Apps => {
            "give the token's user write access to code, and the token the scope write:repository"
        }
        Purpose::Hooks => {
            "make the token's user an administrator of the repositories, and give the token the scope write:repository"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn every_purpose_asks_for_its_own_right() {
        let reader = RepoRights { pull: true, ..RepoRights::default() };
        let writer = RepoRights { push: true, ..reader };
        let allowed = |rights| {
            [Purpose::Read, Purpose::Status, Purpose::Hooks, Purpose::Apps].map(|p| suffices(p, rights))
        };
        assert_eq!(allowed(reader), [true, false, false, false]);
        assert_eq!(allowed(writer), [true, true, false, true]);
        assert_eq!(allowed(RepoRights { admin: true, ..writer }), [true, true, true, true]);
    }

    #[test]
    fn an_archived_repository_is_not_writable_whatever_the_rights() {
        let rights = RepoRights { pull: true, push: true, admin: true, archived: true };
        let level = |rights| unwritable("cluster/apps", rights).map(|check| check.level);
        assert_eq!(level(Some(rights)), Some(Level::Fail));
        assert_eq!(level(Some(RepoRights { archived: false, ..rights })), None);
        assert_eq!(level(None), Some(Level::Fail));
    }
}
