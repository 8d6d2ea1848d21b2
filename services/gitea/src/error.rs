//! What can go wrong between here and Gitea.

use fabrique_ports::{Fault, Peer, PortError};
use reqwest::StatusCode;

use crate::config::Purpose;

/// A surprise from Gitea or on the way there. No variant carries a token or a secret.
#[derive(Debug, thiserror::Error)]
pub enum GiteaError {
    /// The configuration makes no sense.
    #[error("{0}")]
    Configuration(String),
    /// No answer came: name resolution, connection, TLS, timeout or a connection that broke.
    #[error("{request} got no answer: {}", reason(source))]
    NoAnswer {
        /// Method and path.
        request: String,
        /// The client's error, without its URL.
        source: reqwest::Error,
    },
    /// An answer with a status that means failure here.
    #[error("{request} was answered {status}{}", said(message))]
    Refused {
        /// Method and path.
        request: String,
        /// The status.
        status: StatusCode,
        /// Gitea's own words, cut and escaped.
        message: String,
        /// Whose token was used.
        purpose: Purpose,
        /// Whether there was a token at all.
        with_token: bool,
    },
    /// What a step of the administrator is about was made or removed since it was looked at. Gitea does that by itself: it takes
    /// back a repository whose maker went away before it was whole.
    #[error("{request} was answered {status}{}: somebody else was at it meanwhile", said(message))]
    Overtaken {
        /// Method and path.
        request: String,
        /// The status.
        status: StatusCode,
        /// Gitea's own words, cut and escaped.
        message: String,
    },
    /// A redirect to another server, which a token must not follow, or one redirect too many.
    #[error("{request} was redirected away from the configured server, or in circles")]
    RedirectedAway {
        /// Method and path.
        request: String,
    },
    /// A repository is not there, or the token may not see it, where that is not an expected outcome.
    #[error("there is no repository {repo}, or the token may not see it")]
    NoRepository {
        /// The repository.
        repo: String,
        /// Whose token was used.
        purpose: Purpose,
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

impl From<GiteaError> for PortError {
    fn from(error: GiteaError) -> Self {
        let (fault, remedy) = error.fault();
        let port = PortError::new(Peer::Forge, fault, error.to_string());
        let port = match remedy {
            Some(remedy) => port.remedy(remedy),
            None => port,
        };
        match error {
            GiteaError::NoAnswer { source, .. } => port.caused_by(source),
            other => port.caused_by(other),
        }
    }
}

impl GiteaError {
    fn fault(&self) -> (Fault, Option<String>) {
        match self {
            GiteaError::Configuration(_) => (Fault::Denied, None),
            GiteaError::NoAnswer { .. } | GiteaError::Overtaken { .. } => (Fault::Transient, None),
            GiteaError::Refused { status, purpose, with_token, .. } => {
                refusal(*status, *purpose, *with_token)
            }
            GiteaError::RedirectedAway { .. } => {
                (Fault::Unexpected, Some("set the base URL to the address that Gitea itself uses".to_owned()))
            }
            GiteaError::NoRepository { purpose, .. } => {
                (Fault::Denied, Some(format!("give the `{purpose}` token {}", purpose.needs())))
            }
            GiteaError::Unreadable { .. } => (Fault::Unexpected, None),
        }
    }
}

fn refusal(status: StatusCode, purpose: Purpose, with_token: bool) -> (Fault, Option<String>) {
    match status.as_u16() {
        401 | 403 if purpose == Purpose::Admin => (
            Fault::Denied,
            Some(
                "name an administrator of Gitea and the password; one with a second factor is refused"
                    .to_owned(),
            ),
        ),
        401 if with_token => {
            (Fault::Denied, Some(format!("the `{purpose}` token is wrong, expired or revoked: replace it")))
        }
        401 => (Fault::Denied, Some(format!("configure the `{purpose}` token"))),
        403 => (Fault::Denied, Some(format!("the `{purpose}` token needs {}", purpose.needs()))),
        423 => (
            Fault::Denied,
            Some(format!(
                "the repository is archived, so the `{purpose}` token can change nothing: unarchive it, or \
                 remove it from the registrations"
            )),
        ),
        408 | 429 | 500..=599 => (Fault::Transient, None),
        _ => (Fault::Unexpected, None),
    }
}

/// The innermost cause: reqwest's own text ("error sending request") says nothing.
fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "timed out".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    crate::text::escaped(&cause.to_string(), 200)
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, with_token: bool) -> PortError {
        GiteaError::Refused {
            request: "GET /repos/a/b".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            message: String::new(),
            purpose: Purpose::Hooks,
            with_token,
        }
        .into()
    }

    #[test]
    fn what_only_a_person_can_mend_names_the_purpose_of_the_token() {
        for status in [401, 403, 423] {
            let error = refused(status, true);
            assert_eq!(error.fault(), Fault::Denied, "{status}");
            assert!(error.to_string().contains("`hooks` token"), "{error}");
        }
        assert!(refused(401, false).to_string().contains("configure the `hooks` token"));
    }

    #[test]
    fn overload_and_server_faults_are_worth_another_try_and_the_rest_is_not() {
        for status in [408, 429, 500, 502, 503] {
            assert_eq!(refused(status, true).fault(), Fault::Transient, "{status}");
        }
        for status in [301, 400, 404, 409, 422] {
            assert_eq!(refused(status, true).fault(), Fault::Unexpected, "{status}");
        }
    }
}
