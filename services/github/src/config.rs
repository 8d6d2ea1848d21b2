//! What the adapter is told at the start.

use std::time::Duration;

use secrecy::SecretString;
use url::Url;

/// How GitHub is reached.
#[derive(Debug, Clone)]
pub struct GithubConfig {
    /// The root of the API: `https://api.github.com/`, or `https://<host>/api/v3/` of an Enterprise server.
    pub base_url: Url,
    /// A token that may read checks, statuses and contents. Without one, public repositories can be read, some sixty
    /// requests an hour.
    pub token: Option<SecretString>,
    /// Certificates in PEM to trust instead of the system's.
    pub authority: Option<Vec<u8>>,
    /// The proxy that requests go through, where there is no other way out.
    pub proxy: Option<Url>,
    /// How long requests may take.
    pub timeouts: Timeouts,
}

impl GithubConfig {
    /// Without a token, with the default timeouts.
    #[must_use]
    pub fn new(base_url: Url) -> Self {
        Self { base_url, token: None, authority: None, proxy: None, timeouts: Timeouts::default() }
    }
}

/// How long requests may take.
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// Until there is a connection, TLS included.
    pub connect: Duration,
    /// One request, from its beginning to the end of its answer.
    pub request: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), request: Duration::from_secs(20) }
    }
}
