//! Where a repository is on the forge, and with which credentials.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabrique_core::id::RepoName;
use reqwest::header::HeaderValue;
use secrecy::{ExposeSecret, SecretString};
use url::Url;

/// A repository's URL and the header that opens it.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    url: String,
    /// The forge's base URL: git sends the header to nothing outside it.
    scope: String,
    /// The header's value.
    authorization: Option<SecretString>,
}

impl Remote {
    /// The repository below the base URL. Gitea takes a token as the password of any user.
    pub(crate) fn new(base: &Url, repo: &RepoName, token: Option<&SecretString>) -> Self {
        let scope = format!("{}/", base.as_str().trim_end_matches('/'));
        let authorization = token.map(|token| {
            let credentials = STANDARD.encode(format!("fabrique:{}", token.expose_secret()));
            SecretString::from(format!("Basic {credentials}"))
        });
        Self { url: format!("{scope}{}/{}.git", repo.org(), repo.name()), scope, authorization }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The setting that makes git send the header, if there is one.
    pub(crate) fn setting(&self) -> Option<(String, String)> {
        let value = self.authorization.as_ref()?.expose_secret();
        Some((format!("http.{}.extraHeader", self.scope), format!("Authorization: {value}")))
    }

    /// The header's value for a request of our own, marked so that nobody shows it.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::try_from(self.authorization.as_ref()?.expose_secret()).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_scoped_to_the_forge_and_never_shown() {
        let base = Url::parse("https://gitea.example.org/git").unwrap();
        let repo = RepoName::parse("atlas/citation").unwrap();
        let remote = Remote::new(&base, &repo, Some(&SecretString::from("s3cret")));
        assert_eq!(remote.url(), "https://gitea.example.org/git/atlas/citation.git");
        let (key, value) = remote.setting().unwrap();
        assert_eq!(key, "http.https://gitea.example.org/git/.extraHeader");
        assert_eq!(value, format!("Authorization: Basic {}", STANDARD.encode("fabrique:s3cret")));
        assert_eq!(remote.authorization().unwrap(), value.strip_prefix("Authorization: ").unwrap());
        let shown = format!("{remote:?} {:?}", remote.authorization());
        assert!(!shown.contains("s3cret") && !shown.contains(&STANDARD.encode("fabrique:s3cret")), "{shown}");
    }

    #[test]
    fn without_a_token_nothing_is_sent() {
        let base = Url::parse("http://127.0.0.1:3000").unwrap();
        let remote = Remote::new(&base, &RepoName::parse("a/b").unwrap(), None);
        assert_eq!((remote.url(), remote.setting()), ("http://127.0.0.1:3000/a/b.git", None));
        assert_eq!(remote.authorization(), None);
    }
}
