//! One request to Gitea: its token, its bounds, its answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fabrique_core::id::RepoName;
use reqwest::Certificate;
use reqwest::header::{AUTHORIZATION, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use crate::config::{GiteaConfig, Purpose};
use crate::error::GiteaError;
use crate::text::escaped;

/// Far above any answer used here; the largest hold one commit or fifty webhooks.
const MAX_ANSWER: usize = 4 << 20;
const MAX_REDIRECTS: usize = 3;
const IDLE_CONNECTION: Duration = Duration::from_secs(30);

/// A Gitea server. Clones share the connection pool.
#[derive(Debug, Clone)]
pub struct Gitea {
    client: reqwest::Client,
    config: Arc<GiteaConfig>,
    /// Answers every question of [`fabrique_ports::forge::ForgeInspection`] with this token, where set.
    inspects: Option<Purpose>,
    /// Whoever sends every request, instead of the tokens by purpose.
    login: Option<Arc<Login>>,
}

/// Who sends requests that carry no token of a purpose.
pub(crate) enum Login {
    /// Somebody with a password.
    Password(String, SecretString),
    /// Whoever a token belongs to.
    Token(SecretString),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

impl Gitea {
    /// Makes the client; nothing is sent yet. A TLS provider for rustls must be installed in the process.
    ///
    /// # Errors
    /// [`GiteaError::Configuration`] when the base URL is not plain http(s), or a token cannot stand in a
    /// header.
    pub fn new(config: GiteaConfig) -> Result<Self, GiteaError> {
        check(&config)?;
        let unusable = |error: reqwest::Error| {
            GiteaError::Configuration(format!("the HTTP client cannot be made: {error}"))
        };
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("fabrique/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(config.timeouts.connect)
            .timeout(config.timeouts.request)
            .pool_idle_timeout(IDLE_CONNECTION)
            .redirect(Policy::none())
            .no_proxy();
        if let Some(pem) = &config.authority {
            builder = builder.tls_certs_only(Certificate::from_pem_bundle(pem).map_err(unusable)?);
        }
        let client = builder.build().map_err(unusable)?;
        Ok(Self { client, config: Arc::new(config), inspects: None, login: None })
    }

    /// The same server, inspected with the token of one purpose: how `doctor` tries each of them.
    #[must_use]
    pub fn inspecting(&self, purpose: Purpose) -> Self {
        Self { inspects: Some(purpose), ..self.clone() }
    }

    /// The same server, with every request by one person.
    pub(crate) fn by(&self, login: Login) -> Self {
        Self { login: Some(Arc::new(login)), ..self.clone() }
    }

    /// The same server, with webhooks that are signed with this secret, and none from before.
    pub(crate) fn signing(&self, secret: SecretString) -> Self {
        let config = GiteaConfig {
            hook_secret: Some(secret),
            former_hook_secret: None,
            ..GiteaConfig::clone(&self.config)
        };
        Self { config: Arc::new(config), ..self.clone() }
    }

    pub(crate) fn config(&self) -> &GiteaConfig {
        &self.config
    }

    /// The purpose of reading this repository.
    pub(crate) fn reading(&self, repo: &RepoName) -> Purpose {
        match &self.config.apps_repo {
            Some(apps) if apps.same_as(repo) => Purpose::Apps,
            Some(_) | None => Purpose::Read,
        }
    }

    /// The purpose of inspecting this repository, or the server.
    pub(crate) fn inspection(&self, repo: Option<&RepoName>) -> Purpose {
        self.inspects.unwrap_or_else(|| repo.map_or(Purpose::Read, |repo| self.reading(repo)))
    }

    pub(crate) async fn get(&self, purpose: Purpose, path: &Path) -> Result<Answer, GiteaError> {
        self.send(purpose, Method::GET, path, None).await
    }

    /// Sends a request with the token of its purpose, and again where a redirect on the same server says.
    ///
    /// Gitea redirects from the old name of a renamed repository with 301, on which a client turns a POST
    /// into a GET that succeeds and does nothing. So redirects are followed here, with the method kept.
    pub(crate) async fn send(
        &self,
        purpose: Purpose,
        method: Method,
        path: &Path,
        body: Option<&Value>,
    ) -> Result<Answer, GiteaError> {
        self.send_within(purpose, method, path, body, self.config.timeouts.request).await
    }

    /// The same, for what Gitea answers only when it is done: within `limit`.
    pub(crate) async fn send_within(
        &self,
        purpose: Purpose,
        method: Method,
        path: &Path,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<Answer, GiteaError> {
        let purpose = if self.login.is_some() { Purpose::Admin } else { purpose };
        let mut url = path.on(&self.config.base_url)?;
        let request = format!("{method} {}", url.path());
        let no_answer = |source: reqwest::Error| GiteaError::NoAnswer {
            request: request.clone(),
            source: source.without_url(),
        };
        for _ in 0..=MAX_REDIRECTS {
            let once = self.once(purpose, &method, url.clone(), body)?.timeout(limit);
            let response = once.send().await.map_err(no_answer)?;
            let status = response.status();
            let object =
                response.headers().get(OBJECT).and_then(|kind| kind.to_str().ok()).map(str::to_owned);
            if status.is_redirection() {
                match self.redirected(&url, &response) {
                    Some(next) => url = next,
                    None => break,
                }
                continue;
            }
            let Some(body) = read(response).await.map_err(no_answer)? else {
                let problem = format!("it is larger than {MAX_ANSWER} bytes");
                return Err(GiteaError::Unreadable { request, problem });
            };
            let with_token = self.login.is_some() || self.config.tokens.of(purpose).is_some();
            return Ok(Answer { request, status, body, purpose, with_token, object });
        }
        Err(GiteaError::RedirectedAway { request })
    }

    fn once(
        &self,
        purpose: Purpose,
        method: &Method,
        url: Url,
        body: Option<&Value>,
    ) -> Result<RequestBuilder, GiteaError> {
        let mut builder = self.client.request(method.clone(), url);
        match self.login.as_deref() {
            Some(Login::Password(name, password)) => {
                builder = builder.basic_auth(name, Some(password.expose_secret()));
            }
            Some(Login::Token(token)) => {
                builder = builder.header(AUTHORIZATION, authorization(token.expose_secret(), purpose)?);
            }
            None => {}
        }
        if let Some(token) = self.config.tokens.of(purpose) {
            builder = builder.header(AUTHORIZATION, authorization(token.expose_secret(), purpose)?);
        }
        Ok(match body {
            Some(body) => builder.json(body),
            None => builder,
        })
    }

    /// Where a redirect leads, when it stays on the configured server.
    fn redirected(&self, from: &Url, response: &Response) -> Option<Url> {
        let location = response.headers().get(LOCATION)?.to_str().ok()?;
        from.join(location).ok().filter(|next| next.origin() == self.config.base_url.origin())
    }

    /// Whether the repository is there for the token of this purpose.
    pub(crate) async fn sees(&self, purpose: Purpose, repo: &RepoName) -> Result<bool, GiteaError> {
        let answer = self.get(purpose, &Path::repo(repo)).await?;
        match answer.status {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(answer.refused()),
        }
    }
}

/// A path below `/api/v1`, percent-encoded segment by segment.
pub(crate) struct Path {
    segments: Vec<String>,
    query: Vec<(&'static str, String)>,
}

impl Path {
    pub(crate) fn new<'a>(segments: impl IntoIterator<Item = &'a str>) -> Self {
        Self { segments: segments.into_iter().map(str::to_owned).collect(), query: Vec::new() }
    }

    pub(crate) fn repo(repo: &RepoName) -> Self {
        Self::new(["repos", repo.org(), repo.name()])
    }

    pub(crate) fn then<'a>(mut self, segments: impl IntoIterator<Item = &'a str>) -> Self {
        self.segments.extend(segments.into_iter().map(str::to_owned));
        self
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    fn on(&self, base: &Url) -> Result<Url, GiteaError> {
        let mut url = base.clone();
        url.path_segments_mut()
            .map_err(|()| GiteaError::Configuration(format!("{base} is not a web address")))?
            .pop_if_empty()
            .extend(["api", "v1"])
            .extend(&self.segments);
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        Ok(url)
    }
}

/// What Gitea answered.
pub(crate) struct Answer {
    request: String,
    pub(crate) status: StatusCode,
    body: Vec<u8>,
    purpose: Purpose,
    with_token: bool,
    /// What Gitea says of the file that it sends.
    object: Option<String>,
}

/// The header in which it says so: `file` or `symlink`.
const OBJECT: &str = "x-gitea-object-type";

impl Answer {
    /// Whether it is about a symbolic link.
    pub(crate) fn is_link(&self) -> bool {
        self.object.as_deref() == Some("symlink")
    }

    /// The body as it came.
    pub(crate) fn content(self) -> Vec<u8> {
        self.body
    }

    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, GiteaError> {
        serde_json::from_slice(&self.body).map_err(|error| self.unreadable(&error))
    }

    pub(crate) fn unreadable(&self, problem: &impl ToString) -> GiteaError {
        let problem = escaped(&problem.to_string(), 200);
        GiteaError::Unreadable { request: self.request.clone(), problem }
    }

    pub(crate) fn refused(self) -> GiteaError {
        GiteaError::Refused {
            message: self.said(),
            request: self.request,
            status: self.status,
            purpose: self.purpose,
            with_token: self.with_token,
        }
    }

    pub(crate) fn overtaken(self) -> GiteaError {
        GiteaError::Overtaken { message: self.said(), request: self.request, status: self.status }
    }

    /// Gitea's own words about a failure.
    fn said(&self) -> String {
        #[derive(serde::Deserialize)]
        struct Said {
            message: String,
        }
        let said: Option<Said> = serde_json::from_slice(&self.body).ok();
        said.map(|said| escaped(&said.message, 200)).unwrap_or_default()
    }
}

fn check(config: &GiteaConfig) -> Result<(), GiteaError> {
    let url = &config.base_url;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(GiteaError::Configuration("the base URL must start with http:// or https://".to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(GiteaError::Configuration(
            "the base URL holds credentials: configure tokens instead".to_owned(),
        ));
    }
    for purpose in Purpose::ALL {
        if let Some(token) = config.tokens.of(purpose) {
            authorization(token.expose_secret(), purpose)?;
        }
    }
    Ok(())
}

fn authorization(token: &str, purpose: Purpose) -> Result<HeaderValue, GiteaError> {
    let printable = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let header = HeaderValue::try_from(format!("token {token}"));
    match header {
        Ok(mut header) if printable => {
            header.set_sensitive(true);
            Ok(header)
        }
        Ok(_) | Err(_) => Err(GiteaError::Configuration(format!(
            "the `{purpose}` token is empty or holds blanks or other characters that no token has"
        ))),
    }
}

/// The body, or nothing when it is too large.
async fn read(mut response: Response) -> Result<Option<Vec<u8>>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gitea(config: GiteaConfig) -> Result<Gitea, GiteaError> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Gitea::new(config)
    }

    #[test]
    fn a_base_url_with_credentials_or_without_a_host_is_refused() {
        for url in ["http://user@gitea/", "http://u:p@gitea/", "file:///etc", "mailto:a@b"] {
            let error = gitea(GiteaConfig::new(Url::parse(url).unwrap())).unwrap_err();
            assert!(matches!(error, GiteaError::Configuration(_)), "{url}: {error}");
            assert!(!error.to_string().contains("u:p"));
        }
    }

    #[test]
    fn a_token_with_a_newline_is_refused_by_the_name_of_its_purpose_and_not_shown() {
        let mut config = GiteaConfig::new(Url::parse("http://gitea/").unwrap());
        config.tokens.status = Some("abc\ndef".into());
        let error = gitea(config).unwrap_err().to_string();
        assert!(error.contains("`status` token") && !error.contains("abc"), "{error}");
    }

    #[test]
    fn paths_are_encoded_and_a_base_path_is_kept() {
        let base = Url::parse("http://host/git/").unwrap();
        let path = Path::new(["repos", "a", "b", "branches", "x#y", "100%?"]).query("page", "2");
        assert_eq!(
            path.on(&base).unwrap().as_str(),
            "http://host/git/api/v1/repos/a/b/branches/x%23y/100%25%3F?page=2"
        );
    }

    #[test]
    fn cluster_apps_is_read_with_its_own_token_whatever_the_case_of_its_name() {
        let mut config = GiteaConfig::new(Url::parse("http://gitea/").unwrap());
        config.apps_repo = Some(RepoName::parse("cluster/apps").unwrap());
        let gitea = gitea(config).unwrap();
        assert_eq!(gitea.reading(&RepoName::parse("Cluster/Apps").unwrap()), Purpose::Apps);
        assert_eq!(gitea.reading(&RepoName::parse("atlas/apps").unwrap()), Purpose::Read);
    }
}
