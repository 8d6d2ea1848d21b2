//! One delivery, from its head to its answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use fabrique_core::id::{AppName, RepoName, Revision};
use fabrique_ports::bus::{Event, EventBody, WakeCause, Wakes};
use fabrique_ports::delivery::{Delivery, DeliveryReader, Push, RawDelivery, Rejection};
use futures::{StreamExt as _, stream};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use crate::answer::{Answer, Closing};
use crate::body::{self, Bounds};
use crate::config::ReceiverConfig;
use crate::journal::{Afterwards, Journal};
use crate::recheck::Rechecks;
use crate::reload::Reloads;
use crate::subscriptions::Followers;
use crate::{measure, trace};
use fabrique_ports::Ambient;

/// Wakes of one delivery under way at once.
const CONCURRENT_WAKES: usize = 64;

/// Everything that a delivery needs.
pub(crate) struct Intake {
    pub(crate) config: ReceiverConfig,
    pub(crate) reader: Arc<dyn DeliveryReader>,
    pub(crate) wakes: Arc<dyn Wakes>,
    pub(crate) reloads: Arc<Reloads>,
    pub(crate) rechecks: Rechecks,
    pub(crate) journal: Journal,
    pub(crate) ambient: Arc<dyn Ambient>,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) memory: Arc<Semaphore>,
    pub(crate) at_work: TaskTracker,
}

/// Registrations that cannot be used which one answer tells.
const TOLD: usize = 3;

/// Apps to wake, each with the reading of the registrations that is the reason where there is one.
type Targets = BTreeMap<AppName, Option<u64>>;

/// When a delivery came, and the trace it is part of.
#[derive(Clone)]
struct Arrival {
    at: Instant,
    trace: String,
}

/// What a delivery said about itself, as far as it was believed: for the log line and the event.
#[derive(Default)]
struct Subject {
    repo: Option<RepoName>,
    reference: String,
    after: String,
    delivery: String,
}

/// The handler of `POST` on the configured path.
pub(crate) async fn webhook(State(intake): State<Arc<Intake>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let header = parts.headers.get(trace::HEADER).and_then(|value| value.to_str().ok());
    let arrival = Arrival { at: Instant::now(), trace: trace::following(header, &*intake.ambient) };
    if !is_json(&parts) {
        return intake.finish(&arrival, Subject::default(), Answer::NotJson).into_response();
    }
    let Ok(place) = Arc::clone(&intake.places).try_acquire_owned() else {
        return intake.finish(&arrival, Subject::default(), Answer::Busy).into_response();
    };
    let place = (place, measure::Counted::delivery());
    let delivery = match intake.believe(&arrival, &parts, body).await {
        Ok(delivery) => delivery,
        Err(answer) => return intake.finish(&arrival, Subject::default(), answer).into_response(),
    };
    // A task of its own: a client that hangs up must not cut the wakes of a delivery in half.
    let working = Arc::clone(&intake);
    let work = intake.at_work.spawn(async move {
        let _place = place;
        let (subject, answer) = working.act(&arrival, delivery).await;
        working.finish(&arrival, subject, answer)
    });
    match work.await {
        Ok(closing) => closing.into_response(),
        Err(_) => Answer::Unavailable("the delivery broke off".to_owned()).into_response(),
    }
}

/// Whether the content type is JSON, with or without parameters.
fn is_json(parts: &Parts) -> bool {
    let value = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

impl Intake {
    /// Reads the body, verifies it, and only then looks at what it says.
    async fn believe(
        &self,
        arrival: &Arrival,
        parts: &Parts,
        body: axum::body::Body,
    ) -> Result<Delivery, Answer> {
        let deadline = arrival.at + self.config.body_timeout;
        let bounds = Bounds { cap: self.config.max_body, memory: &self.memory, deadline };
        let buffered = body::read(body, &bounds).await?;
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let raw = RawDelivery { header: &header, body: &buffered.bytes };
        self.reader.verify(&raw).and_then(|()| self.reader.parse(&raw)).map_err(|rejection| match rejection {
            Rejection::Unsigned => Answer::Unsigned,
            Rejection::BadSignature => Answer::BadSignature,
            Rejection::Malformed(reason) => Answer::Malformed(reason),
        })
    }

    async fn act(&self, arrival: &Arrival, delivery: Delivery) -> (Subject, Answer) {
        match delivery {
            Delivery::Ignored { repo, reason } => {
                (Subject { repo, ..Subject::default() }, Answer::Ignored(reason))
            }
            Delivery::Push(push) => {
                let answer = if push.test {
                    Answer::Ignored("test delivery".to_owned())
                } else {
                    let cause = self.cause(arrival, &push);
                    match self.targets(arrival, &push, &cause).await {
                        Ok(targets) => self.wake(arrival, targets, &cause).await,
                        Err(answer) => answer,
                    }
                };
                let reference = push.branch.full_ref();
                let Push { delivery, repo, after, .. } = push;
                (Subject { repo: Some(repo), reference, after, delivery }, answer)
            }
        }
    }

    /// The apps to wake, at least one.
    async fn targets(&self, arrival: &Arrival, push: &Push, cause: &WakeCause) -> Result<Targets, Answer> {
        let subscriptions = self.reloads.subscriptions();
        let to_apps_repo = subscriptions.is_apps_repo(&push.repo, &push.branch);
        let mut followers = subscriptions.followers(&push.repo, &push.branch);
        let mut targets = BTreeMap::new();
        if to_apps_repo || followers == Followers::UnknownRepository {
            let read = self.read_for(arrival, push, to_apps_repo).await;
            targets.extend(self.reloads.owing().into_iter().map(|(app, reading)| (app, Some(reading))));
            if let Err(problem) = read {
                // What is owed all the same may wait long for another reading: the forge delivers this once. A wake
                // that fails too stays owed.
                self.wake(arrival, targets, cause).await;
                if !to_apps_repo {
                    self.rechecks.note(push, &followers, cause);
                }
                return Err(Answer::Unavailable(problem));
            }
            followers = subscriptions.followers(&push.repo, &push.branch);
        } else {
            self.rechecks.note(push, &followers, cause);
        }
        match followers {
            Followers::Apps(apps) => {
                for app in apps {
                    targets.entry(app).or_default();
                }
            }
            Followers::OtherBranch | Followers::UnknownRepository if !targets.is_empty() => {}
            Followers::OtherBranch | Followers::UnknownRepository if to_apps_repo => {
                return Err(Answer::Ignored("it changes no app".to_owned()));
            }
            Followers::OtherBranch => {
                return Err(Answer::Ignored(format!("no app follows {} of {}", push.branch, push.repo)));
            }
            Followers::UnknownRepository => {
                return Err(Answer::Ignored(self.unregistered(&push.repo)));
            }
        }
        Ok(targets)
    }

    /// Reads the registrations for a push, and what a push to `cluster/apps` changed before that; not for so long that no
    /// time is left to wake.
    async fn read_for(&self, arrival: &Arrival, push: &Push, to_apps_repo: bool) -> Result<(), String> {
        let deadline = arrival.at + self.config.answer_timeout - self.config.wake_timeout;
        self.reloads.fresh(deadline).await?;
        if to_apps_repo { self.reloads.catch_up(push, deadline).await } else { Ok(()) }
    }

    fn cause(&self, arrival: &Arrival, push: &Push) -> WakeCause {
        let to_apps_repo = self.reloads.subscriptions().is_apps_repo(&push.repo, &push.branch);
        WakeCause {
            kind: if to_apps_repo { "apps" } else { "push" }.to_owned(),
            detail: format!("push to {} of {}", push.branch, push.repo),
            trace: Some(arrival.trace.clone()),
            at: self.ambient.now(),
            named: if to_apps_repo { None } else { Revision::parse(&push.after).ok() },
        }
    }

    async fn wake(&self, arrival: &Arrival, targets: Targets, cause: &WakeCause) -> Answer {
        let until = (Instant::now() + self.config.wake_timeout).min(arrival.at + self.config.answer_timeout);
        let outcomes = self.wake_all(targets, cause, until).await;
        match outcomes.iter().find_map(|(app, problem)| problem.as_ref().map(|problem| (app, problem))) {
            Some((app, problem)) => {
                Answer::Unavailable(format!("the wake of {app} is not durable: {problem}"))
            }
            None => self.accepted(outcomes.into_iter().map(|(app, _)| app).collect()),
        }
    }

    /// Every wake is durable. Who pushed is told of the apps among them that wait for their registration.
    fn accepted(&self, woken: Vec<AppName>) -> Answer {
        let unusable = self.reloads.subscriptions().unusable();
        let waits = unusable.iter().filter(|unusable| woken.contains(&unusable.app));
        let waits: Vec<String> = waits.take(TOLD).map(|it| format!("{} waits: {}", it.app, it.why)).collect();
        if waits.is_empty() { Answer::Accepted(woken) } else { Answer::Waiting(woken, waits.join("; ")) }
    }

    /// Why nothing follows from a push to a repository that nobody follows. A registration that does not even tell its
    /// source may be the one that is missing.
    fn unregistered(&self, repo: &RepoName) -> String {
        let unusable = self.reloads.subscriptions().unusable();
        let unread = unusable.iter().filter(|unusable| !unusable.followed).take(TOLD);
        let unread: Vec<&str> = unread.map(|unusable| unusable.why.as_str()).collect();
        let registered = format!("no app is registered for {repo}");
        if unread.is_empty() {
            return registered;
        }
        format!("{registered}, or by a registration that cannot be read: {}", unread.join("; "))
    }

    /// Wakes every app at once, each exactly once, and waits for all acknowledgements, until one and the same
    /// moment: an answer has to be out in time however many apps it is about. Each app with what went wrong.
    pub(crate) async fn wake_all(
        &self,
        targets: Targets,
        cause: &WakeCause,
        until: Instant,
    ) -> Vec<(AppName, Option<String>)> {
        let publishing = targets.into_iter().map(async |(app, reading)| {
            let outcome = timeout_at(until, self.wakes.wake(&app, cause)).await;
            let problem = match outcome {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("it was not acknowledged in time".to_owned()),
            };
            measure::wake(problem.is_none());
            if let (None, Some(reading)) = (&problem, reading) {
                self.reloads.paid(&app, reading);
            }
            (app, problem)
        });
        stream::iter(publishing).buffered(CONCURRENT_WAKES).collect().await
    }

    /// Counts and logs a delivery that has its answer. Its event follows the answer.
    fn finish(&self, arrival: &Arrival, subject: Subject, answer: Answer) -> Closing {
        let took = arrival.at.elapsed();
        measure::delivery(answer.outcome(), took);
        log(arrival, &subject, &answer, took.as_millis());
        let ignored = match &answer {
            Answer::Accepted(_) | Answer::Waiting(..) => None,
            Answer::Ignored(reason) => Some(reason.clone()),
            Answer::NotJson
            | Answer::Busy
            | Answer::TooLarge
            | Answer::TooSlow
            | Answer::BrokenBody
            | Answer::Unsigned
            | Answer::BadSignature
            | Answer::Malformed(_)
            | Answer::Unavailable(_) => return Closing { answer, afterwards: Afterwards::nothing() },
        };
        let event = subject.repo.map(|repo| Event {
            id: self.ambient.ulid(),
            at: self.ambient.now(),
            trace: Some(arrival.trace.clone()),
            body: EventBody::Delivery {
                repo,
                reference: subject.reference,
                after: subject.after,
                delivery: subject.delivery,
                woken: answer.woken().to_vec(),
                ignored,
            },
        });
        let told = |event| Afterwards::note(&self.journal, event);
        Closing { answer, afterwards: event.map_or_else(Afterwards::nothing, told) }
    }
}

/// The one line of a delivery. Foreign text is written in its escaped form.
fn log(arrival: &Arrival, subject: &Subject, answer: &Answer, took_ms: u128) {
    let repo = subject.repo.as_ref().map(ToString::to_string).unwrap_or_default();
    let woken = answer.woken().iter().map(AppName::as_str).collect::<Vec<_>>().join(",");
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                outcome = answer.outcome(),
                status = answer.status().as_u16(),
                repo,
                reference = ?subject.reference,
                after = ?subject.after,
                delivery = ?subject.delivery,
                woken,
                reason = ?answer.reason().unwrap_or_default(),
                took_ms,
                trace = arrival.trace,
                "delivery"
            )
        };
    }
    match answer {
        Answer::Accepted(_) | Answer::Ignored(_) => line!(info),
        Answer::Unavailable(_) | Answer::Busy => line!(error),
        Answer::Waiting(..)
        | Answer::NotJson
        | Answer::TooLarge
        | Answer::TooSlow
        | Answer::BrokenBody
        | Answer::Unsigned
        | Answer::BadSignature
        | Answer::Malformed(_) => line!(warn),
    }
}
