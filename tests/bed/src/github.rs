//! GitHub, as far as it can be had here: a server that answers over HTTP as GitHub's REST API is recorded to do.
//!
//! The real one is on the Internet, and no part of it can be installed. So this is the one peer that is made up: its
//! answers have the fields, status codes, headers and pages of the documented API (version 2022-11-28), filled from
//! commits that a test pushed somewhere and from the checks that it sets.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::git::GitRepo;

/// A GitHub that knows what a test tells it. It stops when it is dropped.
#[derive(Debug)]
pub struct RecordedGithub {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    serving: JoinHandle<()>,
}

impl Drop for RecordedGithub {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A request that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Path and query.
    pub path: String,
    /// Its `Authorization`.
    pub authorization: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    repos: BTreeMap<String, Repo>,
    next: VecDeque<Canned>,
    largest_page: Option<usize>,
    asked: Vec<Asked>,
}

#[derive(Debug, Default)]
struct Repo {
    branches: BTreeMap<String, String>,
    /// The newest first, each with its parents.
    commits: Vec<(String, Vec<String>)>,
    runs: BTreeMap<String, Vec<Value>>,
    statuses: BTreeMap<String, Vec<Value>>,
}

/// A status, headers and a body, whatever is asked.
type Canned = (u16, Vec<(String, String)>, Value);

impl RecordedGithub {
    /// Listens on a free port of loopback.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start() -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST).await
    }

    /// Listens on a free port of another address of this machine.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start_at(address: Ipv4Addr) -> Result<Self> {
        let listener = TcpListener::bind((address, 0)).await?;
        let address = listener.local_addr()?;
        let shared: Arc<Mutex<Shared>> = Arc::default();
        let app = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move { drop(axum::serve(listener, app).await) });
        Ok(Self { address, shared, serving })
    }

    /// The root of the API.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Makes `branch` of `repo` (`owner/name`) be where the clone's `HEAD` is, with all its history.
    ///
    /// # Errors
    /// When git fails.
    pub async fn push(&self, repo: &str, branch: &str, clone: &GitRepo) -> Result<String> {
        let log = clone.git(&["log", "--topo-order", "--format=%H %P", "HEAD"]).await?;
        let commits: Vec<(String, Vec<String>)> = log
            .lines()
            .filter_map(|line| {
                let mut ids = line.split_whitespace().map(str::to_owned);
                Some((ids.next()?, ids.collect()))
            })
            .collect();
        let head = commits.first().map(|(id, _)| id.clone()).unwrap_or_default();
        let mut shared = self.lock();
        let repo = shared.repos.entry(repo.to_owned()).or_default();
        let known: HashSet<String> = commits.iter().map(|(id, _)| id.clone()).collect();
        let old = std::mem::take(&mut repo.commits);
        repo.commits = commits;
        repo.commits.extend(old.into_iter().filter(|(id, _)| !known.contains(id)));
        repo.branches.insert(branch.to_owned(), head.clone());
        Ok(head)
    }

    /// Adds a check run of a commit: `status` is like `completed`, `conclusion` like `success`.
    pub fn check_run(
        &self,
        repo: &str,
        commit: &str,
        (name, status, conclusion): (&str, &str, Option<&str>),
    ) {
        let mut shared = self.lock();
        let runs =
            shared.repos.entry(repo.to_owned()).or_default().runs.entry(commit.to_owned()).or_default();
        runs.push(json!({
            "id": 4 + runs.len(), "head_sha": commit, "name": name, "status": status, "conclusion": conclusion,
            "external_id": "", "started_at": "2026-05-04T01:14:52Z", "completed_at": null,
            "output": { "title": null, "summary": null, "text": null, "annotations_count": 0 },
            "app": { "id": 1, "slug": "github-actions" }, "pull_requests": [],
        }));
    }

    /// Sets a commit status: `state` is one of `error`, `failure`, `pending` and `success`.
    pub fn commit_status(&self, repo: &str, commit: &str, context: &str, state: &str) {
        let mut shared = self.lock();
        let repo = shared.repos.entry(repo.to_owned()).or_default();
        let statuses = repo.statuses.entry(commit.to_owned()).or_default();
        statuses.retain(|status| status["context"] != context);
        statuses.push(json!({ "id": 1, "context": context, "state": state, "description": null }));
    }

    /// Forgets all checks of a commit, as when they are run again.
    pub fn forget_checks(&self, repo: &str, commit: &str) {
        let mut shared = self.lock();
        if let Some(repo) = shared.repos.get_mut(repo) {
            repo.runs.remove(commit);
            repo.statuses.remove(commit);
        }
    }

    /// Answers the next request so, whatever it asks.
    pub fn next_answer(&self, status: u16, headers: &[(&str, &str)], body: Value) {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.lock().next.push_back((status, headers, body));
    }

    /// Puts no more than so many entries on a page, whatever is asked for.
    pub fn pages_of(&self, entries: usize) {
        self.lock().largest_page = Some(entries);
    }

    /// Every request so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.lock().asked.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn answer(State(shared): State<Arc<Mutex<Shared>>>, headers: HeaderMap, uri: Uri) -> Response {
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    shared.asked.push(Asked { path: uri.to_string(), authorization: authorization.map(str::to_owned) });
    if let Some((status, headers, body)) = shared.next.pop_front() {
        let mut response =
            (StatusCode::from_u16(status).unwrap_or_default(), body.to_string()).into_response();
        for (name, value) in headers {
            if let (Ok(name), Ok(value)) = (name.parse::<header::HeaderName>(), value.parse()) {
                response.headers_mut().insert(name, value);
            }
        }
        return response;
    }
    // Behind whatever path an Enterprise server has its API.
    let path = uri.path().split_once("/repos/").map(|(_, rest)| decoded(rest)).unwrap_or_default();
    let parts: Vec<&str> = path.splitn(4, '/').collect();
    let repo = parts.get(..2).and_then(|parts| shared.repos.get(&parts.join("/")));
    let Some(repo) = repo else { return refused(StatusCode::NOT_FOUND, "Not Found") };
    let query = Query::of(&uri, shared.largest_page);
    match (parts.get(2).copied(), parts.get(3).copied()) {
        (None, None) => page(&json!({ "full_name": parts.join("/"), "private": false }), &uri, &query, false),
        (Some("branches"), Some(branch)) => match repo.branches.get(branch) {
            Some(head) => page(
                &json!({ "name": branch, "commit": { "sha": head, "commit": {} }, "protected": true }),
                &uri,
                &query,
                false,
            ),
            None => refused(StatusCode::NOT_FOUND, "Branch not found"),
        },
        (Some("commits"), None) => repo.listed(&uri, &query),
        (Some("commits"), Some(rest)) => repo.checked(rest, &uri, &query),
        (Some("compare"), Some(between)) => repo.compared(between),
        _ => refused(StatusCode::NOT_FOUND, "Not Found"),
    }
}

struct Query {
    sha: String,
    per_page: usize,
    page: usize,
}

impl Query {
    fn of(uri: &Uri, largest: Option<usize>) -> Self {
        let pairs: BTreeMap<&str, &str> =
            uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')).collect();
        let number = |name: &str| pairs.get(name).and_then(|text| text.parse::<usize>().ok());
        let per_page = number("per_page").unwrap_or(30).min(largest.unwrap_or(100)).max(1);
        let sha = pairs.get("sha").map(|sha| (*sha).to_owned()).unwrap_or_default();
        Self { sha, per_page, page: number("page").unwrap_or(1).max(1) }
    }

    /// The entries of this page, and whether there is another.
    fn of_page(&self, entries: &[Value]) -> (Vec<Value>, bool) {
        let from = (self.page - 1) * self.per_page;
        let on_page: Vec<Value> = entries.iter().skip(from).take(self.per_page).cloned().collect();
        (on_page, from + self.per_page < entries.len())
    }
}

impl Repo {
    fn parents(&self, commit: &str) -> Option<&[String]> {
        self.commits.iter().find(|(id, _)| id == commit).map(|(_, parents)| parents.as_slice())
    }

    fn reached(&self, from: &str) -> HashSet<String> {
        let (mut reached, mut left) = (HashSet::new(), vec![from.to_owned()]);
        while let Some(commit) = left.pop() {
            left.extend(self.parents(&commit).unwrap_or_default().iter().cloned());
            reached.insert(commit);
        }
        reached
    }

    fn listed(&self, uri: &Uri, query: &Query) -> Response {
        if self.parents(&query.sha).is_none() {
            return refused(StatusCode::NOT_FOUND, "Not Found");
        }
        let reached = self.reached(&query.sha);
        let entry = |(id, parents): &(String, Vec<String>)| {
            let parents: Vec<Value> = parents.iter().map(|parent| json!({ "sha": parent })).collect();
            json!({ "sha": id, "commit": { "message": "…" }, "parents": parents })
        };
        let entries: Vec<Value> =
            self.commits.iter().filter(|(id, _)| reached.contains(id)).map(entry).collect();
        let (on_page, more) = query.of_page(&entries);
        page(&Value::Array(on_page), uri, query, more)
    }

    fn checked(&self, rest: &str, uri: &Uri, query: &Query) -> Response {
        let Some((commit, what)) = rest.split_once('/') else {
            return refused(StatusCode::NOT_FOUND, "Not Found");
        };
        if self.parents(commit).is_none() {
            let message = format!("No commit found for SHA: {commit}");
            return refused(StatusCode::UNPROCESSABLE_ENTITY, &message);
        }
        let (entries, key) = match what {
            "check-runs" => (self.runs.get(commit), "check_runs"),
            "status" => (self.statuses.get(commit), "statuses"),
            _ => return refused(StatusCode::NOT_FOUND, "Not Found"),
        };
        let entries = entries.map(Vec::as_slice).unwrap_or_default();
        let (on_page, more) = query.of_page(entries);
        let mut body = json!({ "total_count": entries.len(), key: on_page });
        if what == "status" {
            body["state"] = "pending".into();
            body["sha"] = commit.into();
        }
        page(&body, uri, query, more)
    }

    fn compared(&self, between: &str) -> Response {
        let Some((base, branch)) = between.split_once("...") else {
            return refused(StatusCode::NOT_FOUND, "Not Found");
        };
        let head = self.branches.get(branch);
        let Some(head) = head.filter(|_| self.parents(base).is_some()) else {
            return refused(StatusCode::NOT_FOUND, "Not Found");
        };
        let status = if head == base {
            "identical"
        } else if self.reached(head).contains(base) {
            "ahead"
        } else if self.reached(base).contains(head) {
            "behind"
        } else {
            "diverged"
        };
        (StatusCode::OK, json!({ "status": status, "commits": [], "files": [] }).to_string()).into_response()
    }
}

fn page(body: &Value, uri: &Uri, query: &Query, more: bool) -> Response {
    let mut response = (StatusCode::OK, body.to_string()).into_response();
    if more {
        let next = format!(
            "<http://github.invalid{}?page={}>; rel=\"next\", <http://github.invalid{}?page=9>; rel=\"last\"",
            uri.path(),
            query.page + 1,
            uri.path()
        );
        if let Ok(next) = next.parse() {
            response.headers_mut().insert(header::LINK, next);
        }
    }
    response
}

fn refused(status: StatusCode, message: &str) -> Response {
    let body = json!({ "message": message, "documentation_url": "https://docs.github.com/rest" });
    (status, body.to_string()).into_response()
}

fn decoded(path: &str) -> String {
    path.replace("%2F", "/").replace("%2f", "/")
}
