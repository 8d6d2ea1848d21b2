//! The forge.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::http;
use crate::install::{ADMIN, ADMIN_PASSWORD, Cache, Product, gitea_config};
use crate::peer::{Peer, Ready};
use crate::site::Site;
use crate::spawn::Launch;

/// How Gitea passes a push on to its webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Queues {
    /// `push_update` and `webhook_sender` are in-memory channels: a delivery arrives about 0.2 s after the push.
    #[default]
    Channel,
    /// Gitea's own default, which polls: a delivery takes about 3 s.
    Default,
}

/// What a test may ask of the forge beyond the usual.
#[derive(Debug, Clone, Default)]
pub struct GiteaOptions {
    /// The two queues between a push and its webhook.
    pub queues: Queues,
    /// Lines appended to `app.ini`. A section may be opened again to change its keys.
    pub extra_ini: String,
}

/// The forge of a bed, with an administrator and nothing else in it.
#[derive(Debug)]
pub struct Gitea {
    peer: Peer,
    site: Site,
    admin_token: String,
}

/// Three processes of Gitea run for each push, as hooks, and each makes 16 MiB of tables before it does anything. That
/// none of them collects garbage over it is worth a sixth of their time.
fn environment(folder: &Path) -> Vec<(String, String)> {
    let home = folder.to_string_lossy();
    [("HOME", home.as_ref()), ("GOGC", "off"), ("GOMEMLIMIT", "384MiB")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

impl Gitea {
    pub(crate) async fn start(
        cache: &Cache,
        folder: &Path,
        site: Site,
        options: &GiteaOptions,
    ) -> Result<Self> {
        let template = cache.folder(Product::GiteaData);
        let data = folder.join("data");
        fs::create_dir_all(&data)?;
        fs::copy(template.join("gitea.db"), data.join("gitea.db")).context("copying Gitea's database")?;
        let admin_token = fs::read_to_string(template.join("admin.token"))?.trim().to_owned();
        let config = folder.join("app.ini");
        fs::write(&config, gitea_config(cache, folder, &site, options)?)?;
        let launch = Launch {
            program: cache.folder(Product::Gitea).join("gitea"),
            args: ["web", "--config", &config.to_string_lossy()].map(str::to_owned).into(),
            env: environment(folder),
            folder: folder.to_owned(),
            user: None,
            entry: site.entry(),
        };
        let ready = Ready::Http(format!("http://{}/api/healthz", site.socket()));
        let peer = Peer::start("gitea", launch, ready, folder.join("gitea.log")).await?;
        Ok(Self { peer, site, admin_token })
    }

    /// One that runs already.
    pub(crate) fn attached(peer: Peer, site: Site, admin_token: String) -> Self {
        Self { peer, site, admin_token }
    }

    /// The process.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end; in a cluster the address that all of it reaches.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}", self.site.socket())
    }

    /// The administrator's token, with every scope.
    #[must_use]
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// The administrator's name.
    #[must_use]
    pub fn admin_user(&self) -> &'static str {
        ADMIN
    }

    /// The administrator's password.
    #[must_use]
    pub fn admin_password(&self) -> &'static str {
        ADMIN_PASSWORD
    }

    /// `http://127.0.0.1:PORT/org/name.git`, without credentials.
    #[must_use]
    pub fn clone_url(&self, org: &str, name: &str) -> String {
        format!("{}/{org}/{name}.git", self.base_url())
    }

    /// The clone URL with the administrator's token in it, for the test's own git commands only.
    #[must_use]
    pub fn clone_url_with_token(&self, org: &str, name: &str) -> String {
        self.clone_url_as(&self.admin_token, org, name)
    }

    /// The clone URL with any token in it, for the test's own git commands only.
    #[must_use]
    pub fn clone_url_as(&self, token: &str, org: &str, name: &str) -> String {
        format!("http://{ADMIN}:{token}@{}/{org}/{name}.git", self.site.socket())
    }

    /// Calls the API as the administrator: `path` starts after `/api/v1`, like `/repos/atlas/citation`.
    ///
    /// # Errors
    /// When Gitea does not answer, or answers anything but 2xx; the answer's body is in the message.
    pub async fn api(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value> {
        let (status, answer) = self.api_as(&self.admin_token, method, path, body).await?;
        if !status.is_success() {
            bail!("Gitea answered {status} to {method} {path}: {answer}");
        }
        Ok(answer)
    }

    /// Calls the API with a token and returns whatever it answers; a body that is not JSON comes as a string.
    ///
    /// # Errors
    /// When Gitea does not answer.
    pub async fn api_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Value)> {
        let request = self.request(method, path, body)?.header("Authorization", format!("token {token}"));
        answer(request).await
    }

    /// Makes an organisation, visible to all.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn create_org(&self, org: &str) -> Result<()> {
        self.api("POST", "/orgs", Some(json!({ "username": org, "visibility": "public" }))).await?;
        Ok(())
    }

    /// Makes an organisation's repository with one commit (a README) on `main`.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn create_repo(&self, org: &str, name: &str, private: bool) -> Result<()> {
        let body = json!({
            "name": name, "private": private, "auto_init": true, "default_branch": "main", "readme": "Default",
        });
        self.api("POST", &format!("/orgs/{org}/repos"), Some(body)).await?;
        Ok(())
    }

    /// Makes a user without rights. The password is of no use: take a token.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn create_user(&self, user: &str) -> Result<()> {
        let body = json!({
            "username": user, "email": format!("{user}@example.org"),
            "password": crate::template::secret(), "must_change_password": false,
        });
        self.api("POST", "/admin/users", Some(body)).await?;
        Ok(())
    }

    /// Gives a user a right on a repository: `read`, `write` or `admin`.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn add_collaborator(&self, org: &str, name: &str, user: &str, right: &str) -> Result<()> {
        let path = format!("/repos/{org}/{name}/collaborators/{user}");
        self.api("PUT", &path, Some(json!({ "permission": right }))).await?;
        Ok(())
    }

    /// A new token for a user, with scopes like `read:repository` or `write:repository`.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn create_token(&self, user: &str, scopes: &[&str]) -> Result<String> {
        let body = json!({ "name": crate::template::secret(), "scopes": scopes });
        let path = format!("/users/{user}/tokens");
        let request = self.request("POST", &path, Some(body))?.basic_auth(ADMIN, Some(ADMIN_PASSWORD));
        let (status, answer) = answer(request).await?;
        match answer["sha1"].as_str() {
            Some(token) => Ok(token.to_owned()),
            None => bail!("Gitea answered {status} to POST {path}: {answer}"),
        }
    }

    /// What Gitea tells of a user's tokens: names and scopes, and no value.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn tokens(&self, user: &str) -> Result<Vec<Value>> {
        let path = format!("/users/{user}/tokens");
        let request = self.request("GET", &path, None)?.basic_auth(ADMIN, Some(ADMIN_PASSWORD));
        let (status, answer) = answer(request).await?;
        match answer {
            Value::Array(tokens) => Ok(tokens),
            other => bail!("Gitea answered {status} to GET {path}: {other}"),
        }
    }

    /// Makes an active JSON webhook for pushes, and returns its id.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn create_webhook(&self, org: &str, name: &str, url: &str, secret: &str) -> Result<i64> {
        let body = json!({
            "type": "gitea", "active": true, "events": ["push"],
            "config": { "url": url, "content_type": "json", "secret": secret },
        });
        let answer = self.api("POST", &format!("/repos/{org}/{name}/hooks"), Some(body)).await?;
        answer["id"].as_i64().with_context(|| format!("no id in {answer}"))
    }

    /// The head of a branch as Gitea shows it, or `None` when there is no such branch.
    ///
    /// # Errors
    /// When Gitea answers anything but 200 and 404.
    pub async fn head(&self, org: &str, name: &str, branch: &str) -> Result<Option<String>> {
        let path = format!("/repos/{org}/{name}/branches/{branch}");
        let (status, answer) = self.api_as(&self.admin_token, "GET", &path, None).await?;
        match (status, answer["commit"]["id"].as_str()) {
            (StatusCode::OK, Some(revision)) => Ok(Some(revision.to_owned())),
            (StatusCode::NOT_FOUND, _) => Ok(None),
            _ => bail!("Gitea answered {status} to GET {path}: {answer}"),
        }
    }

    /// Where it keeps everything, whoever started it.
    pub(crate) fn folder(&self) -> &Path {
        self.peer.log_path().parent().unwrap_or(Path::new("/"))
    }

    fn request(&self, method: &str, path: &str, body: Option<Value>) -> Result<reqwest::RequestBuilder> {
        let method = Method::from_bytes(method.as_bytes())?;
        let url = format!("{}/api/v1{path}", self.base_url());
        let request = http::client()?.request(method, url);
        Ok(match body {
            Some(body) => request.json(&body),
            None => request,
        })
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Result<(StatusCode, Value)> {
    let answer = request.send().await.context("asking Gitea")?;
    let status = answer.status();
    let text = answer.text().await?;
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
}
