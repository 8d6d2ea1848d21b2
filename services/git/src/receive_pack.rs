//! The other side's `git receive-pack`: behind one request to the forge, or started here where the forge is only a
//! folder.

use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, StatusCode};
use url::Url;

use crate::command::{Git, shown};
use crate::config::GitConfig;
use crate::error::GitError;
use crate::remote::Remote;

/// Far above any report; the rest of an answer is what hooks say.
const MAX_ANSWER: usize = 1 << 20;
const IDLE_CONNECTION: Duration = Duration::from_secs(30);
const REQUEST: HeaderValue = HeaderValue::from_static("application/x-git-receive-pack-request");
const RESULT: HeaderValue = HeaderValue::from_static("application/x-git-receive-pack-result");
/// Some forges know git by this beginning only.
const AGENT: &str = concat!("git/fabrique-", env!("CARGO_PKG_VERSION"));

/// What came back.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The answer of the forge's git, whole.
    Answer(Bytes),
    /// The forge refused, before its git saw anything.
    Refused(String),
    /// The request was sent, and whether it was carried out is not known.
    Unclear(String),
}

/// The other side of a push.
#[derive(Debug)]
pub(crate) struct ReceivePack {
    way: Way,
    timeout: Duration,
}

#[derive(Debug)]
enum Way {
    Forge { client: Client, url: Url, authorization: Option<HeaderValue> },
    Folder { git: Git, repository: PathBuf },
}

impl ReceivePack {
    /// That of a repository; nothing is sent yet. A TLS provider for rustls must be installed in the process, unless
    /// the forge is a folder.
    ///
    /// # Errors
    /// [`GitError::Config`] and [`GitError::State`] for certificates that cannot be used.
    pub(crate) fn new(config: &GitConfig, git: &Git, remote: &Remote) -> Result<Self, GitError> {
        const UNUSABLE: GitError = GitError::Config { key: "base_url", expected: "a URL with a path" };
        let url = Url::parse(&format!("{}/git-receive-pack", remote.url())).map_err(|_| UNUSABLE)?;
        let way = if url.scheme() == "file" {
            let repository = Url::parse(remote.url()).ok().and_then(|url| url.to_file_path().ok());
            Way::Folder { git: git.clone(), repository: repository.ok_or(UNUSABLE)? }
        } else {
            Way::Forge { client: client(config)?, url, authorization: remote.authorization() }
        };
        Ok(Self { way, timeout: config.timeouts.push })
    }

    /// Hands a request over and waits for what comes back.
    ///
    /// # Errors
    /// When it is certain that nothing was sent, and that waiting may help.
    pub(crate) async fn answer(&self, request: Vec<u8>) -> Result<Reply, GitError> {
        match &self.way {
            Way::Forge { client, url, authorization } => {
                self.post(client, url, authorization.as_ref(), request).await
            }
            Way::Folder { git, repository } => {
                let repository = repository.to_string_lossy();
                let call = git.call(&["receive-pack", "--stateless-rpc", &repository]);
                let call = call.input(request).timeout(self.timeout);
                Ok(match call.run().await {
                    Ok(output) if output.succeeded() => Reply::Answer(output.stdout),
                    Ok(output) => Reply::Unclear(shown(&output.stderr)),
                    Err(error) => Reply::Unclear(error.to_string()),
                })
            }
        }
    }

    async fn post(
        &self,
        client: &Client,
        url: &Url,
        authorization: Option<&HeaderValue>,
        request: Vec<u8>,
    ) -> Result<Reply, GitError> {
        let mut builder = client.post(url.clone()).header(CONTENT_TYPE, REQUEST).header(ACCEPT, RESULT);
        if let Some(authorization) = authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        let response = match builder.body(request).send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() || error.is_builder() => {
                return Err(GitError::Unreachable(reason(&error)));
            }
            Err(error) => return Ok(Reply::Unclear(self.lost(&error))),
        };
        let status = response.status();
        let from_git = response.headers().get(CONTENT_TYPE) == Some(&RESULT);
        let is_text = response.headers().get(CONTENT_TYPE).is_some_and(is_plain_text);
        let body = match read(response).await {
            Ok(Some(body)) => body,
            Ok(None) => return Ok(Reply::Unclear(format!("the answer is larger than {MAX_ANSWER} bytes"))),
            Err(error) => return Ok(Reply::Unclear(self.lost(&error))),
        };
        if status == StatusCode::OK && from_git {
            return Ok(Reply::Answer(body));
        }
        let said = if is_text { String::from_utf8_lossy(&body) } else { "".into() };
        without_git(status, said.trim())
    }

    /// Why there is no answer, or no end of it.
    fn lost(&self, error: &reqwest::Error) -> String {
        if error.is_timeout() {
            format!("the push took longer than {} s", self.timeout.as_secs())
        } else {
            format!("the connection was lost: {}", reason(error))
        }
    }
}

fn client(config: &GitConfig) -> Result<Client, GitError> {
    let unusable = || GitError::Config { key: "ca_file", expected: "a file of certificates in PEM" };
    // As for the forge's API and for git itself: what the environment says of proxies counts for nothing.
    let mut builder = Client::builder()
        .user_agent(AGENT)
        .connect_timeout(config.timeouts.connect)
        .timeout(config.timeouts.push)
        .pool_idle_timeout(IDLE_CONNECTION)
        .redirect(Policy::none())
        .no_proxy();
    if let Some(path) = &config.ca_file {
        let pem = std::fs::read(path).map_err(|source| GitError::State { path: path.clone(), source })?;
        let certificates = Certificate::from_pem_bundle(&pem).ok().filter(|found| !found.is_empty());
        builder = builder.tls_certs_only(certificates.ok_or_else(unusable)?);
    }
    builder.build().map_err(|_| unusable())
}

/// An answer that is not from git, by its status. Nothing arrived where the forge, or a proxy before it, refused
/// the request; after a server's fault there is no telling.
fn without_git(status: StatusCode, said: &str) -> Result<Reply, GitError> {
    let hint = match status.as_u16() {
        _ if !said.is_empty() => said,
        300..=399 => "redirects are not followed: configure the address and the name that the forge has now",
        401 => "the token is wrong, expired or revoked",
        403 => "the token may not push there",
        404 | 410 => "there is no such repository, or the token may not see it",
        413 => "the commits are larger than the forge or a proxy before it takes",
        _ => "no message",
    };
    let text = shown(&format!("{status}: {hint}"));
    match status.as_u16() {
        429 => Err(GitError::Unreachable(text)),
        408 => Ok(Reply::Unclear(text)),
        300..=499 => Ok(Reply::Refused(text)),
        _ => Ok(Reply::Unclear(text)),
    }
}

fn is_plain_text(kind: &HeaderValue) -> bool {
    kind.as_bytes().starts_with(b"text/plain")
}

/// The body, or nothing when it is too large.
async fn read(mut response: Response) -> Result<Option<Bytes>, reqwest::Error> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.freeze()))
}

/// The innermost cause, which is the only one that says something.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    shown(&cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_says_that_nothing_arrived() {
        for (status, refused) in [
            (302, true),
            (401, true),
            (403, true),
            (404, true),
            (413, true),
            (408, false),
            (500, false),
            (504, false),
        ] {
            let reply = without_git(StatusCode::from_u16(status).unwrap(), "").unwrap();
            assert_eq!(matches!(reply, Reply::Refused(_)), refused, "{reply:?}");
        }
        assert!(matches!(without_git(StatusCode::TOO_MANY_REQUESTS, ""), Err(GitError::Unreachable(_))));
        let portal = without_git(StatusCode::OK, "");
        assert!(matches!(portal, Ok(Reply::Unclear(_))), "somebody else answered: {portal:?}");
    }

    #[test]
    fn the_forges_own_words_are_preferred() {
        let Ok(Reply::Refused(text)) = without_git(StatusCode::FORBIDDEN, "This repo is archived.\n") else {
            panic!("refused");
        };
        assert_eq!(text, "403 Forbidden: This repo is archived.");
        let Ok(Reply::Refused(text)) = without_git(StatusCode::UNAUTHORIZED, "") else { panic!("refused") };
        assert_eq!(text, "401 Unauthorized: the token is wrong, expired or revoked");
    }
}
