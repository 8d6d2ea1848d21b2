//! One request to GitHub: its bounds, its answer, and the limits of how many there may be.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fabrique_core::time::Timestamp;
use http::header::{ACCEPT, HeaderMap, HeaderValue, LINK, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use octocrab::Octocrab;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Proxy};
use secrecy::ExposeSecret as _;
use serde::de::DeserializeOwned;

use crate::config::GithubConfig;
use crate::error::{GithubError, escaped};

/// The wall clock: GitHub says in seconds from now when some requests are welcome again.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Far above any page read here.
const MAX_ANSWER: usize = 16 << 20;
const MAX_REDIRECTS: usize = 3;
/// How long to wait where GitHub says only that there were too many requests.
const UNTOLD_WAIT: Duration = Duration::from_secs(60);
const VERSION: HeaderValue = HeaderValue::from_static("2022-11-28");
const MEDIA: HeaderValue = HeaderValue::from_static("application/vnd.github+json");

/// GitHub's API. Clones share the connections.
#[derive(Clone)]
pub struct Github {
    client: Octocrab,
    clock: Clock,
    with_token: bool,
}

impl fmt::Debug for Github {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Github").field("with_token", &self.with_token).finish_non_exhaustive()
    }
}

/// What was answered, unless there were too many requests.
pub(crate) enum Said {
    Answer(Answer),
    Limited(Timestamp),
}

/// An answer with its body.
pub(crate) struct Answer {
    request: String,
    pub(crate) status: StatusCode,
    /// Whether there is another page.
    pub(crate) has_next: bool,
    body: Vec<u8>,
    with_token: bool,
}

impl Github {
    /// Makes the client; nothing is sent yet. To be called within a runtime of tokio, and where a TLS provider for rustls
    /// is installed.
    ///
    /// # Errors
    /// [`GithubError::Configuration`] when address, token, certificates or proxy cannot be used.
    pub fn new(config: &GithubConfig, clock: Clock) -> Result<Self, GithubError> {
        let unusable = |what: &str| GithubError::Configuration(what.to_owned());
        let url = &config.base_url;
        let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
        if !is_web || !url.username().is_empty() || url.password().is_some() {
            return Err(unusable("the root of GitHub's API is not an http(s) URL without credentials"));
        }
        let mut http = Client::builder()
            .user_agent(concat!("fabrique/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(config.timeouts.connect)
            .timeout(config.timeouts.request)
            .redirect(Policy::limited(MAX_REDIRECTS));
        http = match &config.proxy {
            None => http.no_proxy(),
            Some(proxy) => http.proxy(
                Proxy::all(proxy.as_str()).map_err(|_| unusable("the proxy to GitHub cannot be used"))?,
            ),
        };
        if let Some(pem) = &config.authority {
            let authorities = Certificate::from_pem_bundle(pem)
                .map_err(|_| unusable("the certificates for GitHub cannot be read"))?;
            http = http.tls_certs_only(authorities);
        }
        let http = http.build().map_err(|error| {
            GithubError::Configuration(format!("the HTTP client cannot be made: {}", error.without_url()))
        })?;
        let no_client =
            |_: octocrab::Error| unusable("the client of GitHub cannot be made of its address and token");
        let mut builder = Octocrab::builder().base_uri(url.as_str()).map_err(no_client)?;
        if let Some(token) = &config.token {
            let token = token.expose_secret();
            if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(unusable(
                    "the token for GitHub is empty or holds blanks or other characters that no token has",
                ));
            }
            builder = builder.personal_token(token.to_owned());
        }
        let client = builder.build_with_reqwest(http).map_err(no_client)?;
        Ok(Self { client, clock, with_token: config.token.is_some() })
    }

    /// Asks for a path with its query, like `/repos/acme/citation`.
    pub(crate) async fn get(&self, path: &str) -> Result<Said, GithubError> {
        let request = format!("GET {}", path.split('?').next().unwrap_or_default());
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, MEDIA);
        headers.insert("x-github-api-version", VERSION);
        let response = self
            .client
            ._get_with_headers(path, Some(headers))
            .await
            .map_err(|error| GithubError::no_answer(&request, &error))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER)
            .collect()
            .await
            .map_err(|error| GithubError::no_answer(&request, error.as_ref()))?
            .to_bytes()
            .to_vec();
        let head = Response::from_parts(parts, ());
        if let Some(until) = limited(&head, &body, (self.clock)()) {
            return Ok(Said::Limited(until));
        }
        let (status, has_next) = (head.status(), has_next(head.headers()));
        Ok(Said::Answer(Answer { request, status, has_next, body, with_token: self.with_token }))
    }
}

impl Answer {
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, GithubError> {
        serde_json::from_slice(&self.body).map_err(|error| self.unreadable(&error.to_string()))
    }

    pub(crate) fn unreadable(&self, problem: &str) -> GithubError {
        GithubError::Unreadable { request: self.request.clone(), problem: escaped(problem) }
    }

    pub(crate) fn refused(self) -> GithubError {
        GithubError::Refused {
            message: message(&self.body),
            request: self.request,
            status: self.status,
            with_token: self.with_token,
        }
    }
}

/// Until when GitHub wants no request, if that is what it says: by `retry-after` in seconds from now, by the time at
/// which the hour's requests are counted anew, or not at all.
fn limited(head: &Response<()>, body: &[u8], now: Timestamp) -> Option<Timestamp> {
    if !matches!(head.status(), StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) {
        return None;
    }
    let number = |name: &str| head.headers().get(name)?.to_str().ok()?.parse::<u64>().ok();
    if let Some(seconds) = number(RETRY_AFTER.as_str()) {
        return Some(now.after(Duration::from_secs(seconds)));
    }
    if number("x-ratelimit-remaining") == Some(0) {
        let reset = number("x-ratelimit-reset").map(|seconds| Timestamp(seconds.saturating_mul(1000)));
        return Some(reset.unwrap_or_else(|| now.after(UNTOLD_WAIT)));
    }
    let is_limit = head.status() == StatusCode::TOO_MANY_REQUESTS || message(body).contains("rate limit");
    is_limit.then(|| now.after(UNTOLD_WAIT))
}

fn has_next(headers: &HeaderMap) -> bool {
    let links = headers.get(LINK).and_then(|links| links.to_str().ok()).unwrap_or_default();
    links.split(',').any(|link| link.split(';').skip(1).any(|part| part.trim() == "rel=\"next\""))
}

fn message(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Words {
        message: String,
    }
    serde_json::from_slice::<Words>(body).map(|words| escaped(&words.message)).unwrap_or_default()
}
