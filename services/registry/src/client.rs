//! One request at a time, with whatever the registry asks for before it answers.

use bytes::Bytes;
use fabrique_core::id::ImageRepository;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, WWW_AUTHENTICATE};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, redirect};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use crate::auth::{Challenge, TokenAnswer};
use crate::config::{Access, Credentials, RegistryConfig};
use crate::error::RegistryError;
use crate::media;

/// The size of a manifest that every registry must accept, and the most that is read.
pub(crate) const MANIFEST_LIMIT: usize = 4 << 20;
const TOKEN_LIMIT: usize = 64 << 10;
/// The rights that a token is asked for, as its scope spells them.
const PULL: &str = "pull";
pub(crate) const PUSH: &str = "pull,push";

/// A request to a repository.
#[derive(Debug, Clone)]
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    pub(crate) image: &'a ImageRepository,
    /// A tag or a digest.
    pub(crate) reference: &'a str,
    /// What is stored, under its media type.
    pub(crate) manifest: Option<(Bytes, String)>,
}

impl Ask<'_> {
    fn describe(&self) -> String {
        format!("{} {}:{}", self.method, self.image, self.reference)
    }
}

/// An http client for all registries.
#[derive(Debug)]
pub(crate) struct Registries {
    http: Client,
    config: RegistryConfig,
}

impl Registries {
    pub(crate) fn new(config: RegistryConfig) -> Result<Self, RegistryError> {
        let http = Client::builder()
            .connect_timeout(config.timeouts.connect)
            .timeout(config.timeouts.request)
            .redirect(redirect::Policy::none())
            // As for git and the forge: credentials and digests go straight to the configured address.
            .no_proxy()
            .user_agent(concat!("fabrique/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(RegistryError::Client)?;
        Ok(Self { http, config })
    }

    /// Asks about a manifest. Any status but those of [`sorted`] is the caller's.
    pub(crate) async fn ask(&self, ask: &Ask<'_>) -> Result<Response, RegistryError> {
        let host = ask.image.registry();
        let url = format!(
            "{}/v2/{}/manifests/{}",
            self.base(host),
            ask.image.name(),
            // A digest's colon stands as it is; a tag has no character to escape.
            ask.reference,
        );
        let build = || {
            let request = self.http.request(ask.method.clone(), &url).header(ACCEPT, media::accept());
            match &ask.manifest {
                Some((body, kind)) => request.header(CONTENT_TYPE, kind).body(body.clone()),
                None => request,
            }
        };
        let rights = if ask.method == Method::PUT { PUSH } else { PULL };
        let answer = self.admitted(ask.image, rights, build).await?;
        sorted(host, answer, || ask.describe())
    }

    /// The answer to a request about `image`, which is made again with a token where the registry asks for one.
    pub(crate) async fn admitted(
        &self,
        image: &ImageRepository,
        rights: &str,
        build: impl Fn() -> RequestBuilder,
    ) -> Result<Response, RegistryError> {
        let host = image.registry();
        let access = self.access(host);
        let answer = send(host, known(build(), &access.credentials)).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        let scope = format!("repository:{}:{rights}", image.name());
        match self.token(host, &access, answer.headers(), &scope).await? {
            Some(token) => send(host, build().bearer_auth(token.expose_secret())).await,
            None => Ok(answer),
        }
    }

    pub(crate) fn http(&self) -> &Client {
        &self.http
    }

    /// Asks for the API's root. Whatever a registry in order answers is fine, 401 included.
    pub(crate) async fn ping(&self, host: &str) -> Result<(), RegistryError> {
        let bad = || RegistryError::BadHost(host.chars().take(80).collect());
        let url = Url::parse(&format!("{}/v2/", self.base(host))).map_err(|_| bad())?;
        if !url.username().is_empty() || url.path() != "/v2/" || url.query().is_some() {
            return Err(bad());
        }
        let answer = send(host, known(self.http.get(url), &self.access(host).credentials)).await?;
        match answer.status() {
            StatusCode::OK => Ok(()),
            StatusCode::UNAUTHORIZED if answer.headers().contains_key(WWW_AUTHENTICATE) => Ok(()),
            status => {
                sorted(host, answer, || "its API root".to_owned())?;
                Err(RegistryError::Odd { host: host.to_owned(), what: format!("{status} at /v2/") })
            }
        }
    }

    fn access(&self, host: &str) -> Access {
        self.config.hosts.get(host).cloned().unwrap_or_default()
    }

    pub(crate) fn base(&self, host: &str) -> String {
        let access = self.access(host);
        let scheme = if access.plain_http { "http" } else { "https" };
        format!("{scheme}://{}", access.address.as_deref().unwrap_or(host))
    }

    /// A token for `scope`, if the registry's challenge names a service that gives one.
    async fn token(
        &self,
        host: &str,
        access: &Access,
        headers: &HeaderMap,
        scope: &str,
    ) -> Result<Option<SecretString>, RegistryError> {
        let challenges = headers.get_all(WWW_AUTHENTICATE).iter();
        let challenge = challenges.filter_map(|value| value.to_str().ok()).find_map(Challenge::parse);
        let Some(Challenge::Bearer { realm, service }) = challenge else { return Ok(None) };
        let odd = |what: &str| RegistryError::Odd { host: host.to_owned(), what: what.to_owned() };
        let realm = Url::parse(&realm).map_err(|_| odd("a challenge whose realm is no URL"))?;
        // Credentials for a registry behind TLS must not leave in the clear.
        if realm.scheme() != "https" && !access.plain_http {
            return Err(odd("a challenge whose realm is not https"));
        }
        let mut request = self.http.get(realm).query(&[("scope", scope)]);
        if let Some(service) = service {
            request = request.query(&[("service", service)]);
        }
        let request = match &access.credentials {
            Credentials::Basic { .. } => known(request, &access.credentials),
            Credentials::Anonymous => request,
            // It has been refused already.
            Credentials::Bearer(_) => return Ok(None),
        };
        let answer = sorted(host, send(host, request).await?, || format!("a token for {scope}"))?;
        if answer.status() != StatusCode::OK {
            return Err(odd(&format!("{} instead of a token", answer.status())));
        }
        let body = read(host, answer, TOKEN_LIMIT).await?;
        let answer: TokenAnswer = serde_json::from_slice(&body).map_err(|_| odd("no token as JSON"))?;
        Ok(answer.token())
    }
}

/// A request with the credentials that can be sent unasked.
fn known(request: RequestBuilder, credentials: &Credentials) -> RequestBuilder {
    match credentials {
        Credentials::Anonymous => request,
        Credentials::Basic { user, password } => request.basic_auth(user, Some(password.expose_secret())),
        Credentials::Bearer(token) => request.bearer_auth(token.expose_secret()),
    }
}

async fn send(host: &str, request: RequestBuilder) -> Result<Response, RegistryError> {
    // The URL of a token service may carry more than a log should.
    let unreachable =
        |e: reqwest::Error| RegistryError::Unreachable { host: host.to_owned(), source: e.without_url() };
    request.send().await.map_err(unreachable)
}

/// Takes out the statuses that mean the same whatever was asked.
pub(crate) fn sorted(
    host: &str,
    answer: Response,
    what: impl Fn() -> String,
) -> Result<Response, RegistryError> {
    let (host, status) = (host.to_owned(), answer.status().as_u16());
    match status {
        401 | 403 => Err(RegistryError::Denied { host, status, what: what() }),
        408 | 429 | 500.. => Err(RegistryError::Unwell { host, status, what: what() }),
        _ => Ok(answer),
    }
}

/// The body, at most `limit` bytes of it.
pub(crate) async fn read(host: &str, mut answer: Response, limit: usize) -> Result<Bytes, RegistryError> {
    let mut body = Vec::new();
    loop {
        let chunk = answer.chunk().await;
        let chunk = chunk
            .map_err(|e| RegistryError::Unreachable { host: host.to_owned(), source: e.without_url() })?;
        let Some(chunk) = chunk else { return Ok(body.into()) };
        if body.len() + chunk.len() > limit {
            return Err(RegistryError::Odd {
                host: host.to_owned(),
                what: format!("more than {limit} bytes"),
            });
        }
        body.extend_from_slice(&chunk);
    }
}
