//! GitHub, and the mirrors of it.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::adapters::GithubTimeouts;
use super::bounded::{DAY, HOUR, MINUTE, SECOND, Wait};
use super::check::{Problems, is_http};
use super::secret::Secret;
use super::sections::Config;

/// GitHub, for apps with `source.github`. Only `mirror` asks it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct GithubSection {
    /// The root of the API; `https://<host>/api/v3/` of an Enterprise server.
    pub(crate) url: String,
    /// Reads contents, checks and commit statuses. Without it, public repositories, some sixty requests an hour.
    pub(crate) token: Secret,
    /// Holds `token`.
    pub(crate) token_file: Option<PathBuf>,
    /// What repositories are cloned from, by Gitea.
    pub(crate) clone_url: String,
    /// What new mirrors of private repositories are cloned with. Gitea keeps it with each of them.
    pub(crate) clone_token: Secret,
    /// Holds `clone_token`.
    pub(crate) clone_token_file: Option<PathBuf>,
    /// Certificates in PEM to trust instead of the system's.
    pub(crate) ca_file: Option<PathBuf>,
    /// The proxy to the API, like `http://proxy:3128/`, and to `clone_url` where there is a relay.
    pub(crate) proxy: Option<String>,
    /// Where `mirror sync` and `mirror ensure` listen while they run, like `0.0.0.0:3128`, as the proxy by which Gitea
    /// reaches the host of `clone_url` and no other. Without it Gitea needs a way of its own.
    pub(crate) relay: Option<String>,
    /// How long a sync waits for a mirror to be where GitHub is.
    pub(crate) patience: Wait<SECOND, HOUR>,
    /// How long `mirror ensure` stays for a first clone, and how long what Gitea still fetches through the relay at the end is
    /// waited for. At least `[git.timeout] MIGRATE` of Gitea: what is older is removed, and begun anew.
    pub(crate) first_clone: Wait<SECOND, DAY>,
    /// How old what is known of GitHub may become before `why` and `mirror status` complain.
    pub(crate) fresh_for: Wait<MINUTE, { 30 * DAY }>,
    /// How long requests may take.
    pub(crate) timeouts: GithubTimeouts,
}

impl Default for GithubSection {
    fn default() -> Self {
        Self {
            url: "https://api.github.com/".to_owned(),
            token: Secret::default(),
            token_file: None,
            clone_url: "https://github.com/".to_owned(),
            clone_token: Secret::default(),
            clone_token_file: None,
            ca_file: None,
            proxy: None,
            relay: None,
            patience: fabrique_operator::mirror::PATIENCE.into(),
            first_clone: fabrique_operator::mirror::FIRST_CLONE.into(),
            fresh_for: fabrique_operator::mirror::FRESH_FOR.into(),
            timeouts: GithubTimeouts::default(),
        }
    }
}

pub(super) fn check(config: &Config, problems: &mut Problems) {
    let github = &config.github;
    let what = "not an http(s) URL without credentials";
    problems.need(is_http(&github.url), "github.url", what, "write https://api.github.com/");
    problems.need(is_http(&github.clone_url), "github.clone_url", what, "write https://github.com/");
    let proxy = github.proxy.as_deref().is_none_or(is_http);
    problems.need(proxy, "github.proxy", what, "write http://proxy:3128/");
    let Some(relay) = github.relay.as_deref() else { return };
    let listens = relay.parse::<SocketAddr>().is_ok();
    problems.need(listens, "github.relay", "not an address with a port", "write 0.0.0.0:3128");
    let plain = github.proxy.as_deref().is_none_or(|proxy| !proxy.starts_with("https://"));
    let what = "there is a relay, which speaks to a proxy without TLS";
    problems.need(plain, "github.proxy", what, "write http://proxy:3128/, or leave github.relay out");
    // Gitea gives its git a proxy for https alone.
    let secure = github.clone_url.starts_with("https://");
    let what = "there is a relay, and Gitea uses proxies for https only";
    problems.need(secure, "github.clone_url", what, "write https://, or leave github.relay out");
}
