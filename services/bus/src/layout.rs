//! Names, subjects and settings of everything on the bus, in one place.
//!
//! Streams do not overlap: commands (`fabrique.command.>`) are answered, not stored, and logs stay outside of
//! `fabrique.>`. A bucket is a stream named `KV_<bucket>` on `$KV.<bucket>.>`, as every NATS client knows it, so
//! `nats kv ls FABRIQUE_WORK` works.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use fabrique_core::id::{AppName, BuildId, BuildKey};
use fabrique_ports::bus::{Event, EventBody};

use crate::config::Limits;
use crate::token;

/// Commands, by verb and app.
pub const COMMANDS: &str = "fabrique.command.*.*";
/// The queue group in which one worker gets each command.
pub const COMMAND_GROUP: &str = "fabrique-workers";

const WAKES: &str = "fabrique.wake.";
const LOGS: &str = "fabrique_log.";
/// The largest wake; a cause is a sentence.
const WAKE_MESSAGE: i32 = 8 << 10;
/// How long the server remembers the ids of events.
const DUPLICATES: Duration = Duration::from_secs(120);

/// A stream or bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Store {
    /// The newest wake of each app.
    Wake,
    /// Events.
    Events,
    /// Logs of builds.
    Logs,
    /// Who works on which app.
    Work,
    /// Memories of apps.
    Memory,
    /// Build key → image.
    Records,
    /// History of builds.
    Builds,
    /// What is known of each app's source on GitHub.
    Upstream,
}

impl Store {
    /// All of them, in the order in which they are made.
    pub const ALL: [Store; 8] = [
        Store::Work,
        Store::Wake,
        Store::Memory,
        Store::Records,
        Store::Builds,
        Store::Upstream,
        Store::Events,
        Store::Logs,
    ];

    /// The name of the stream.
    #[must_use]
    pub fn stream(self) -> &'static str {
        match self {
            Store::Wake => "FABRIQUE_WAKE",
            Store::Events => "FABRIQUE_EVENTS",
            Store::Logs => "FABRIQUE_LOGS",
            Store::Work => "KV_FABRIQUE_WORK",
            Store::Memory => "KV_FABRIQUE_MEMORY",
            Store::Records => "KV_FABRIQUE_RECORDS",
            Store::Builds => "KV_FABRIQUE_BUILDS",
            Store::Upstream => "KV_FABRIQUE_UPSTREAM",
        }
    }

    /// What the subjects of its messages start with; for a bucket, the key follows.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Store::Wake => WAKES,
            Store::Events => "fabrique.",
            Store::Logs => LOGS,
            Store::Work => "$KV.FABRIQUE_WORK.",
            Store::Memory => "$KV.FABRIQUE_MEMORY.",
            Store::Records => "$KV.FABRIQUE_RECORDS.",
            Store::Builds => "$KV.FABRIQUE_BUILDS.",
            Store::Upstream => "$KV.FABRIQUE_UPSTREAM.",
        }
    }

    /// The subject of `key`.
    #[must_use]
    pub fn subject(self, key: &str) -> String {
        format!("{}{key}", self.prefix())
    }

    /// The key of a subject of this store.
    #[must_use]
    pub fn key(self, subject: &str) -> Option<&str> {
        subject.strip_prefix(self.prefix())
    }

    /// The settings it is made with.
    #[must_use]
    pub fn config(self, limits: &Limits, replicas: usize) -> Config {
        let base = Config {
            name: self.stream().to_owned(),
            storage: StorageType::File,
            retention: RetentionPolicy::Limits,
            discard: DiscardPolicy::Old,
            max_messages: -1,
            max_messages_per_subject: -1,
            max_consumers: -1,
            max_message_size: -1,
            num_replicas: replicas,
            duplicate_window: DUPLICATES,
            allow_direct: true,
            ..Config::default()
        };
        match self {
            Store::Wake => Config {
                description: Some("fabrique: the newest wake of each app".to_owned()),
                subjects: vec![format!("{WAKES}*")],
                max_messages_per_subject: 1,
                max_message_size: WAKE_MESSAGE,
                max_bytes: bytes(limits.wake_bytes),
                ..base
            },
            Store::Events => Config {
                description: Some("fabrique: what happened".to_owned()),
                subjects: KINDS.iter().map(|kind| format!("fabrique.{kind}.>")).collect(),
                max_bytes: bytes(limits.events_bytes),
                max_age: limits.events_age,
                allow_atomic_publish: true,
                ..base
            },
            Store::Logs => Config {
                description: Some("fabrique: logs of builds".to_owned()),
                subjects: vec![format!("{LOGS}*")],
                max_bytes: bytes(limits.logs_bytes),
                max_age: limits.logs_age,
                ..base
            },
            Store::Work => bucket(base, self, "who works on which app", limits.work_bytes),
            Store::Memory => bucket(base, self, "memories of apps", limits.memory_bytes),
            Store::Upstream => bucket(base, self, "sources on GitHub", limits.upstream_bytes),
            // The oldest record goes rather than the newest write: forgetting costs a rebuild, refusing stops all builds.
            Store::Records => Config {
                discard: DiscardPolicy::Old,
                ..bucket(base, self, "build key to image", limits.records_bytes)
            },
            Store::Builds => Config {
                discard: DiscardPolicy::Old,
                max_age: limits.builds_age,
                ..bucket(base, self, "history of builds", limits.builds_bytes)
            },
        }
    }
}

/// A bucket as NATS clients make it: history of one, no deletion of single messages, full means refused.
fn bucket(base: Config, store: Store, description: &str, max_bytes: u64) -> Config {
    Config {
        description: Some(format!("fabrique: {description}")),
        subjects: vec![store.subject(">")],
        max_messages_per_subject: 1,
        max_bytes: bytes(max_bytes),
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        ..base
    }
}

fn bytes(limit: u64) -> i64 {
    if limit == 0 { -1 } else { i64::try_from(limit).unwrap_or(i64::MAX) }
}

/// The kinds of events: the second token of their subjects.
pub const KINDS: [&str; 7] = ["delivery", "decision", "build", "step", "commit", "operator", "warning"];

/// The kinds whose third token is an app.
const KINDS_BY_APP: [&str; 6] = ["decision", "build", "step", "commit", "operator", "warning"];

/// The subject of an app's wakes.
#[must_use]
pub fn wake(app: &AppName) -> String {
    Store::Wake.subject(app.as_str())
}

/// The subject of a build's log.
#[must_use]
pub fn log(build: &BuildId) -> String {
    Store::Logs.subject(build.as_str())
}

/// The key of a build in the history: all builds of an app share a first token.
#[must_use]
pub fn build(build: &BuildId) -> String {
    format!("{}.{build}", build.app())
}

/// The key of an image record.
#[must_use]
pub fn record(key: &BuildKey) -> &str {
    key.as_str()
}

/// The subject of a command.
#[must_use]
pub fn command(verb: &str, app: &AppName) -> String {
    format!("fabrique.command.{}.{app}", token::encode(verb))
}

/// The subject of an event.
#[must_use]
pub fn event(event: &Event) -> String {
    match &event.body {
        EventBody::Delivery { repo, .. } => {
            format!("fabrique.delivery.{}.{}", token::encode(repo.org()), token::encode(repo.name()))
        }
        EventBody::Decision { app, .. } => format!("fabrique.decision.{app}"),
        EventBody::Build { app, build, .. } => format!("fabrique.build.{app}.{build}"),
        EventBody::Step { app, build, .. } => format!("fabrique.step.{app}.{build}"),
        EventBody::Commit { app, environment, channel, .. } => {
            format!("fabrique.commit.{app}.{environment}.{}", token::encode(channel))
        }
        EventBody::Command { app, verb, .. } => format!("fabrique.operator.{app}.{}", token::encode(verb)),
        EventBody::Warning { app, .. } => {
            format!("fabrique.warning.{}", token::encode(app.as_ref().map_or("", AppName::as_str)))
        }
    }
}

/// The subjects that hold everything about `app`, and all deliveries, which name the apps they woke in their bodies.
#[must_use]
pub fn events_of(app: &AppName) -> Vec<String> {
    let own = KINDS_BY_APP
        .iter()
        .flat_map(|kind| [format!("fabrique.{kind}.{app}"), format!("fabrique.{kind}.{app}.>")]);
    own.chain(["fabrique.delivery.>".to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::RepoName;
    use fabrique_core::time::Timestamp;

    use super::*;

    #[test]
    fn subjects_are_one_token_per_name_whatever_the_repository_is_called() {
        let event_ = Event {
            id: String::new(),
            at: Timestamp(0),
            trace: None,
            body: EventBody::Delivery {
                repo: RepoName::parse("atlas/citation.api_v2").unwrap(),
                reference: String::new(),
                after: String::new(),
                delivery: String::new(),
                woken: Vec::new(),
                ignored: None,
            },
        };
        assert_eq!(event(&event_), "fabrique.delivery.atlas.citation_2Eapi_5Fv2");
    }

    #[test]
    fn no_two_streams_share_a_subject() {
        let subjects: Vec<String> = Store::ALL
            .iter()
            .flat_map(|store| store.config(&Limits::default(), 1).subjects)
            .map(|subject| subject.trim_end_matches(['*', '>']).to_owned())
            .collect();
        for (number, one) in subjects.iter().enumerate() {
            for other in subjects.iter().skip(number + 1) {
                assert!(
                    !one.starts_with(other.as_str()) && !other.starts_with(one.as_str()),
                    "{one} {other}"
                );
            }
            assert!(!"fabrique.command.".starts_with(one.as_str()), "{one} would store commands");
        }
    }
}
