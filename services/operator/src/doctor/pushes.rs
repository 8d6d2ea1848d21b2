//! How long a push takes to come back as a webhook, told by fabrique's own pushes to `cluster/apps`.
//!
//! A test delivery passes one of Gitea's queues, a push two of them, and the second cannot be asked for. But the
//! worker tells when a push of its own ended, and the receiver when the webhook of it arrived.

use std::collections::BTreeMap;
use std::time::Duration;

use fabrique_core::id::RepoName;
use fabrique_core::time::Timestamp;
use fabrique_ports::bus::{Event, EventBody};
use fabrique_ports::{PortError, PortResult};
use futures::StreamExt as _;

use super::webhooks::{QUEUES, TEST};
use super::{Check, Config, Doctor};

const NAME: &str = "push delay";
/// How far back pushes are looked for.
const WINDOW: Duration = Duration::from_secs(3600);
/// At most so many events are read for it.
const MOST: usize = 100_000;

/// Looks at the pushes of the last hour. `last` is the newest event: reading ends there.
pub(super) async fn pushes(doctor: &Doctor, last: &Event) -> Check {
    let limit = doctor.config.bounds.delivery_timeout;
    match tokio::time::timeout(limit, read(doctor, last)).await {
        Ok(Ok(pushes)) => judge(&pushes.delays(), &doctor.config),
        Ok(Err(error)) => Check::error(NAME, &error),
        Err(_) => judge(&[], &doctor.config),
    }
}

async fn read(doctor: &Doctor, last: &Event) -> PortResult<Pushes> {
    let mut pushes = Pushes::default();
    let mut events = doctor.ports.events.tail(None, Some(last.at.before(WINDOW))).await?.take(MOST);
    while let Some(event) = events.next().await {
        // One that cannot be read is a finding of others.
        let Ok(event) = event else { continue };
        if event.id == last.id {
            break;
        }
        pushes.note(&event, &doctor.config.apps_repo);
    }
    Ok::<_, PortError>(pushes)
}

/// Commits on `cluster/apps` by their ids: when fabrique's push of them ended, and when a webhook first told of them.
#[derive(Default)]
struct Pushes {
    pushed: BTreeMap<String, Timestamp>,
    heard: BTreeMap<String, Timestamp>,
}

impl Pushes {
    fn note(&mut self, event: &Event, apps_repo: &RepoName) {
        if let EventBody::Commit { commit, .. } = &event.body {
            self.pushed.entry(commit.to_string()).or_insert(event.at);
        }
        if let EventBody::Delivery { repo, after, ignored, .. } = &event.body
            && repo.same_as(apps_repo)
            && !ignored.as_ref().is_some_and(|why| why.contains(TEST))
        {
            self.heard.entry(after.clone()).or_insert(event.at);
        }
    }

    /// How long each push took to come back, shortest first. Of commits that share a push a webhook names the last.
    fn delays(&self) -> Vec<Duration> {
        let came_back = |(commit, heard): (&String, &Timestamp)| Some(self.pushed.get(commit)?.until(*heard));
        let mut delays: Vec<Duration> = self.heard.iter().filter_map(came_back).collect();
        delays.sort_unstable();
        delays
    }
}

fn judge(delays: &[Duration], config: &Config) -> Check {
    let (Some(half), Some(longest)) = (delays.get(delays.len() / 2), delays.last()) else {
        let what = format!(
            "not measured: none of fabrique's own pushes came back in the last {} min, and a test delivery does not \
             pass Gitea's queue `push_update`",
            WINDOW.as_secs() / 60
        );
        return Check::ok(NAME, what);
    };
    let what = match delays.len() {
        1 => format!("fabrique's own push came back after {:.2} s", half.as_secs_f64()),
        count => format!(
            "of {count} pushes of fabrique's own half came back within {:.2} s, all within {:.2} s",
            half.as_secs_f64(),
            longest.as_secs_f64()
        ),
    };
    if *half > config.bounds.slow_push { Check::warn(NAME, what, QUEUES) } else { Check::ok(NAME, what) }
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::{AppName, BranchName, EnvironmentName, Revision};

    use super::*;
    use crate::doctor::Level;

    fn apps() -> RepoName {
        RepoName::parse("cluster/apps").unwrap()
    }

    fn revision(digit: char) -> Revision {
        Revision::parse(&digit.to_string().repeat(40)).unwrap()
    }

    fn event(at: u64, body: EventBody) -> Event {
        Event { id: at.to_string(), at: Timestamp(at), trace: None, body }
    }

    fn commit(at: u64, digit: char) -> Event {
        let body = EventBody::Commit {
            app: AppName::parse("citation").unwrap(),
            environment: EnvironmentName::parse("prod").unwrap(),
            channel: "image".to_owned(),
            commit: revision(digit),
            revision: revision('f'),
            digest: None,
        };
        event(at, body)
    }

    fn delivery(at: u64, repo: &str, digit: char, ignored: Option<&str>) -> Event {
        let body = EventBody::Delivery {
            repo: RepoName::parse(repo).unwrap(),
            reference: "refs/heads/main".to_owned(),
            after: revision(digit).to_string(),
            delivery: String::new(),
            woken: Vec::new(),
            ignored: ignored.map(str::to_owned),
        };
        event(at, body)
    }

    fn delays(events: &[Event]) -> Vec<u128> {
        let mut pushes = Pushes::default();
        for event in events {
            pushes.note(event, &apps());
        }
        pushes.delays().iter().map(Duration::as_millis).collect()
    }

    #[test]
    fn a_push_is_as_slow_as_its_first_webhook_in_whatever_order_the_two_are_told() {
        let events = [
            commit(1_000, '1'),
            commit(5_000, '2'),
            delivery(5_100, "Cluster/Apps", '2', None),
            delivery(3_000, "cluster/apps", '1', None),
            delivery(9_000, "cluster/apps", '1', None),
            // Heard before it was told.
            delivery(6_000, "cluster/apps", '3', None),
            commit(6_010, '3'),
        ];
        assert_eq!(delays(&events), [0, 100, 2_000]);
    }

    #[test]
    fn test_deliveries_and_pushes_of_others_measure_nothing() {
        let events = [
            commit(1_000, '1'),
            delivery(2_000, "cluster/apps", '1', Some(TEST)),
            delivery(2_000, "atlas/citation", '1', None),
            delivery(2_000, "cluster/apps", '2', None),
        ];
        assert_eq!(delays(&events), [0_u128; 0]);
    }

    #[test]
    fn slow_pushes_warn_with_the_settings_of_the_queues_and_none_say_what_is_not_known() {
        let config = Config::new(apps(), BranchName::parse("main").unwrap());
        let judged = |millis: &[u64]| {
            judge(&millis.iter().copied().map(Duration::from_millis).collect::<Vec<_>>(), &config)
        };
        let slow = judged(&[200, 2_800, 3_100]);
        assert_eq!((slow.level, slow.remedy.as_str()), (Level::Warn, QUEUES));
        assert_eq!(
            slow.what,
            "of 3 pushes of fabrique's own half came back within 2.80 s, all within 3.10 s"
        );
        assert_eq!(judged(&[220]).what, "fabrique's own push came back after 0.22 s");
        assert_eq!(judged(&[200, 220, 3_000]).level, Level::Ok, "one slow one is no queue");
        assert_eq!(judged(&[770]).level, Level::Warn, "a queue that was in use a moment ago");
        assert!(judged(&[]).what.contains("push_update"));
    }
}
