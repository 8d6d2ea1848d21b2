//! Making and checking streams and buckets.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, Info};
use async_trait::async_trait;
use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use fabrique_ports::PortResult;
use fabrique_ports::bus::{BusFinding, BusSetup};

use crate::connection::Bus;
use crate::error::BusError;
use crate::layout::Store;
use crate::server;

/// How often a server says that it has no room before it is believed: the pauses between add up to some seconds.
const REFUSALS_OF_ROOM: u32 = 4;

#[async_trait]
impl BusSetup for Bus {
    async fn ensure(&self) -> PortResult<Vec<BusFinding>> {
        let mut findings = Vec::new();
        // One for all of them, attempts included.
        let deadline = Instant::now() + self.config().timeouts.start;
        for store in Store::ALL {
            let wanted = self.wanted(store);
            let found = self.there_in_the_end(store, &wanted, deadline).await?;
            findings.extend(differences(&found, &wanted));
        }
        Ok(findings)
    }

    async fn inspect(&self) -> PortResult<Vec<BusFinding>> {
        let mut findings = server::inspect(self).await;
        for store in Store::ALL {
            let wanted = self.wanted(store);
            match self.info(store).await? {
                Some(info) => findings.extend(differences(&info.config, &wanted)),
                None => findings.push(BusFinding {
                    fatal: true,
                    what: format!("the stream {} is missing", store.stream()),
                    remedy: "`fabrique init`, as a user who may create streams".to_owned(),
                }),
            }
        }
        Ok(findings)
    }

    async fn usage(&self) -> PortResult<BTreeMap<String, (u64, u64)>> {
        let mut usage = BTreeMap::new();
        for store in Store::ALL {
            if let Some(info) = self.info(store).await? {
                usage.insert(store.stream().to_owned(), (info.state.messages, info.state.bytes));
            }
        }
        Ok(usage)
    }
}

/// The pauses between attempts to make a stream.
fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_jitter()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(Duration::from_secs(2))
        .without_max_times()
        .build()
}

impl Bus {
    /// The settings that a stream should have on this server. One that does not know a setting could not be told it.
    fn wanted(&self, store: Store) -> Config {
        let config = store.config(&self.config().limits, self.config().replicas);
        Config { allow_atomic_publish: config.allow_atomic_publish && server::knows_batches(self), ..config }
    }

    /// A bus of several servers that has just started answers before it has chosen who leads, and refuses for some
    /// seconds what it does later; that it has no room too, while it does not know all of its servers yet. A server that
    /// says so again and again has none, and waiting makes no room.
    async fn there_in_the_end(
        &self,
        store: Store,
        wanted: &Config,
        deadline: Instant,
    ) -> Result<Config, BusError> {
        let (mut full, mut pauses) = (0, pauses());
        loop {
            let error = match self.there(store, wanted).await {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            full += u32::from(matches!(error, BusError::Full { .. }));
            let pause = pauses.next().unwrap_or_default();
            if !error.transient() || full == REFUSALS_OF_ROOM || Instant::now() + pause >= deadline {
                return Err(error);
            }
            tracing::info!(%error, "trying again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn there(&self, store: Store, wanted: &Config) -> Result<Config, BusError> {
        match self.info(store).await? {
            Some(info) => Ok(info.config),
            None => self.create(store, wanted).await,
        }
    }

    async fn info(&self, store: Store) -> Result<Option<Info>, BusError> {
        let (started, what) = (Instant::now(), store.stream());
        match self.asking().get_stream(what).await {
            Ok(stream) => Ok(Some(stream.cached_info().clone())),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(inner) if inner.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    Ok(None)
                }
                GetStreamErrorKind::JetStream(inner) => Err(BusError::jetstream(what, &inner)),
                GetStreamErrorKind::Request => {
                    let within = self.config().timeouts.request;
                    let api = format!("$JS.API.STREAM.INFO.{what}");
                    let timeout = BusError::Timeout { what: what.to_owned(), within };
                    Err(self.explain(&api, started, timeout))
                }
                GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => {
                    Err(BusError::from_source(what, error))
                }
            },
        }
    }

    /// Makes a stream. When somebody else makes it at the same time, theirs is compared.
    async fn create(&self, store: Store, wanted: &Config) -> Result<Config, BusError> {
        let (started, what) = (Instant::now(), store.stream());
        match self.asking().create_stream(wanted.clone()).await {
            Ok(stream) => {
                tracing::info!(stream = what, "made a stream");
                Ok(stream.cached_info().config.clone())
            }
            Err(error) => {
                if let CreateStreamErrorKind::JetStream(inner) = error.kind()
                    && inner.error_code() == ErrorCode::STREAM_NAME_EXIST
                    && let Some(info) = self.info(store).await?
                {
                    return Ok(info.config);
                }
                let api = format!("$JS.API.STREAM.CREATE.{what}");
                Err(self.explain(&api, started, self.not_created(what, error)))
            }
        }
    }

    fn not_created(&self, what: &str, error: CreateStreamError) -> BusError {
        match error.kind() {
            CreateStreamErrorKind::JetStream(inner) => BusError::jetstream(&format!("making {what}"), &inner),
            CreateStreamErrorKind::TimedOut => {
                BusError::Timeout { what: format!("making {what}"), within: self.config().timeouts.request }
            }
            CreateStreamErrorKind::JetStreamUnavailable => BusError::Interrupted {
                what: format!("making {what}"),
                reason: "JetStream is not enabled on this server".to_owned(),
            },
            CreateStreamErrorKind::EmptyStreamName
            | CreateStreamErrorKind::InvalidStreamName
            | CreateStreamErrorKind::DomainAndExternalSet
            | CreateStreamErrorKind::Response
            | CreateStreamErrorKind::NotFound
            | CreateStreamErrorKind::ResponseParse => BusError::from_source(&format!("making {what}"), error),
        }
    }
}

/// What differs in the settings that matter. Fatal is what the protocol rests on; a bound is a matter of taste, and a
/// setting that `nats stream edit` cannot change needs the stream to be made anew.
fn differences(found: &Config, wanted: &Config) -> Vec<BusFinding> {
    let name = &wanted.name;
    let mut findings = Vec::new();
    let mut compare =
        |fatal: bool, field: &str, found: &dyn Display, wanted: &dyn Display, edit: Option<String>| {
            if found.to_string() != wanted.to_string() {
                findings.push(BusFinding {
                    fatal,
                    what: format!("{name}: {field} is {found}, wanted {wanted}"),
                    remedy: edit.map_or_else(
                        || format!("cannot be changed: `nats stream rm {name}`, then `fabrique init`"),
                        |option| format!("`nats stream edit {name} {option}`"),
                    ),
                });
            }
        };
    let debug = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    let (on, off) = (&found, &wanted);
    let subjects = |config: &Config| {
        let mut subjects = config.subjects.clone();
        subjects.sort();
        subjects.join(",")
    };
    let edit = |option: &str, value: &dyn Display| Some(format!("{option}={value}"));
    compare(true, "subjects", &subjects(on), &subjects(off), edit("--subjects", &subjects(off)));
    compare(true, "storage", &debug(&on.storage), &debug(&off.storage), None);
    compare(true, "retention", &debug(&on.retention), &debug(&off.retention), None);
    compare(
        true,
        "discard",
        &debug(&on.discard),
        &debug(&off.discard),
        edit("--discard", &debug(&off.discard)),
    );
    let per_subject = &off.max_messages_per_subject;
    compare(
        true,
        "max_msgs_per_subject",
        &on.max_messages_per_subject,
        per_subject,
        edit("--max-msgs-per-subject", per_subject),
    );
    compare(
        true,
        "allow_rollup_hdrs",
        &on.allow_rollup,
        &off.allow_rollup,
        Some("--allow-rollup".to_owned()),
    );
    compare(true, "no_ack", &on.no_ack, &off.no_ack, Some("--ack".to_owned()));
    compare(true, "sealed", &on.sealed, &off.sealed, None);
    compare(false, "max_msgs", &on.max_messages, &off.max_messages, edit("--max-msgs", &off.max_messages));
    compare(false, "max_bytes", &on.max_bytes, &off.max_bytes, edit("--max-bytes", &off.max_bytes));
    let size = &off.max_message_size;
    compare(false, "max_msg_size", &on.max_message_size, size, edit("--max-msg-size", size));
    let seconds = |config: &Config| format!("{}s", config.max_age.as_secs());
    compare(false, "max_age", &seconds(on), &seconds(off), edit("--max-age", &seconds(off)));
    compare(
        false,
        "num_replicas",
        &on.num_replicas,
        &off.num_replicas,
        edit("--replicas", &off.num_replicas),
    );
    let window = |config: &Config| format!("{}s", config.duplicate_window.as_secs());
    compare(false, "duplicate_window", &window(on), &window(off), edit("--dupe-window", &window(off)));
    compare(false, "allow_direct", &on.allow_direct, &off.allow_direct, Some("--allow-direct".to_owned()));
    findings.extend(no_batches(on, off));
    findings
}

/// A stream of events that takes no batches stores them one by one, which is slower and nothing else.
fn no_batches(found: &Config, wanted: &Config) -> Option<BusFinding> {
    let Config { name, allow_atomic_publish, .. } = wanted;
    (*allow_atomic_publish && !found.allow_atomic_publish).then(|| BusFinding {
        fatal: false,
        what: format!("{name}: allow_atomic is false, wanted true"),
        remedy: format!("`nats stream edit {name} --allow-batch`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;

    #[test]
    fn a_difference_names_the_field_both_values_and_the_command() {
        let wanted = Store::Wake.config(&Limits::default(), 1);
        assert!(differences(&wanted, &wanted).is_empty());
        let found = Config { max_messages_per_subject: 5, max_bytes: 7, ..wanted.clone() };
        let findings = differences(&found, &wanted);
        assert_eq!(findings.len(), 2);
        assert!(findings[0].fatal && !findings[1].fatal);
        assert_eq!(findings[0].what, "FABRIQUE_WAKE: max_msgs_per_subject is 5, wanted 1");
        assert_eq!(findings[0].remedy, "`nats stream edit FABRIQUE_WAKE --max-msgs-per-subject=1`");
    }

    #[test]
    fn a_stream_of_events_that_takes_no_batches_is_told_and_not_refused() {
        let wanted = Store::Events.config(&Limits::default(), 1);
        let findings = differences(&Config { allow_atomic_publish: false, ..wanted.clone() }, &wanted);
        assert_eq!(findings.len(), 1);
        assert!(!findings[0].fatal);
        assert_eq!(findings[0].what, "FABRIQUE_EVENTS: allow_atomic is false, wanted true");
        assert_eq!(findings[0].remedy, "`nats stream edit FABRIQUE_EVENTS --allow-batch`");
        // Whoever allows more than is asked for is left in peace.
        let wake = Store::Wake.config(&Limits::default(), 1);
        assert!(differences(&Config { allow_atomic_publish: true, ..wake.clone() }, &wake).is_empty());
    }
}
