//! What a delivery is answered.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::{IntoResponse, Response};
use fabrique_core::id::AppName;
use http::header::CONNECTION;
use http::{HeaderValue, StatusCode};
use hyper::body::{Frame, SizeHint};
use serde_json::{Value, json};

use crate::journal::Afterwards;

/// Every way a delivery can end. The text in each is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Every app's wake is durable.
    Accepted(Vec<AppName>),
    /// The same, and some of them wait for a registration that can be used, in words.
    Waiting(Vec<AppName>, String),
    /// Believed, and nothing follows from it.
    Ignored(String),
    /// Not JSON, by its own word.
    NotJson,
    /// Too many deliveries at work, or too much memory in bodies.
    Busy,
    /// Larger than the cap.
    TooLarge,
    /// The body did not arrive in time.
    TooSlow,
    /// The body ended too early or is not HTTP.
    BrokenBody,
    /// No signature.
    Unsigned,
    /// A signature that no secret makes.
    BadSignature,
    /// Signed, and makes no sense.
    Malformed(String),
    /// The bus did not acknowledge, or the registrations could not be read.
    Unavailable(String),
}

impl Answer {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Answer::Accepted(_) | Answer::Waiting(..) => StatusCode::ACCEPTED,
            Answer::Ignored(_) => StatusCode::OK,
            Answer::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Answer::Busy => StatusCode::TOO_MANY_REQUESTS,
            Answer::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Answer::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Answer::Unsigned | Answer::BadSignature => StatusCode::UNAUTHORIZED,
            Answer::BrokenBody | Answer::Malformed(_) => StatusCode::BAD_REQUEST,
            Answer::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// One word for metrics and logs.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Answer::Accepted(_) | Answer::Waiting(..) => "accepted",
            Answer::Ignored(_) => "ignored",
            Answer::NotJson => "not_json",
            Answer::Busy => "busy",
            Answer::TooLarge => "too_large",
            Answer::TooSlow => "too_slow",
            Answer::BrokenBody => "broken_body",
            Answer::Unsigned => "unsigned",
            Answer::BadSignature => "bad_signature",
            Answer::Malformed(_) => "malformed",
            Answer::Unavailable(_) => "unavailable",
        }
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Answer::Accepted(_) => None,
            Answer::Waiting(_, reason)
            | Answer::Ignored(reason)
            | Answer::Malformed(reason)
            | Answer::Unavailable(reason) => Some(reason),
            Answer::NotJson => Some("the content type is not application/json: set it in the webhook"),
            Answer::Busy => Some("too many deliveries at once"),
            Answer::TooLarge => Some("the body is larger than this receiver takes"),
            Answer::TooSlow => Some("the body did not arrive in time"),
            Answer::BrokenBody => Some("the body did not arrive whole"),
            Answer::Unsigned => Some("the forge signed nothing: set a secret in the webhook"),
            Answer::BadSignature => Some("the signature is of another secret or another body"),
        }
    }

    pub(crate) fn woken(&self) -> &[AppName] {
        match self {
            Answer::Accepted(woken) | Answer::Waiting(woken, _) => woken,
            Answer::Ignored(_)
            | Answer::NotJson
            | Answer::Busy
            | Answer::TooLarge
            | Answer::TooSlow
            | Answer::BrokenBody
            | Answer::Unsigned
            | Answer::BadSignature
            | Answer::Malformed(_)
            | Answer::Unavailable(_) => &[],
        }
    }

    /// Whether some of the body may still be on its way. The connection cannot be used again then, and the
    /// client must know: Gitea would send its next delivery into a closing connection, and not send it again.
    fn leaves_body_unread(&self) -> bool {
        match self {
            Answer::NotJson | Answer::Busy | Answer::TooLarge | Answer::TooSlow | Answer::BrokenBody => true,
            Answer::Accepted(_)
            | Answer::Waiting(..)
            | Answer::Ignored(_)
            | Answer::Unsigned
            | Answer::BadSignature
            | Answer::Malformed(_)
            | Answer::Unavailable(_) => false,
        }
    }

    fn body(&self) -> Value {
        match (self, self.reason()) {
            (Answer::Accepted(woken), _) => json!({ "status": "accepted", "woken": woken }),
            (Answer::Waiting(woken, why), _) => {
                json!({ "status": "accepted", "woken": woken, "reason": why })
            }
            (_, reason) => json!({ "status": self.outcome(), "reason": reason }),
        }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        if self.leaves_body_unread() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// An answer, and what follows once it is given.
pub(crate) struct Closing {
    pub(crate) answer: Answer,
    pub(crate) afterwards: Afterwards,
}

impl IntoResponse for Closing {
    fn into_response(self) -> Response {
        let Self { answer, afterwards } = self;
        answer.into_response().map(|body| Body::new(LastBody { body, _afterwards: afterwards }))
    }
}

/// The body of an answer that something follows.
struct LastBody {
    body: Body,
    _afterwards: Afterwards,
}

impl HttpBody for LastBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::RepoName;
    use fabrique_core::time::Timestamp;
    use fabrique_ports::bus::{Event, EventBody};
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;
    use crate::journal::Journal;

    fn event() -> Event {
        let body = EventBody::Delivery {
            repo: RepoName::parse("atlas/citation").unwrap(),
            reference: "refs/heads/main".to_owned(),
            after: String::new(),
            delivery: String::new(),
            woken: vec![],
            ignored: None,
        };
        Event { id: "1".to_owned(), at: Timestamp(0), trace: None, body }
    }

    #[test]
    fn an_event_waits_until_its_answer_is_taken_whole() {
        let (journal, mut queue) = Journal::new(8);
        let afterwards = Afterwards::note(&journal, event());
        let response = Closing { answer: Answer::Accepted(vec![]), afterwards }.into_response();
        let length = response.body().size_hint().exact();
        let mut body = response.into_body().into_data_stream();
        let chunk = body.next().now_or_never().unwrap().unwrap().unwrap();
        assert_eq!(length, Some(chunk.len() as u64), "its length is announced");
        assert!(queue.try_recv().is_err(), "the answer is not given yet");
        assert!(body.next().now_or_never().unwrap().is_none());
        drop(body);
        assert_eq!(queue.try_recv().unwrap(), event());
    }

    #[test]
    fn an_event_is_told_although_nobody_waits_for_the_answer_any_more() {
        let (journal, mut queue) = Journal::new(8);
        let afterwards = Afterwards::note(&journal, event());
        drop(Closing { answer: Answer::Ignored("a test".to_owned()), afterwards });
        assert_eq!(queue.try_recv().unwrap(), event());
    }
}
