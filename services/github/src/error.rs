//! What can go wrong with GitHub.

use fabrique_ports::{Fault, Peer, PortError};
use http::StatusCode;

/// A surprise of this adapter.
#[derive(Debug, thiserror::Error)]
pub enum GithubError {
    /// What was configured cannot be used.
    #[error("{0}")]
    Configuration(String),
    /// No answer, or only a part of one.
    #[error("{request} was not answered: {reason}")]
    NoAnswer {
        /// Method and path.
        request: String,
        /// The innermost cause.
        reason: String,
    },
    /// GitHub said no.
    #[error("{request} was answered {status}{}", said(.message))]
    Refused {
        /// Method and path.
        request: String,
        /// With which status.
        status: StatusCode,
        /// Its own words.
        message: String,
        /// Whether there was a token.
        with_token: bool,
    },
    /// An answer that does not have the documented form.
    #[error("{request} was answered with something unreadable: {problem}")]
    Unreadable {
        /// Method and path.
        request: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl GithubError {
    pub(crate) fn no_answer(request: &str, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut cause = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        Self::NoAnswer { request: request.to_owned(), reason: escaped(&cause.to_string()) }
    }

    fn fault(&self) -> (Fault, Option<&'static str>) {
        match self {
            GithubError::Configuration(_) => (Fault::Denied, None),
            GithubError::NoAnswer { .. } => {
                (Fault::Transient, Some("may this machine reach github.url? a proxy is github.proxy"))
            }
            GithubError::Refused { status, with_token, .. } => refusal(*status, *with_token),
            GithubError::Unreadable { .. } => {
                (Fault::Unexpected, Some("is github.url the root of an API of GitHub?"))
            }
        }
    }
}

fn refusal(status: StatusCode, with_token: bool) -> (Fault, Option<&'static str>) {
    match status.as_u16() {
        401 => {
            (Fault::Denied, Some("the token of github.token_file is wrong, expired or revoked: replace it"))
        }
        403 if with_token => (
            Fault::Denied,
            Some("the token of github.token_file needs to read contents, checks and commit statuses"),
        ),
        403 => (Fault::Denied, Some("name a file with a token in github.token_file")),
        408 | 429 | 500..=599 => (Fault::Transient, None),
        _ => (Fault::Unexpected, None),
    }
}

impl From<GithubError> for PortError {
    fn from(error: GithubError) -> Self {
        let (fault, remedy) = error.fault();
        let port = PortError::new(Peer::Origin, fault, error.to_string());
        match remedy {
            Some(remedy) => port.remedy(remedy).caused_by(error),
            None => port.caused_by(error),
        }
    }
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// What came from outside, on one line and short.
pub(crate) fn escaped(text: &str) -> String {
    const SHOWN: usize = 200;
    let shown: String = text.chars().take(SHOWN).collect();
    shown.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
