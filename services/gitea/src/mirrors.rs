//! Pull mirrors: what is there, what should be, and asking for a fetch.
//!
//! Gitea clones while it answers, and goes on when the answer is not waited for any longer. What it leaves of a clone that was
//! cut off looks like one that goes on, but for its age. Its own interval is switched off, so that it fetches when it is told
//! and at no other time.

use std::time::Duration;

use async_trait::async_trait;
use fabrique_core::id::RepoName;
use fabrique_ports::PortResult;
use fabrique_ports::upstream::{
    AccountRight, MirrorOutcome, Mirrors, RightOutcome, SyncRequest, WantedMirror,
};
use jiff::Timestamp;
use reqwest::{Method, StatusCode};
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde_json::json;

use crate::client::{Gitea, Path};
use crate::config::Purpose;
use crate::error::GiteaError;
use crate::text::escaped;

/// Fetches at no interval.
const NEVER: &str = "0s";
/// GitHub and Gitea take a token as the password of any user.
const TOKEN_USER: &str = "x-access-token";

/// Whoever uses a mirror, beside who makes it: what each needs there, and not more. Gitea demands the right to write for a
/// commit status.
const RIGHTS: [(Purpose, &str); 2] = [(Purpose::Read, "read"), (Purpose::Status, "write")];

/// A repository as Gitea tells it.
#[derive(Deserialize)]
struct Found {
    #[serde(default)]
    mirror: bool,
    #[serde(default)]
    empty: bool,
    #[serde(default)]
    mirror_interval: String,
    #[serde(default)]
    original_url: String,
    /// When it was made, as text.
    #[serde(default)]
    created_at: String,
}

#[async_trait]
impl Mirrors for Gitea {
    async fn ensure_mirror(&self, wanted: &WantedMirror, dry_run: bool) -> PortResult<MirrorOutcome> {
        Ok(self.ensured_mirror(wanted, dry_run).await?)
    }

    async fn ensure_rights(&self, repo: &RepoName, dry_run: bool) -> PortResult<Vec<AccountRight>> {
        let mut rights = Vec::with_capacity(RIGHTS.len());
        for (purpose, needs) in RIGHTS {
            rights.push(self.ensured_right(repo, purpose, needs, dry_run).await?);
        }
        Ok(rights)
    }

    async fn request_sync(&self, repo: &RepoName) -> PortResult<SyncRequest> {
        let path = Path::repo(repo).then(["mirror-sync"]);
        let answer = self.send(Purpose::Hooks, Method::POST, &path, None).await?;
        match answer.status {
            StatusCode::OK => Ok(SyncRequest::Queued),
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => Ok(SyncRequest::NoMirror),
            _ => Err(answer.refused().into()),
        }
    }
}

impl Gitea {
    async fn ensured_mirror(
        &self,
        wanted: &WantedMirror,
        dry_run: bool,
    ) -> Result<MirrorOutcome, GiteaError> {
        let Some(found) = self.repository(&wanted.repo).await? else {
            if dry_run {
                return Ok(MirrorOutcome::Created);
            }
            return self.create_mirror(wanted).await;
        };
        if let Some(why) = found.refusal(wanted) {
            return Ok(MirrorOutcome::Refused(why));
        }
        if found.is_half_made() {
            if dry_run || !found.is_older_than(wanted.limit, Timestamp::now()) {
                return Ok(MirrorOutcome::Cloning);
            }
            self.take_back(&wanted.repo).await?;
            return self.create_mirror(wanted).await;
        }
        if found.is_quiet() {
            return Ok(MirrorOutcome::Present);
        }
        if !dry_run {
            let body = json!({ "mirror_interval": NEVER });
            let path = Path::repo(&wanted.repo);
            let answer = self.send(Purpose::Hooks, Method::PATCH, &path, Some(&body)).await?;
            if answer.status != StatusCode::OK {
                return Err(answer.refused());
            }
        }
        Ok(MirrorOutcome::Quieted)
    }

    async fn repository(&self, repo: &RepoName) -> Result<Option<Found>, GiteaError> {
        let answer = self.get(Purpose::Hooks, &Path::repo(repo)).await?;
        match answer.status {
            StatusCode::OK => Ok(Some(answer.json()?)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(answer.refused()),
        }
    }

    /// What a token may is asked with the token itself: the right may come by a team as well.
    async fn ensured_right(
        &self,
        repo: &RepoName,
        purpose: Purpose,
        needs: &'static str,
        dry_run: bool,
    ) -> Result<AccountRight, GiteaError> {
        let of = |account, outcome| AccountRight { purpose: purpose.as_str(), needs, account, outcome };
        if self.config().tokens.of(purpose).is_none() {
            return Ok(of(None, RightOutcome::Unseen));
        }
        let account = self.account(purpose).await?;
        match self.may(repo, purpose).await? {
            Some(true) => return Ok(of(account, RightOutcome::Present)),
            Some(false) => {}
            // Of its account nothing is known, and a right that is given over a greater one would take that away.
            None => {
                let what =
                    format!("the `{purpose}` token may not look at {repo}: it needs {}", purpose.needs());
                return Ok(of(account, RightOutcome::Missing(what)));
            }
        }
        let Some(login) = account else {
            let what = format!(
                "the `{purpose}` token may not tell whose it is: give its account `{needs}` in {repo}, or the token the \
                 scope read:user"
            );
            return Ok(of(None, RightOutcome::Missing(what)));
        };
        if dry_run {
            return Ok(of(Some(login), RightOutcome::Granted));
        }
        let path = Path::repo(repo).then(["collaborators", &login]);
        let body = json!({ "permission": needs });
        let answer = self.send(Purpose::Hooks, Method::PUT, &path, Some(&body)).await?;
        let outcome = match answer.status {
            StatusCode::NO_CONTENT if self.may(repo, purpose).await? == Some(true) => RightOutcome::Granted,
            StatusCode::NO_CONTENT => RightOutcome::Missing(format!(
                "{login} has `{needs}` in {repo} now, and its token may still not: give the token {}",
                purpose.needs()
            )),
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY => {
                let login = escaped(&login, 80);
                let why = escaped(&answer.refused().to_string(), 300);
                RightOutcome::Missing(format!("give {login} `{needs}` in {repo}: {why}"))
            }
            _ => return Err(answer.refused()),
        };
        Ok(of(Some(login), outcome))
    }

    /// Whose token it is; nothing where the token may not ask.
    async fn account(&self, purpose: Purpose) -> Result<Option<String>, GiteaError> {
        #[derive(Deserialize)]
        struct User {
            login: String,
        }
        let answer = self.get(purpose, &Path::new(["user"])).await?;
        match answer.status {
            StatusCode::OK => Ok(Some(answer.json::<User>()?.login)),
            StatusCode::FORBIDDEN => Ok(None),
            _ => Err(answer.refused()),
        }
    }

    /// Whether a token's account may do in the repository what the token is for; nothing where the token itself may not
    /// ask.
    async fn may(&self, repo: &RepoName, purpose: Purpose) -> Result<Option<bool>, GiteaError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct May {
            push: bool,
            pull: bool,
        }
        #[derive(Deserialize)]
        struct Seen {
            #[serde(default)]
            permissions: May,
        }
        let answer = self.get(purpose, &Path::repo(repo)).await?;
        let may = match answer.status {
            StatusCode::OK => answer.json::<Seen>()?.permissions,
            StatusCode::NOT_FOUND => May::default(),
            StatusCode::FORBIDDEN => return Ok(None),
            _ => return Err(answer.refused()),
        };
        Ok(Some(match purpose {
            Purpose::Read => may.pull,
            Purpose::Status | Purpose::Hooks | Purpose::Apps | Purpose::Admin => may.push,
        }))
    }

    async fn create_mirror(&self, wanted: &WantedMirror) -> Result<MirrorOutcome, GiteaError> {
        let mut body = json!({
            "clone_addr": wanted.from,
            "repo_owner": wanted.repo.org(),
            "repo_name": wanted.repo.name(),
            "service": "git",
            "mirror": true,
            "mirror_interval": NEVER,
            "private": true,
        });
        if let Some(token) = &self.config().clone_token {
            body["auth_username"] = TOKEN_USER.into();
            body["auth_password"] = token.expose_secret().into();
        }
        let path = Path::new(["repos", "migrate"]);
        let asked = self.send_within(Purpose::Hooks, Method::POST, &path, Some(&body), wanted.limit).await;
        let answer = match asked {
            Ok(answer) if !goes_on(answer.status) => answer,
            Ok(answer) => return self.under_way(wanted, answer.refused()).await,
            Err(error) => return self.under_way(wanted, error).await,
        };
        if answer.status != StatusCode::CREATED {
            // Why it could not be made says more than why that stays, of which the next look tells.
            drop(self.take_back(&wanted.repo).await);
        }
        match answer.status {
            StatusCode::CREATED => {}
            StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY => {
                let why = escaped(&answer.refused().to_string(), 300);
                let org = wanted.repo.org();
                return Ok(MirrorOutcome::Refused(format!(
                    "{why}; is there an organisation {org}, and may Gitea reach {} ([migrations] in its \
                     configuration, and its way out)?",
                    wanted.from
                )));
            }
            _ => return Err(answer.refused()),
        }
        // A server with mirrors switched off makes an ordinary repository instead (go-gitea/gitea#36223).
        let made = self.repository(&wanted.repo).await?;
        Ok(match made.and_then(|made| made.refusal(wanted)) {
            None => MirrorOutcome::Created,
            Some(why) => MirrorOutcome::Refused(why),
        })
    }

    /// What is there after nobody said how a clone ended: it may go on. Where nothing is, `why` is told.
    async fn under_way(&self, wanted: &WantedMirror, why: GiteaError) -> Result<MirrorOutcome, GiteaError> {
        match self.repository(&wanted.repo).await {
            Ok(Some(found)) if found.refusal(wanted).is_none() => Ok(MirrorOutcome::Cloning),
            Ok(_) | Err(_) => Err(why),
        }
    }

    /// Removes what a clone that is over has left: Gitea keeps a repository with nothing in it, which would pass for the
    /// mirror.
    async fn take_back(&self, repo: &RepoName) -> Result<(), GiteaError> {
        if !self.repository(repo).await?.is_some_and(|left| left.is_half_made()) {
            return Ok(());
        }
        let answer = self.send(Purpose::Hooks, Method::DELETE, &Path::repo(repo), None).await?;
        match answer.status {
            StatusCode::NO_CONTENT | StatusCode::NOT_FOUND => Ok(()),
            _ => Err(answer.refused()),
        }
    }
}

impl Found {
    /// Whether it is to be a mirror and is none yet: Gitea knows of no interval before the first clone is over.
    fn is_half_made(&self) -> bool {
        self.mirror && self.empty && self.mirror_interval.is_empty()
    }

    /// Whether it was made longer ago than `limit`, as far as that is told.
    fn is_older_than(&self, limit: Duration, now: Timestamp) -> bool {
        let Ok(made) = self.created_at.parse::<Timestamp>() else { return false };
        Duration::try_from(now.duration_since(made)).is_ok_and(|age| age > limit)
    }

    /// Why this is not the wanted mirror.
    fn refusal(&self, wanted: &WantedMirror) -> Option<String> {
        if !self.mirror {
            let what = "is an ordinary repository, not a pull mirror: move it away, and run this again";
            return Some(format!("{} {what}", wanted.repo));
        }
        let from = &self.original_url;
        (!from.is_empty() && !same_place(from, &wanted.from)).then(|| {
            format!(
                "it mirrors {}, not {}: remove it, or correct the registration",
                escaped(from, 200),
                wanted.from
            )
        })
    }

    fn is_quiet(&self) -> bool {
        self.mirror_interval.chars().all(|c| !c.is_ascii_digit() || c == '0')
    }
}

/// Whether an answer leaves open how a clone ended: somebody on the way gave up, or somebody else is making it.
fn goes_on(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::CONFLICT
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn same_place(one: &str, other: &str) -> bool {
    let bare = |url: &str| url.trim_end_matches('/').trim_end_matches(".git").to_ascii_lowercase();
    bare(one) == bare(other)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    fn found(mirror: bool, interval: &str, from: &str) -> Found {
        let (mirror_interval, original_url) = (interval.to_owned(), from.to_owned());
        Found { mirror, empty: false, mirror_interval, original_url, created_at: String::new() }
    }

    fn wanted() -> WantedMirror {
        WantedMirror {
            repo: RepoName::parse("atlas/citation").unwrap(),
            from: "https://github.com/acme/citation.git".to_owned(),
            limit: Duration::from_mins(25),
        }
    }

    fn refusal(found: &Found) -> Option<String> {
        found.refusal(&wanted())
    }

    #[test]
    fn an_ordinary_repository_and_a_mirror_of_something_else_are_refused() {
        assert!(refusal(&found(false, "", "")).unwrap().contains("not a pull mirror"));
        let other = refusal(&found(true, "0s", "https://github.com/acme/other.git")).unwrap();
        assert!(other.starts_with("it mirrors https://github.com/acme/other.git"), "{other}");
        assert_eq!(refusal(&found(true, "0s", "https://github.com/Acme/citation")), None);
        assert_eq!(refusal(&found(true, "0s", "")), None);
    }

    #[test]
    fn what_a_first_clone_left_behind_is_no_mirror_and_an_empty_mirror_is_one() {
        let empty = |interval: &str| Found { empty: true, ..found(true, interval, "") };
        assert!(empty("").is_half_made());
        assert!(!empty("0s").is_half_made(), "there is nothing on GitHub yet");
        assert!(!found(true, "", "").is_half_made());
    }

    #[test]
    fn a_clone_is_given_up_once_it_is_older_than_one_may_be() {
        let now: Timestamp = "2026-11-30T12:30:00Z".parse().unwrap();
        let old = |created_at: &str| {
            let found = Found { created_at: created_at.to_owned(), ..found(true, "", "") };
            found.is_older_than(Duration::from_mins(25), now)
        };
        assert!(old("2026-11-30T12:00:00Z") && old("2026-11-30T13:04:59+01:00"));
        assert!(!old("2026-11-30T12:10:00Z") && !old("2026-11-30T13:05:01+01:00"));
        assert!(!old("2026-11-30T12:31:00Z"), "its clock is ahead");
        assert!(!old(""), "nobody says");
    }

    /// Somebody between here and a Gitea that clones, who answers `status`, and what was asked.
    async fn between(status: u16, message: &'static str) -> (Gitea, Arc<Mutex<Vec<String>>>) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&asked);
        let app = axum::Router::new().fallback(move |method: axum::http::Method| {
            told.lock().unwrap().push(method.to_string());
            let begun = told.lock().unwrap().iter().any(|method| method == "POST");
            let answer = match method.as_str() {
                "POST" => (status, json!({ "message": message })),
                "GET" if begun => (200, json!({ "mirror": true, "empty": true, "mirror_interval": "" })),
                "DELETE" => (500, json!({ "message": "cannot delete" })),
                _ => (404, json!({})),
            };
            async move { (axum::http::StatusCode::from_u16(answer.0).unwrap(), axum::Json(answer.1)) }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (Gitea::new(crate::GiteaConfig::new(url.parse().unwrap())).unwrap(), asked)
    }

    #[tokio::test]
    async fn a_clone_that_may_go_on_is_left_alone_whoever_gave_up_on_the_way() {
        for status in [408, 409, 502, 503, 504] {
            let (gitea, asked) = between(status, "").await;
            let outcome = gitea.ensure_mirror(&wanted(), false).await.unwrap();
            assert_eq!(outcome, MirrorOutcome::Cloning, "{status}");
            assert!(!asked.lock().unwrap().contains(&"DELETE".to_owned()), "{status}: it is deleted");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_taken_back_does_not_hide_why_it_failed() {
        let (gitea, asked) = between(422, "Clone error").await;
        let outcome = gitea.ensure_mirror(&wanted(), false).await.unwrap();
        let MirrorOutcome::Refused(why) = outcome else { panic!("{outcome:?}") };
        assert!(why.contains("Clone error"), "{why}");
        assert!(asked.lock().unwrap().contains(&"DELETE".to_owned()));
    }

    #[test]
    fn a_mirror_is_quiet_at_no_interval() {
        for quiet in ["0s", "0", "", "0h0m0s"] {
            assert!(found(true, quiet, "").is_quiet(), "{quiet}");
        }
        assert!(!found(true, "8h0m0s", "").is_quiet());
    }
}
