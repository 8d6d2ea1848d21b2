//! Webhooks: at every repository, and how long a delivery takes.

use std::time::{Duration, Instant};

use fabrique_core::id::{BranchName, RepoName};
use fabrique_observer::Apps;
use fabrique_ports::bus::{Event, EventBody};
use fabrique_ports::{PortError, PortResult};
use futures::{StreamExt as _, stream};

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

pub(super) async fn webhooks(doctor: &Doctor, apps: Option<&Apps>) -> Vec<Check> {
    let (Some(url), Some(apps)) = (&doctor.config.hook_url, apps) else { return Vec::new() };
    let place = (&doctor.config.apps_repo, &doctor.config.apps_branch);
    let mut watched = hooks::watched(&apps.registrations, place);
    watched.sort_by_key(|watched| promise(watched, &doctor.config.apps_repo));
    let found: Vec<(RepoName, PortResult<Option<i64>>)> = stream::iter(watched)
        .map(|watched| async move {
            let hook = find(doctor, &watched.repo, url).await;
            (watched.repo, hook)
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    let mut checks = vec![present(&found)];
    let there = found.into_iter().filter_map(|(repo, hook)| Some((repo, hook.ok()??)));
    let (mut arrived, mut last) = (false, None);
    for (repo, hook) in there.take(doctor.config.bounds.deliveries) {
        let name = format!("webhook delay {repo}");
        checks.push(match measure(doctor, &repo, hook).await {
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

/// The active webhook of a repository that delivers to `url`.
async fn find(doctor: &Doctor, repo: &RepoName, url: &str) -> PortResult<Option<i64>> {
    let hooks = doctor.ports.hooks.hooks(repo).await?;
    Ok(hooks.into_iter().find(|hook| hook.active && hook.url == url).map(|hook| hook.id))
}

fn present(found: &[(RepoName, Result<Option<i64>, PortError>)]) -> Check {
    let name = "webhooks";
    let missing: Vec<String> =
        found.iter().filter(|(_, hook)| matches!(hook, Ok(None))).map(|(repo, _)| repo.to_string()).collect();
    let unknown: Vec<String> =
        found.iter().filter_map(|(repo, hook)| Some(format!("{repo}: {}", hook.as_ref().err()?))).collect();
    if !missing.is_empty() {
        let what = format!("missing or switched off at {}", missing.join(", "));
        return Check::fail(name, what, "`fabrique hooks ensure`; until then the reconciler finds pushes");
    }
    if !unknown.is_empty() {
        return Check::fail(name, unknown.join("; "), "check the hooks token and what it may do");
    }
    Check::ok(name, format!("present at {} repositories", found.len()))
}

/// How long a test delivery takes from the request to the receiver's event, and that event; nothing when none
/// arrives.
async fn measure(doctor: &Doctor, repo: &RepoName, hook: i64) -> PortResult<Option<(Duration, Event)>> {
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

    #[test]
    fn one_missing_webhook_names_its_repository() {
        let check = present(&[(repo("atlas/a"), Ok(Some(1))), (repo("atlas/b"), Ok(None))]);
        assert_eq!((check.level, check.what.as_str()), (Level::Fail, "missing or switched off at atlas/b"));
        assert_eq!(present(&[(repo("atlas/a"), Ok(Some(1)))]).level, Level::Ok);
    }
}
