//! What a delivery is answered.

use axum::Json;
use axum::response::{IntoResponse, Response};
use fabrique_core::id::AppName;
use http::header::CONNECTION;
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

/// Every way a delivery can end. The text in each is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Every app's wake is durable.
    Accepted(Vec<AppName>),
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
            Answer::Accepted(_) => StatusCode::ACCEPTED,
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
            Answer::Accepted(_) => "accepted",
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
            Answer::Ignored(reason) | Answer::Malformed(reason) | Answer::Unavailable(reason) => Some(reason),
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
            Answer::Accepted(woken) => woken,
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
