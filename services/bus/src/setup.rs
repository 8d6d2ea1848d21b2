//! Making and checking streams and buckets.

use std::collections::BTreeMap;
use std::fmt::Display;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, Info};
use async_trait::async_trait;
use fabrique_ports::PortResult;
use fabrique_ports::bus::{BusFinding, BusSetup};

use crate::connection::Bus;
use crate::error::BusError;
use crate::layout::Store;
use crate::server;

#[async_trait]
impl BusSetup for Bus {
    async fn ensure(&self) -> PortResult<Vec<BusFinding>> {
        let mut findings = Vec::new();
        for store in Store::ALL {
            let wanted = store.config(&self.config().limits, self.config().replicas);
            let found = match self.info(store).await? {
                Some(info) => info.config,
                None => self.create(store, &wanted).await?,
            };
            findings.extend(differences(&found, &wanted));
        }
        Ok(findings)
    }

    async fn inspect(&self) -> PortResult<Vec<BusFinding>> {
        let mut findings = server::inspect(self).await;
        for store in Store::ALL {
            let wanted = store.config(&self.config().limits, self.config().replicas);
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

impl Bus {
    async fn info(&self, store: Store) -> Result<Option<Info>, BusError> {
        let (started, what) = (std::time::Instant::now(), store.stream());
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
        let (started, what) = (std::time::Instant::now(), store.stream());
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
    findings
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
}
