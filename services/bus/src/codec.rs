//! Events as messages: the body after `proto/fabrique/v1`, the envelope in CloudEvents headers, and back.

use std::fmt::Display;

use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{AppName, InvalidId};
use fabrique_core::time::Timestamp;
use fabrique_ports::bus::{Event, EventBody};
use fabrique_ports::records::BuildPhase;
use fabrique_proto::v1;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The W3C trace context.
pub(crate) const TRACEPARENT: &str = "traceparent";

const ID: &str = "ce-id";
const TYPE: &str = "ce-type";
const TIME: &str = "ce-time";
/// Sentences and error texts in events: they are for reading, the log has the rest.
const TEXT: usize = 4000;

/// Why a message is not an event.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAnEvent {
    /// It has a type that this version does not know: from a newer one, or from somebody else.
    #[error("it has the type {0:?}")]
    UnknownType(String),
    #[error("the header {0} is missing or not valid")]
    Header(&'static str),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Id(#[from] InvalidId),
    #[error("the phase {0} lacks {1}")]
    Phase(&'static str, &'static str),
}

/// Whether `text` can stand in a `traceparent` header.
pub(crate) fn is_traceparent(text: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [2, 32, 16, 2] && text.split('-').all(is_hex)
}

/// Cuts `text` to at most `limit` bytes.
pub(crate) fn shorten(text: &mut String, limit: usize) {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push('…');
    }
}

/// The headers and the body of an event of `source`.
pub(crate) fn encode(event: &Event, source: &str) -> Result<(HeaderMap, Bytes), serde_json::Error> {
    let (kind, subject, body) = body(&event.body)?;
    let mut headers = HeaderMap::new();
    let mut set = |name: &str, value: &str| {
        // A name with a line break in it would end the header: such a value is left out.
        if let Ok(value) = value.parse::<HeaderValue>() {
            headers.insert(name, value);
        }
    };
    set("Nats-Msg-Id", &event.id);
    set("ce-specversion", "1.0");
    set(ID, &event.id);
    set("ce-source", source);
    set(TYPE, &format!("fabrique.v1.{kind}"));
    set("ce-subject", &subject);
    set(TIME, &time(event.at));
    set("ce-datacontenttype", "application/json");
    if let Some(trace) = event.trace.as_deref().filter(|trace| is_traceparent(trace)) {
        set(TRACEPARENT, trace);
    }
    Ok((headers, body.into()))
}

/// The event of a message.
pub(crate) fn decode(headers: Option<&HeaderMap>, body: &[u8]) -> Result<Event, NotAnEvent> {
    let header = |name: &'static str| {
        headers.and_then(|headers| headers.get(name)).map(HeaderValue::as_str).ok_or(NotAnEvent::Header(name))
    };
    let kind = header(TYPE)?;
    let known = kind.strip_prefix("fabrique.v1.").and_then(|kind| parse(kind, body));
    let body = known.ok_or_else(|| NotAnEvent::UnknownType(kind.to_owned()))??;
    let at: jiff::Timestamp = header(TIME)?.parse().map_err(|_| NotAnEvent::Header(TIME))?;
    let at = u64::try_from(at.as_millisecond()).map_err(|_| NotAnEvent::Header(TIME))?;
    let trace = header(TRACEPARENT).ok().map(str::to_owned);
    Ok(Event { id: header(ID)?.to_owned(), at: Timestamp(at), trace, body })
}

fn time(at: Timestamp) -> String {
    let millis = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// The message's name, what it is about, and its JSON.
fn body(body: &EventBody) -> Result<(&'static str, String, Vec<u8>), serde_json::Error> {
    fn message(
        kind: &'static str,
        subject: &dyn Display,
        message: &impl Serialize,
    ) -> Result<(&'static str, String, Vec<u8>), serde_json::Error> {
        Ok((kind, subject.to_string(), serde_json::to_vec(message)?))
    }
    match body {
        EventBody::Delivery { repo, reference, after, delivery, woken, ignored } => {
            let woken = strings(woken);
            let (reference, ignored) = (text(reference), ignored.as_deref().map(text));
            let (after, delivery) = (text(after), text(delivery));
            let repo_ = repo.to_string();
            message(
                "Delivery",
                repo,
                &v1::Delivery { repo: repo_, reference, after, delivery, woken, ignored },
            )
        }
        EventBody::Decision { app, target, action, reason, dead_letter } => {
            let target = target.as_ref().map(ToString::to_string);
            let (action, reason) = (text(action), text(reason));
            let (app_, dead_letter) = (app.to_string(), *dead_letter);
            message("Decision", app, &v1::Decision { app: app_, target, action, reason, dead_letter })
        }
        EventBody::Build { app, build, revision, phase } => {
            let (build, revision) = (build.to_string(), revision.to_string());
            message(
                "BuildChanged",
                app,
                &v1::BuildChanged { app: app.to_string(), build, revision, ..changed(phase) },
            )
        }
        EventBody::Step { app, build, name, cached, millis, error } => {
            let (build, name, error) = (build.to_string(), text(name), error.as_deref().map(text));
            let duration_ms = u32::try_from(*millis).unwrap_or(u32::MAX);
            let step =
                v1::StepEnded { app: app.to_string(), build, name, cached: *cached, duration_ms, error };
            message("StepEnded", app, &step)
        }
        EventBody::Commit { app, environment, channel, commit, revision, digest } => {
            let committed = v1::Committed {
                app: app.to_string(),
                environment: environment.to_string(),
                channel: text(channel),
                commit: commit.to_string(),
                revision: revision.to_string(),
                digest: digest.as_ref().map(ToString::to_string),
            };
            message("Committed", app, &committed)
        }
        EventBody::Command { app, verb, caller, outcome } => {
            let (verb, caller, outcome) = (text(verb), text(caller), text(outcome));
            message(
                "CommandHandled",
                app,
                &v1::CommandHandled { app: app.to_string(), verb, caller, outcome },
            )
        }
        EventBody::Warning { app, message: words } => {
            let app = app.as_ref().map(ToString::to_string);
            message("Warning", &app.clone().unwrap_or_default(), &v1::Warning { app, message: text(words) })
        }
    }
}

/// `None` when this version does not know the message `kind`.
fn parse(kind: &str, body: &[u8]) -> Option<Result<EventBody, NotAnEvent>> {
    Some(match kind {
        "Delivery" => read(body, |m: v1::Delivery| {
            Ok(EventBody::Delivery {
                repo: m.repo.parse()?,
                reference: m.reference,
                after: m.after,
                delivery: m.delivery,
                woken: parsed(m.woken)?,
                ignored: m.ignored,
            })
        }),
        "Decision" => read(body, |m: v1::Decision| {
            let target = m.target.map(TryInto::try_into).transpose()?;
            let (app, action, reason) = (m.app.try_into()?, m.action, m.reason);
            Ok(EventBody::Decision { app, target, action, reason, dead_letter: m.dead_letter })
        }),
        "BuildChanged" => read(body, |m: v1::BuildChanged| {
            let phase = phase(&m)?;
            let (app, build, revision) = (m.app.try_into()?, m.build.try_into()?, m.revision.try_into()?);
            Ok(EventBody::Build { app, build, revision, phase })
        }),
        "StepEnded" => read(body, |m: v1::StepEnded| {
            let (app, build, millis) = (m.app.try_into()?, m.build.try_into()?, m.duration_ms.into());
            Ok(EventBody::Step { app, build, name: m.name, cached: m.cached, millis, error: m.error })
        }),
        "Committed" => read(body, |m: v1::Committed| {
            Ok(EventBody::Commit {
                app: m.app.try_into()?,
                environment: m.environment.try_into()?,
                channel: m.channel,
                commit: m.commit.try_into()?,
                revision: m.revision.try_into()?,
                digest: m.digest.map(TryInto::try_into).transpose()?,
            })
        }),
        "CommandHandled" => read(body, |m: v1::CommandHandled| {
            let app = m.app.try_into()?;
            Ok(EventBody::Command { app, verb: m.verb, caller: m.caller, outcome: m.outcome })
        }),
        "Warning" => read(body, |m: v1::Warning| {
            let app = m.app.map(TryInto::try_into).transpose()?;
            Ok(EventBody::Warning { app, message: m.message })
        }),
        _ => return None,
    })
}

fn read<M: DeserializeOwned>(
    body: &[u8],
    event: impl FnOnce(M) -> Result<EventBody, NotAnEvent>,
) -> Result<EventBody, NotAnEvent> {
    event(serde_json::from_slice(body)?)
}

fn changed(phase: &BuildPhase) -> v1::BuildChanged {
    let with =
        |phase: v1::BuildPhase| v1::BuildChanged { phase: phase.into(), ..v1::BuildChanged::default() };
    match phase {
        BuildPhase::Queued => with(v1::BuildPhase::Queued),
        BuildPhase::Preparing => with(v1::BuildPhase::Preparing),
        BuildPhase::Building => with(v1::BuildPhase::Building),
        BuildPhase::Pushed { digest } => {
            v1::BuildChanged { digest: Some(digest.to_string()), ..with(v1::BuildPhase::Pushed) }
        }
        BuildPhase::Committed { digest, commits } => v1::BuildChanged {
            digest: Some(digest.to_string()),
            commits: strings(commits),
            ..with(v1::BuildPhase::Committed)
        },
        BuildPhase::NotCommitted { digest, reason } => v1::BuildChanged {
            digest: Some(digest.to_string()),
            message: Some(text(reason)),
            ..with(v1::BuildPhase::NotCommitted)
        },
        BuildPhase::Failed { kind, message } => {
            let failure = match kind {
                FailureKind::Source => v1::FailureKind::Source,
                FailureKind::Environment => v1::FailureKind::Environment,
                FailureKind::Infrastructure => v1::FailureKind::Infrastructure,
                FailureKind::Cancelled => v1::FailureKind::Cancelled,
                FailureKind::Unplaced => v1::FailureKind::Unplaced,
            };
            let message = Some(text(message));
            v1::BuildChanged { failure: failure.into(), message, ..with(v1::BuildPhase::Failed) }
        }
        BuildPhase::Superseded { by } => v1::BuildChanged {
            superseded_by: by.as_ref().map(ToString::to_string),
            ..with(v1::BuildPhase::Superseded)
        },
    }
}

fn phase(m: &v1::BuildChanged) -> Result<BuildPhase, NotAnEvent> {
    let digest = |phase| {
        let digest = m.digest.as_deref().ok_or(NotAnEvent::Phase(phase, "its digest"))?;
        Ok::<_, NotAnEvent>(digest.parse()?)
    };
    let message = || m.message.clone().unwrap_or_default();
    Ok(match m.phase() {
        v1::BuildPhase::Unspecified => return Err(NotAnEvent::Phase("unspecified", "a meaning known here")),
        v1::BuildPhase::Queued => BuildPhase::Queued,
        v1::BuildPhase::Preparing => BuildPhase::Preparing,
        v1::BuildPhase::Building => BuildPhase::Building,
        v1::BuildPhase::Pushed => BuildPhase::Pushed { digest: digest("pushed")? },
        v1::BuildPhase::Committed => {
            BuildPhase::Committed { digest: digest("committed")?, commits: parsed(m.commits.clone())? }
        }
        v1::BuildPhase::NotCommitted => {
            BuildPhase::NotCommitted { digest: digest("not committed")?, reason: message() }
        }
        v1::BuildPhase::Failed => {
            let kind = match m.failure() {
                v1::FailureKind::Source => FailureKind::Source,
                v1::FailureKind::Environment => FailureKind::Environment,
                v1::FailureKind::Infrastructure => FailureKind::Infrastructure,
                v1::FailureKind::Cancelled => FailureKind::Cancelled,
                v1::FailureKind::Unplaced => FailureKind::Unplaced,
                v1::FailureKind::Unspecified => return Err(NotAnEvent::Phase("failed", "its kind")),
            };
            BuildPhase::Failed { kind, message: message() }
        }
        v1::BuildPhase::Superseded => {
            BuildPhase::Superseded { by: m.superseded_by.as_deref().map(str::parse).transpose()? }
        }
    })
}

fn text(words: &str) -> String {
    let mut words = words.to_owned();
    shorten(&mut words, TEXT);
    words
}

fn strings<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn parsed<T: TryFrom<String, Error = InvalidId>>(texts: Vec<String>) -> Result<Vec<T>, InvalidId> {
    texts.into_iter().map(T::try_from).collect()
}

/// Whether the event is about `app`.
pub(crate) fn concerns(event: &Event, name: &AppName) -> bool {
    match &event.body {
        EventBody::Delivery { woken, .. } => woken.contains(name),
        EventBody::Decision { app, .. }
        | EventBody::Build { app, .. }
        | EventBody::Step { app, .. }
        | EventBody::Commit { app, .. }
        | EventBody::Command { app, .. } => app == name,
        EventBody::Warning { app, .. } => app.as_ref() == Some(name),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn warning(id: &str, words: &str) -> Event {
        let body = EventBody::Warning { app: None, message: words.to_owned() };
        Event { id: id.to_owned(), at: Timestamp(0), trace: Some("not a trace\r\nx: y".to_owned()), body }
    }

    #[test]
    fn no_value_can_add_a_header() {
        let (headers, _) = encode(&warning("01\r\nNats-Rollup: all", "w"), "/fabrique/test").unwrap();
        assert_eq!(headers.get(ID), None);
        assert_eq!(headers.get(TRACEPARENT), None);
        assert!(headers.iter().flat_map(|(_, values)| values).all(|value| !value.as_str().contains('\n')));
    }

    #[test]
    fn a_traceparent_is_recognised_by_its_form() {
        assert!(is_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        for bad in ["", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", "00-4bf9-00f0-01", "---"] {
            assert!(!is_traceparent(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_on_the_bus_decoding_never_panics(kind in "[A-Za-z.0-9]{0,30}", body in any::<Vec<u8>>()) {
            for kind in [kind, "fabrique.v1.BuildChanged".to_owned(), "fabrique.v1.Delivery".to_owned()] {
                let mut headers = HeaderMap::new();
                headers.insert(TYPE, kind.as_str());
                let _ = decode(Some(&headers), &body);
            }
            prop_assert!(decode(None, &body).is_err());
        }

        #[test]
        fn long_words_are_cut_and_stay_an_event(words in ".{0,3000}") {
            let (headers, body) = encode(&warning("01k", &words.repeat(3)), "/fabrique/test").unwrap();
            prop_assert!(body.len() < 64 << 10);
            let event = decode(Some(&headers), &body).unwrap();
            let EventBody::Warning { message, .. } = event.body else { panic!("{event:?}") };
            prop_assert!(message.len() <= TEXT + '…'.len_utf8());
        }
    }
}
