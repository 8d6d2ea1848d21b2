//! The adapter against a server that answers as GitHub's API is recorded to do, over HTTP. No live GitHub can be had
//! here: what only that one could show is not shown by this.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::sync::Arc;
use std::time::Duration;

use fabrique_bed::{GitRepo, RecordedGithub};
use fabrique_core::id::{BranchName, CheckName, RepoName, Revision};
use fabrique_core::time::Timestamp;
use fabrique_core::upstream::{CheckState, Results};
use fabrique_github::{Github, GithubConfig};
use fabrique_ports::Fault;
use fabrique_ports::upstream::{Asked, BranchLine, Origin as _};
use serde_json::json;

const REPO: &str = "acme/citation";
const NOW: Timestamp = Timestamp(1_800_000_000_000);

fn repo() -> RepoName {
    RepoName::parse(REPO).unwrap()
}

fn branch(name: &str) -> BranchName {
    BranchName::parse(name).unwrap()
}

fn revision(text: &str) -> Revision {
    Revision::parse(text.trim()).unwrap()
}

fn config(server: &RecordedGithub) -> GithubConfig {
    let _ = rustls::crypto::ring::default_provider().install_default();
    GithubConfig::new(server.url().parse().unwrap())
}

fn client(config: &GithubConfig) -> Github {
    Github::new(config, Arc::new(|| NOW)).unwrap()
}

fn failed(conclusion: &str) -> CheckState {
    CheckState::Failed { conclusion: conclusion.to_owned() }
}

fn results(expected: &[(&str, CheckState)]) -> Asked<Results> {
    let named = expected.iter().map(|(name, state)| (CheckName::parse(name).unwrap(), state.clone()));
    Asked::Answer(named.collect())
}

/// A repository with two commits on `main` and one on `side/1`, which is merged: the clone, and the ids in the order in
/// which `main` was at them.
async fn merged(server: &RecordedGithub) -> (GitRepo, [String; 4]) {
    let clone = GitRepo::init().await.unwrap();
    clone.write("a", "1").await.unwrap();
    let first = clone.commit("First").await.unwrap();
    clone.git(&["checkout", "--quiet", "-b", "side/1"]).await.unwrap();
    clone.write("side", "1").await.unwrap();
    let side = clone.commit("Beside").await.unwrap();
    server.push(REPO, "side/1", &clone).await.unwrap();
    clone.git(&["checkout", "--quiet", "main"]).await.unwrap();
    clone.write("a", "2").await.unwrap();
    let second = clone.commit("Second").await.unwrap();
    clone.git(&["merge", "--quiet", "--no-ff", "-m", "Merge", "side/1"]).await.unwrap();
    let merge = server.push(REPO, "main", &clone).await.unwrap();
    (clone, [first, second, merge, side].map(|id| id.trim().to_owned()))
}

#[tokio::test]
async fn a_line_is_what_the_branch_was_at_and_nothing_that_was_merged() {
    let server = RecordedGithub::start().await.unwrap();
    let (_clone, [first, second, merge, side]) = merged(&server).await;
    let github = client(&config(&server));
    let line = github.line(&repo(), &branch("main"), 10).await.unwrap();
    let expected = [&merge, &second, &first].map(|id| revision(id)).to_vec();
    assert_eq!(line, Asked::Answer(BranchLine::At(expected)));
    let short = github.line(&repo(), &branch("main"), 2).await.unwrap();
    assert_eq!(short, Asked::Answer(BranchLine::At(vec![revision(&merge), revision(&second)])));
    // A slash in a branch's name is no folder.
    let beside = github.line(&repo(), &branch("side/1"), 1).await.unwrap();
    assert_eq!(beside, Asked::Answer(BranchLine::At(vec![revision(&side)])));
}

#[tokio::test]
async fn a_missing_branch_is_told_from_a_missing_repository() {
    let server = RecordedGithub::start().await.unwrap();
    merged(&server).await;
    let github = client(&config(&server));
    let ask = async |repo: &str, name: &str| {
        github.line(&RepoName::parse(repo).unwrap(), &branch(name), 5).await.unwrap()
    };
    assert_eq!(ask(REPO, "nowhere").await, Asked::Answer(BranchLine::NoBranch));
    assert_eq!(ask("acme/nowhere", "main").await, Asked::Answer(BranchLine::NoRepository));
}

#[tokio::test]
async fn a_branch_contains_its_ancestors_and_what_it_left_behind_not() {
    let server = RecordedGithub::start().await.unwrap();
    let (clone, [first, second, merge, side]) = merged(&server).await;
    let github = client(&config(&server));
    let contains = async |id: &str| github.contains(&repo(), &branch("main"), &revision(id)).await.unwrap();
    for id in [&first, &second, &merge, &side] {
        assert_eq!(contains(id).await, Asked::Answer(true), "{id}");
    }
    clone.git(&["reset", "--quiet", "--hard", &first]).await.unwrap();
    server.push(REPO, "main", &clone).await.unwrap();
    assert_eq!(contains(&second).await, Asked::Answer(false));
    clone.write("a", "3").await.unwrap();
    clone.commit("Another second").await.unwrap();
    server.push(REPO, "main", &clone).await.unwrap();
    assert_eq!(contains(&second).await, Asked::Answer(false));
    assert_eq!(contains(&first).await, Asked::Answer(true));
    assert_eq!(contains(&"d".repeat(40)).await, Asked::Answer(false));
}

#[tokio::test]
async fn check_runs_and_statuses_of_every_page_count_and_all_of_one_name_have_to_pass() {
    let server = RecordedGithub::start().await.unwrap();
    let (_clone, [_, _, merge, _]) = merged(&server).await;
    server.pages_of(2);
    for (name, status, conclusion) in [
        ("ci", "completed", Some("success")),
        ("lint", "in_progress", None),
        ("build (linux, 3.10)", "completed", Some("skipped")),
        ("ci", "completed", Some("timed_out")),
        ("docs", "queued", None),
    ] {
        server.check_run(REPO, &merge, (name, status, conclusion));
    }
    for (context, state) in [("legacy/ci", "success"), ("docs", "failure"), ("legacy/cd", "pending")] {
        server.commit_status(REPO, &merge, context, state);
    }
    let github = client(&config(&server));
    let expected = results(&[
        ("build (linux, 3.10)", CheckState::Passed),
        ("ci", failed("timed_out")),
        ("docs", failed("failure")),
        ("legacy/cd", CheckState::Pending),
        ("legacy/ci", CheckState::Passed),
        ("lint", CheckState::Pending),
    ]);
    assert_eq!(github.results(&repo(), &revision(&merge)).await.unwrap(), expected);
    let pages: Vec<String> = server.asked().into_iter().map(|asked| asked.path).collect();
    assert_eq!(pages.len(), 5, "three pages of runs, two of statuses: {pages:?}");
    assert!(pages[0].contains("filter=latest"), "{pages:?}");
    // Nothing ever ran for a commit that GitHub does not have.
    assert_eq!(github.results(&repo(), &revision(&"d".repeat(40))).await.unwrap(), results(&[]));
}

#[tokio::test]
async fn a_limit_is_an_answer_with_the_time_at_which_it_ends() {
    let server = RecordedGithub::start().await.unwrap();
    merged(&server).await;
    let github = client(&config(&server));
    let ask = async || github.line(&repo(), &branch("main"), 1).await.unwrap();
    let until = |millis: u64| Asked::Limited { until: Timestamp(millis) };
    let primary = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000600")];
    server.next_answer(403, &primary, json!({ "message": "API rate limit exceeded for 203.0.113.1." }));
    assert_eq!(ask().await, until(1_800_000_600_000));
    let message = json!({ "message": "You have exceeded a secondary rate limit." });
    server.next_answer(429, &[("retry-after", "90")], message.clone());
    assert_eq!(ask().await, until(NOW.0 + 90_000));
    server.next_answer(403, &[("x-ratelimit-remaining", "4000")], message);
    assert_eq!(ask().await, until(NOW.0 + 60_000));
    // In the middle of several requests too.
    server.next_answer(200, &[], json!({ "commit": { "sha": "1".repeat(40) } }));
    server.next_answer(429, &[], json!({}));
    assert_eq!(ask().await, until(NOW.0 + 60_000));
}

#[tokio::test]
async fn refusals_say_what_helps_and_the_token_is_sent_and_never_shown() {
    let server = RecordedGithub::start().await.unwrap();
    let mut config = config(&server);
    config.token = Some("ghp_secret".to_owned().into());
    let github = client(&config);
    let cases = [
        (401, "Bad credentials", Fault::Denied, "wrong, expired or revoked"),
        (403, "Resource not accessible by personal access token", Fault::Denied, "needs to read contents"),
        (502, "Server Error", Fault::Transient, "502"),
        (410, "Gone", Fault::Unexpected, "410"),
    ];
    for (status, message, fault, words) in cases {
        server.next_answer(status, &[], json!({ "message": message }));
        let error = github.results(&repo(), &revision(&"1".repeat(40))).await.unwrap_err();
        assert_eq!(error.fault(), fault, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.to_string().contains("GET /repos/acme/citation/commits/"), "{error}");
        assert!(!format!("{error:?}{github:?}{config:?}").contains("ghp_secret"));
    }
    server.next_answer(200, &[], json!("nonsense"));
    let error = github.results(&repo(), &revision(&"1".repeat(40))).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Unexpected);
    assert!(error.to_string().contains("unreadable"), "{error}");
    let asked = server.asked();
    assert!(
        asked.iter().all(|asked| asked.authorization.as_deref() == Some("Bearer ghp_secret")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_renamed_repository_is_followed_and_an_enterprise_server_has_a_path() {
    let server = RecordedGithub::start().await.unwrap();
    let (_clone, [first, ..]) = merged(&server).await;
    let mut config = config(&server);
    config.base_url = config.base_url.join("api/v3/").unwrap();
    let github = client(&config);
    let new = format!("{}api/v3/repos/{REPO}/compare/{first}...main", server.url());
    server.next_answer(301, &[("location", &new)], json!({ "message": "Moved Permanently" }));
    let old = RepoName::parse("acme/old-name").unwrap();
    assert_eq!(github.contains(&old, &branch("main"), &revision(&first)).await.unwrap(), Asked::Answer(true));
    assert!(server.asked().iter().all(|asked| asked.path.starts_with("/api/v3/repos/")));
}

#[tokio::test]
async fn a_server_that_is_away_or_says_nothing_is_worth_another_try() {
    let server = RecordedGithub::start().await.unwrap();
    let mut config = config(&server);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    config.timeouts.request = Duration::from_millis(300);
    for address in [silent.local_addr().unwrap(), gone] {
        config.base_url = format!("http://{address}/").parse().unwrap();
        let error = client(&config).line(&repo(), &branch("main"), 1).await.unwrap_err();
        assert_eq!(error.fault(), Fault::Transient, "{error}");
        assert!(error.to_string().contains("github.url"), "{error}");
    }
}

#[tokio::test]
async fn an_address_with_credentials_and_a_token_with_blanks_are_refused_and_not_shown() {
    let server = RecordedGithub::start().await.unwrap();
    let mut config = config(&server);
    config.token = Some("ghp secret".to_owned().into());
    let error = Github::new(&config, Arc::new(|| NOW)).unwrap_err().to_string();
    assert!(error.contains("token") && !error.contains("secret"), "{error}");
    config.token = None;
    config.base_url = "http://user:secret@127.0.0.1/".parse().unwrap();
    let error = Github::new(&config, Arc::new(|| NOW)).unwrap_err().to_string();
    assert!(error.contains("credentials") && !error.contains("secret"), "{error}");
}
