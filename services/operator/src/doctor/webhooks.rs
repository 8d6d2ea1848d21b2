//! Webhooks: at every repository, and how long a delivery takes.

use std::time::{Duration, Instant};

use fabrique_core::id::{BranchName, RepoName};
use fabrique_observer::Apps;
use fabrique_ports::bus::{Event, EventBody};
use fabrique_ports::forge::{HookDifference, HookOutcome};
use fabrique_ports::{PortError, PortResult};
use futures::{StreamExt as _, stream};
use url::Url;

use super::{Check, Config, Doctor, pushes};
use crate::hooks::{self, Watched};

/// How many repositories are asked about at once.
const AT_ONCE: usize = 4;
/// What the receiver says of a test delivery.
pub(super) const TEST: &str = "test delivery";

/// A delivery is slow for one reason in practice.
pub(super) const QUEUES: &str = "set `[queue.push_update] TYPE = channel` and `[queue.webhook_sender] TYPE = channel` in \
                      Gitea's app.ini: its default queues poll, which adds seconds to every push";

/// None arrives from anywhere.
const LOST: &str = "is the receiver running, does Gitea reach the webhook's address, and is the address in \
                    `[webhook] ALLOWED_HOST_LIST`? Gitea shows its deliveries in the webhook's settings";
/// It arrives from other repositories.
const FILTERED: &str = "nothing, if no app follows the default branch here: Gitea tests with that one. Otherwise \
                        look at the deliveries in the webhook's settings in Gitea";

/// What is there of a repository's webhook.
#[derive(Debug)]
enum Found {
    /// One as `hooks ensure` makes it; or just one that delivers to the right address, where no more can be told.
    Good,
    /// One that `hooks ensure` would repair.
    Differs(Vec<HookDifference>),
    /// None, or only one that is switched off.
    Missing,
    /// No such repository, as far as the hooks token sees.
    NoRepository,
    /// The forge did not say.
    Unknown(PortError),
}

impl Found {
    /// Whether a push can be expected to arrive.
    fn delivers(&self) -> bool {
        match self {
            Found::Good => true,
            Found::Differs(differences) => !differences.iter().any(|difference| difference.loses),
            Found::Missing | Found::NoRepository | Found::Unknown(_) => false,
        }
    }
}

pub(super) async fn webhooks(doctor: &Doctor, apps: Option<&Apps>) -> Vec<Check> {
    let (Some(url), Some(apps)) = (&doctor.config.hook_url, apps) else { return Vec::new() };
    let place = (&doctor.config.apps_repo, &doctor.config.apps_branch);
    let mut watched = hooks::watched(&apps.registrations, place);
    watched.sort_by_key(|watched| promise(watched, &doctor.config.apps_repo));
    let found: Vec<(RepoName, Found)> = stream::iter(watched)
        .map(|watched| async move {
            let found = look(doctor, &watched, url).await;
            (watched.repo, found)
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    let mut checks = vec![present(&found, doctor.config.hook_secret)];
    let there = found.into_iter().filter(|(_, found)| found.delivers()).map(|(repo, _)| repo);
    let (mut arrived, mut last) = (false, None);
    for repo in there.take(doctor.config.bounds.deliveries) {
        let name = format!("webhook delay {repo}");
        checks.push(match measure(doctor, &repo, url).await {
            Ok(arrival) => {
                arrived |= arrival.is_some();
                let delay = arrival.as_ref().map(|(delay, _)| *delay);
                last = arrival.map(|(_, event)| event).or(last);
                judge(name, delay, arrived, &doctor.config)
            }
            Err(error) => Check::error(name, &error),
        });
    }
    if let Some(last) = last {
        checks.push(pushes::pushes(doctor, &last).await);
    }
    checks
}

/// Where a test delivery is most likely to come through, first. Gitea sends one for the default branch
/// only, and drops it where the webhook's branch filter leaves that branch out.
fn promise(watched: &Watched, apps_repo: &RepoName) -> u8 {
    let usual = |branch: &BranchName| matches!(branch.as_str(), "main" | "master");
    match (watched.repo.same_as(apps_repo), watched.branches.iter().any(usual)) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}

/// Compares a repository's webhook with what `hooks ensure` would make of it, by the same rules. Where the secret is
/// not known here there are no such rules, and one that delivers to the address has to do.
async fn look(doctor: &Doctor, watched: &Watched, url: &str) -> Found {
    if !doctor.config.hook_secret {
        return match find(doctor, &watched.repo, url).await {
            Ok(Some(_)) => Found::Good,
            Ok(None) => Found::Missing,
            Err(error) => Found::Unknown(error),
        };
    }
    match doctor.ports.hooks.ensure_hook(&watched.repo, &watched.hook(url), true).await {
        Ok(HookOutcome::Present) => Found::Good,
        Ok(HookOutcome::Created) => Found::Missing,
        Ok(HookOutcome::Repaired(differences)) => Found::Differs(differences),
        Ok(HookOutcome::NoRepository) => Found::NoRepository,
        Err(error) => Found::Unknown(error),
    }
}

/// The active webhook of a repository that delivers to `url`, however that is written.
async fn find(doctor: &Doctor, repo: &RepoName, url: &str) -> PortResult<Option<i64>> {
    let hooks = doctor.ports.hooks.hooks(repo).await?;
    Ok(hooks.into_iter().find(|hook| hook.active && same_url(&hook.url, url)).map(|hook| hook.id))
}

fn same_url(one: &str, other: &str) -> bool {
    one == other || Url::parse(one).is_ok_and(|one| Url::parse(other).is_ok_and(|other| one == other))
}

/// What there is at all repositories. `compared` is whether more than the addresses was looked at.
fn present(found: &[(RepoName, Found)], compared: bool) -> Check {
    let name = "webhooks";
    let (mut missing, mut lost, mut lossy, mut untidy, mut unknown) =
        (vec![], vec![], vec![], vec![], vec![]);
    for (repo, found) in found {
        match found {
            Found::Good => {}
            Found::Missing => missing.push(repo.to_string()),
            Found::NoRepository => lost.push(repo.to_string()),
            Found::Differs(differences) => {
                let list = if found.delivers() { &mut untidy } else { &mut lossy };
                list.push(format!("{repo} ({})", hooks::told(differences)));
            }
            Found::Unknown(error) => unknown.push(format!("{repo}: {error}")),
        }
    }
    let told =
        |what: &str, repos: &[String]| (!repos.is_empty()).then(|| format!("{what} {}", repos.join(", ")));
    let losing = [told("missing or switched off at", &missing), told("would be repaired at", &lossy)];
    let losing: Vec<String> = losing.into_iter().flatten().collect();
    if !losing.is_empty() {
        let remedy = "`fabrique hooks ensure`; until then the reconciler finds pushes";
        return Check::fail(name, losing.join("; "), remedy);
    }
    if let Some(what) = told("there is no, or the hooks token does not see", &lost) {
        return Check::fail(
            name,
            what,
            "correct the registration, or add the token's user to the repository",
        );
    }
    if !unknown.is_empty() {
        return Check::fail(name, unknown.join("; "), "check the hooks token and what it may do");
    }
    if let Some(what) = told("would be repaired at", &untidy) {
        return Check::warn(name, what, "`fabrique hooks ensure`; no push is lost meanwhile");
    }
    let there = format!("present at {} repositories", found.len());
    let unsure = "; by their addresses alone, since no webhook secret is configured here";
    Check::ok(name, if compared { there } else { there + unsure })
}

/// How long a test delivery takes from the request to the receiver's event, and that event; nothing when none
/// arrives.
async fn measure(doctor: &Doctor, repo: &RepoName, url: &str) -> PortResult<Option<(Duration, Event)>> {
    let Some(hook) = find(doctor, repo, url).await? else { return Ok(None) };
    // Listening first: the delivery may be faster than a second request.
    let mut events = doctor.ports.events.tail(None, None).await?;
    let start = Instant::now();
    doctor.ports.hooks.test_delivery(repo, hook).await?;
    let arrival = async {
        while let Some(event) = events.next().await {
            let event = event?;
            if is_test_of(&event.body, repo) {
                return Ok(Some((start.elapsed(), event)));
            }
        }
        Ok(None)
    };
    tokio::time::timeout(doctor.config.bounds.delivery_timeout, arrival).await.unwrap_or(Ok(None))
}

fn is_test_of(body: &EventBody, wanted: &RepoName) -> bool {
    match body {
        EventBody::Delivery { repo, ignored: Some(why), .. } => repo.same_as(wanted) && why.contains(TEST),
        EventBody::Delivery { ignored: None, .. }
        | EventBody::Decision { .. }
        | EventBody::Build { .. }
        | EventBody::Step { .. }
        | EventBody::Commit { .. }
        | EventBody::Command { .. }
        | EventBody::Warning { .. } => false,
    }
}

/// `elsewhere` is whether a test delivery arrived from this forge at all.
fn judge(name: String, delay: Option<Duration>, elsewhere: bool, config: &Config) -> Check {
    let Some(delay) = delay else {
        let what =
            format!("a test delivery did not arrive within {} s", config.bounds.delivery_timeout.as_secs());
        return if elsewhere { Check::warn(name, what, FILTERED) } else { Check::fail(name, what, LOST) };
    };
    let what = format!("a test delivery takes {:.2} s", delay.as_secs_f64());
    if delay > config.bounds.slow_delivery { Check::warn(name, what, QUEUES) } else { Check::ok(name, what) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    fn repo(name: &str) -> RepoName {
        RepoName::parse(name).unwrap()
    }

    #[test]
    fn a_slow_delivery_warns_with_the_settings_of_the_queues_and_a_lost_one_fails() {
        let config = Config::new(repo("cluster/apps"), BranchName::parse("main").unwrap());
        let judged = |delay| judge("delay".to_owned(), delay, false, &config);
        assert_eq!(judged(Some(Duration::from_millis(220))).level, Level::Ok);
        let slow = judged(Some(Duration::from_millis(1501)));
        assert_eq!(slow.level, Level::Warn);
        assert!(slow.remedy.contains("TYPE = channel"), "{}", slow.remedy);
        assert_eq!(judged(None).level, Level::Fail);
        let filtered = judge("delay".to_owned(), None, true, &config);
        assert_eq!(filtered.level, Level::Warn);
    }

    #[test]
    fn the_delay_is_measured_where_a_test_delivery_comes_through() {
        let apps = repo("cluster/apps");
        let watched = |name: &str, branch: &str| {
            let branches = [BranchName::parse(branch).unwrap()].into();
            promise(&Watched { repo: repo(name), branches }, &apps)
        };
        assert!(watched("Cluster/Apps", "deploy") < watched("atlas/a", "main"));
        assert!(watched("atlas/a", "main") < watched("atlas/a", "release"));
    }

    fn differs(what: &str, loses: bool) -> Found {
        Found::Differs(vec![HookDifference { what: what.to_owned(), loses }])
    }

    #[test]
    fn webhooks_that_lose_pushes_fail_by_name_and_those_that_are_untidy_warn() {
        let good = || (repo("atlas/a"), Found::Good);
        let check = present(&[good(), (repo("atlas/b"), Found::Missing)], true);
        assert_eq!((check.level, check.what.as_str()), (Level::Fail, "missing or switched off at atlas/b"));
        assert_eq!(present(&[good()], true).level, Level::Ok);

        let form = || (repo("atlas/c"), differs("its content type was form", true));
        let double = || (repo("atlas/d"), differs("there was a second one", false));
        let check = present(&[good(), form(), double(), (repo("atlas/b"), Found::Missing)], true);
        assert_eq!(check.level, Level::Fail);
        assert_eq!(
            check.what,
            "missing or switched off at atlas/b; would be repaired at atlas/c (its content type was form)"
        );
        let check = present(&[good(), double()], true);
        assert_eq!(check.level, Level::Warn);
        assert_eq!(check.what, "would be repaired at atlas/d (there was a second one)");
        assert_eq!(present(&[good(), (repo("atlas/x"), Found::NoRepository)], true).level, Level::Fail);
        assert!(!form().1.delivers() && double().1.delivers());
    }

    #[test]
    fn webhooks_of_which_only_the_address_is_known_are_not_called_good() {
        let found = [(repo("atlas/a"), Found::Good)];
        assert_eq!(present(&found, true).what, "present at 1 repositories");
        assert!(present(&found, false).what.contains("by their addresses alone"));
    }

    #[test]
    fn an_address_is_the_same_however_it_is_written() {
        assert!(same_url("http://Receiver:80/webhook", "http://receiver/webhook"));
        assert!(!same_url("http://receiver/webhook", "http://receiver/webhooks"));
        assert!(same_url("no address", "no address") && !same_url("no address", "another"));
    }
}
