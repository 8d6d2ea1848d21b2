//! One user of the bus, tried out.
//!
//! NATS does not tell anybody their permissions. It says at once what it refuses, in the order in which it was asked,
//! and nothing about what it allows. So every deed is tried in a form that changes nothing, and a question follows
//! that is certain to be answered: whatever was not refused before that answer is allowed.
//!
//! * A message for a stream expects to be stored in another one, and is dropped.
//! * A request to JetStream has a body that cannot be read, and nobody to answer to; but for a purge, which would empty
//!   the whole stream then: it asks for what has a subject that nothing has.
//! * A command has nobody to answer to, and workers pass it over.
//! * A subscription is to what nobody sends, and ends with the connection.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::header::NATS_EXPECTED_STREAM;
use async_nats::{Client, Event, HeaderMap, Request, RequestErrorKind, ServerError, Subscriber};
use async_trait::async_trait;
use fabrique_ports::PortResult;
use fabrique_ports::bus::{BusFinding, BusRights, BusRole};
use tokio::sync::Notify;

use crate::config::BusConfig;
use crate::connection::{self, servers};
use crate::error::BusError;
use crate::rights::{Deed, Demand, NONSENSE, Trial};

/// Deeds between two questions. The client keeps 128 refusals that were not looked at yet, and loses more.
const BATCH: usize = 32;
/// A refusal and an answer reach this end by two ways: how much later a refusal may come that was sent before.
const STRAGGLERS: Duration = Duration::from_millis(100);
const TRYING: &str = "trying permissions";
/// Deeds that a finding names.
const NAMED: usize = 6;

/// How one user logs in. Each look makes a connection of its own and ends it.
#[derive(Debug, Clone)]
pub struct Login {
    config: BusConfig,
}

impl Login {
    /// The login of `config`'s user.
    #[must_use]
    pub fn new(config: BusConfig) -> Self {
        Self { config }
    }
}

#[async_trait]
impl BusRights for Login {
    async fn rights(&self, role: BusRole) -> PortResult<Vec<BusFinding>> {
        let inbox = self.config.inbox_prefix();
        let mut deeds: Vec<(Deed, Demand)> =
            Deed::all().into_iter().map(|deed| (deed, deed.demand(role))).collect();
        // A user may be called as another role is.
        let own = Deed::HearOwnAnswers.trial(&inbox);
        let foreign = |deed: Deed| deed == Deed::HearOwnAnswers || deed.trial(&inbox) != own;
        deeds.retain(|(deed, demand)| *demand != Demand::May && foreign(*deed));
        let mut trying = Trying::begin(&self.config, role).await?;
        let mut allowed = Vec::new();
        for batch in deeds.chunks(BATCH) {
            allowed.extend(trying.batch(batch.iter().map(|(deed, _)| deed.trial(&inbox))).await?);
        }
        trying.end().await;
        Ok(judge(&deeds, &allowed, &inbox, role))
    }
}

/// A connection on which deeds are tried.
struct Trying {
    client: Client,
    refusals: Arc<Refusals>,
    within: Duration,
    /// Questions asked so far.
    asked: usize,
    /// Kept to the end: giving one up is a message too.
    listening: Vec<Subscriber>,
}

/// What the server has refused on one connection, in its own words.
#[derive(Default)]
struct Refusals {
    told: Mutex<BTreeSet<String>>,
    more: Notify,
}

impl Refusals {
    fn note(&self, event: &Event) {
        if let Event::ServerError(ServerError::Other(words)) = event {
            self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(words.clone());
            self.more.notify_one();
        }
    }

    fn has(&self, trial: &Trial) -> bool {
        let kind = match trial {
            Trial::Publish(_) | Trial::PurgeNothing { .. } => "Publish",
            Trial::Subscribe(..) => "Subscription",
        };
        let words = format!("for {kind} to \"{}\"", trial.subject());
        self.told.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|told| told.contains(&words))
    }

    /// Returns when `trial` has been refused.
    async fn wait_for(&self, trial: &Trial) {
        while !self.has(trial) {
            self.more.notified().await;
        }
    }
}

impl Trying {
    async fn begin(config: &BusConfig, role: BusRole) -> Result<Self, BusError> {
        let refusals = Arc::new(Refusals::default());
        let noting = Arc::clone(&refusals);
        let options = connection::as_user(config, connection::anonymous_options(config))
            .name(format!("fabrique doctor, as {}", role.as_str()))
            .event_callback(move |event| {
                let noting = Arc::clone(&noting);
                async move { noting.note(&event) }
            });
        let client =
            options.connect(servers(config)?).await.map_err(|error| connection::failed(config, &error))?;
        Ok(Self { client, refusals, within: config.timeouts.request, asked: 0, listening: Vec::new() })
    }

    /// Tries them in their order, and says of each whether it is allowed.
    async fn batch(&mut self, trials: impl Iterator<Item = Trial>) -> Result<Vec<bool>, BusError> {
        let trials: Vec<Trial> = trials.collect();
        for trial in &trials {
            self.start(trial).await?;
        }
        self.wait_until_told().await?;
        // What a broken connection lost is neither refused nor allowed.
        if self.client.statistics().connects.load(Ordering::Relaxed) > 1 {
            let reason = "the connection broke meanwhile".to_owned();
            return Err(BusError::Interrupted { what: TRYING.to_owned(), reason });
        }
        Ok(trials.iter().map(|trial| !self.refusals.has(trial)).collect())
    }

    async fn start(&mut self, trial: &Trial) -> Result<(), BusError> {
        let what = trial.subject();
        match trial {
            Trial::Publish(subject) => {
                let mut headers = HeaderMap::new();
                headers.insert(NATS_EXPECTED_STREAM, "none, this is a trial of fabrique doctor");
                let sent = self.client.publish_with_headers(subject.clone(), headers, NONSENSE.into()).await;
                sent.map_err(|error| BusError::from_source(what, error))
            }
            Trial::PurgeNothing { api, filter } => {
                let body = serde_json::json!({ "filter": filter }).to_string();
                let sent = self.client.publish(api.clone(), body.into()).await;
                sent.map_err(|error| BusError::from_source(what, error))
            }
            Trial::Subscribe(subject, group) => {
                let subscribed = match group {
                    Some(group) => self.client.queue_subscribe(subject.clone(), (*group).to_owned()).await,
                    None => self.client.subscribe(subject.clone()).await,
                };
                self.listening.push(subscribed.map_err(|error| BusError::from_source(what, error))?);
                Ok(())
            }
        }
    }

    /// Returns when everything that was tried so far has been refused or allowed: asks for what nobody answers, which
    /// the server says at once, if it does not refuse the question.
    async fn wait_until_told(&mut self) -> Result<(), BusError> {
        self.asked += 1;
        let question = Trial::Publish(format!("fabrique-doctor.{}", self.asked));
        let timeout = || BusError::Timeout { what: TRYING.to_owned(), within: self.within };
        let request = Request::new().payload(NONSENSE.into()).timeout(Some(self.within));
        tokio::select! {
            () = self.refusals.wait_for(&question) => Ok(()),
            answer = self.client.send_request(question.subject().to_owned(), request) => match answer {
                Err(error) if error.kind() == RequestErrorKind::TimedOut => Err(timeout()),
                Err(error) if error.kind() != RequestErrorKind::NoResponders => {
                    Err(BusError::from_source(TRYING, error))
                }
                Ok(_) | Err(_) => {
                    tokio::time::sleep(STRAGGLERS).await;
                    Ok(())
                }
            },
        }
    }

    async fn end(self) {
        if tokio::time::timeout(self.within, self.client.drain()).await.is_err() {
            tracing::debug!("a connection that tried permissions was not drained");
        }
    }
}

/// What differs between `deeds` and what was allowed of them.
fn judge(deeds: &[(Deed, Demand)], allowed: &[bool], inbox: &str, role: BusRole) -> Vec<BusFinding> {
    let differing = |wanted: Demand, is: bool| -> Vec<String> {
        let deeds =
            deeds.iter().zip(allowed).filter(|((_, demand), allowed)| *demand == wanted && **allowed == is);
        deeds.map(|((deed, _), _)| deed.describe(inbox)).collect()
    };
    let remedy = "compare the permissions of this user with the reference that services/bus/README.md names, then \
                  `nats-server --signal reload`";
    let finding = |what: String| BusFinding { fatal: true, what, remedy: remedy.to_owned() };
    let role = role.as_str();
    let lacking = differing(Demand::Must, false);
    let excess = differing(Demand::MustNot, true);
    let lacking = (!lacking.is_empty()).then(|| finding(format!("the {role} may not {}", named(&lacking))));
    let excess =
        (!excess.is_empty()).then(|| finding(format!("the {role} may {}, and must not", named(&excess))));
    lacking.into_iter().chain(excess).collect()
}

fn named(deeds: &[String]) -> String {
    let shown = deeds.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match deeds.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_and_what_is_too_much_are_two_findings_of_bounded_length() {
        let deeds =
            vec![(Deed::Wake, Demand::Must), (Deed::Command, Demand::MustNot), (Deed::Log, Demand::Must)];
        assert_eq!(judge(&deeds, &[true, false, true], "_INBOX_x", BusRole::Worker), []);
        let findings = judge(&deeds, &[false, true, true], "_INBOX_x", BusRole::Worker);
        let texts: Vec<&str> = findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(
            texts,
            [
                "the worker may not wake apps (fabrique.wake.*)",
                "the worker may give commands (fabrique.command.*.*), and must not"
            ]
        );
        let all: Vec<(Deed, Demand)> = Deed::all().into_iter().map(|deed| (deed, Demand::MustNot)).collect();
        let findings = judge(&all, &vec![true; all.len()], "_INBOX_x", BusRole::Observer);
        assert!(findings[0].what.contains(&format!("and {} more", all.len() - NAMED)), "{findings:?}");
    }

    #[test]
    fn a_refusal_is_told_apart_by_kind_and_subject() {
        let refusals = Refusals::default();
        let words = "Permissions Violation for Subscription to \"a.b\" using queue \"q\"";
        refusals.note(&Event::ServerError(ServerError::Other(words.to_owned())));
        assert!(refusals.has(&Trial::Subscribe("a.b".to_owned(), Some("q"))));
        assert!(!refusals.has(&Trial::Publish("a.b".to_owned())));
        assert!(!refusals.has(&Trial::Subscribe("a".to_owned(), None)));
    }
}
