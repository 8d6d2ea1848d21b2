//! The questions, each of one or some requests.

use std::collections::HashMap;

use async_trait::async_trait;
use fabrique_core::id::{BranchName, CheckName, RepoName, Revision};
use fabrique_core::upstream::{CheckState, Results};
use fabrique_ports::PortResult;
use fabrique_ports::upstream::{Asked, BranchLine, Origin};
use http::StatusCode;
use serde::de::DeserializeOwned;
use url::Url;

use crate::answers::{Branch, CheckRuns, Commit, Comparison, Statuses};
use crate::client::{Answer, Github, Said};
use crate::error::GithubError;

/// GitHub's own largest page.
const PAGE: usize = 100;
/// GitHub tells the checks of a commit's 1,000 newest suites; more pages are a defect somewhere.
const MAX_PAGES: usize = 20;

/// Goes on with an answer, and ends with the limit where there is one.
macro_rules! said {
    ($said:expr) => {
        match $said {
            Said::Answer(answer) => answer,
            Said::Limited(until) => return Ok(Asked::Limited { until }),
        }
    };
}

#[async_trait]
impl Origin for Github {
    async fn line(&self, repo: &RepoName, branch: &BranchName, most: usize) -> PortResult<Asked<BranchLine>> {
        Ok(self.newest(repo, branch, most).await?)
    }

    async fn contains(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        revision: &Revision,
    ) -> PortResult<Asked<bool>> {
        Ok(self.compare(repo, branch, revision).await?)
    }

    async fn results(&self, repo: &RepoName, revision: &Revision) -> PortResult<Asked<Results>> {
        Ok(self.checks(repo, revision).await?)
    }
}

impl Github {
    async fn newest(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        most: usize,
    ) -> Result<Asked<BranchLine>, GithubError> {
        // By its name as a branch: elsewhere the same name may be a tag's.
        let answer = said!(self.get(&format!("{}/branches/{}", path(repo), segment(branch.as_str()))).await?);
        let head = match answer.status {
            StatusCode::OK => revision(&answer, &answer.json::<Branch>()?.commit.sha)?,
            StatusCode::NOT_FOUND => {
                let answer = said!(self.get(&path(repo)).await?);
                return match answer.status {
                    StatusCode::OK => Ok(Asked::Answer(BranchLine::NoBranch)),
                    StatusCode::NOT_FOUND => Ok(Asked::Answer(BranchLine::NoRepository)),
                    _ => Err(answer.refused()),
                };
            }
            _ => return Err(answer.refused()),
        };
        let answer = said!(self.get(&format!("{}/commits?sha={head}&per_page={PAGE}", path(repo))).await?);
        if answer.status != StatusCode::OK {
            return Err(answer.refused());
        }
        let commits: Vec<Commit> = answer.json()?;
        let parents: HashMap<&str, Option<&str>> = commits
            .iter()
            .map(|commit| (commit.sha.as_str(), commit.parents.first().map(|parent| parent.sha.as_str())))
            .collect();
        let mut line = vec![head];
        while line.len() < most.min(PAGE) {
            let parent = line.last().and_then(|last| parents.get(last.as_str()).copied().flatten());
            // The last of the page has a parent that is on the next one.
            let Some(parent) = parent.filter(|parent| parents.contains_key(parent)) else { break };
            line.push(revision(&answer, parent)?);
        }
        Ok(Asked::Answer(BranchLine::At(line)))
    }

    async fn compare(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        revision: &Revision,
    ) -> Result<Asked<bool>, GithubError> {
        let between = format!("{revision}...{}", segment(branch.as_str()));
        let answer = said!(self.get(&format!("{}/compare/{between}?per_page=1", path(repo))).await?);
        match answer.status {
            // How the branch stands to the revision.
            StatusCode::OK => {
                let status = answer.json::<Comparison>()?.status;
                Ok(Asked::Answer(matches!(status.as_str(), "ahead" | "identical")))
            }
            StatusCode::NOT_FOUND => Ok(Asked::Answer(false)),
            _ => Err(answer.refused()),
        }
    }

    async fn checks(&self, repo: &RepoName, revision: &Revision) -> Result<Asked<Results>, GithubError> {
        let mut results = Results::new();
        let commit = format!("{}/commits/{revision}", path(repo));
        let runs = format!("{commit}/check-runs?filter=latest");
        let collected = self
            .pages(&runs, |page: CheckRuns| {
                page.check_runs.iter().for_each(|run| note(&mut results, &run.name, run.state()));
            })
            .await?;
        if let Asked::Limited { until } = collected {
            return Ok(Asked::Limited { until });
        }
        let statuses = format!("{commit}/status?");
        let collected = self
            .pages(&statuses, |page: Statuses| {
                page.statuses.iter().for_each(|status| note(&mut results, &status.context, status.state()));
            })
            .await?;
        Ok(match collected {
            Asked::Answer(()) => Asked::Answer(results),
            Asked::Limited { until } => Asked::Limited { until },
        })
    }

    /// Every page of a list; none of a commit that is not there.
    async fn pages<T: DeserializeOwned>(
        &self,
        path: &str,
        mut take: impl FnMut(T),
    ) -> Result<Asked<()>, GithubError> {
        for page in 1..=MAX_PAGES {
            let answer = said!(self.get(&format!("{path}&per_page={PAGE}&page={page}")).await?);
            match answer.status {
                StatusCode::OK => take(answer.json()?),
                StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY => return Ok(Asked::Answer(())),
                _ => return Err(answer.refused()),
            }
            if !answer.has_next {
                return Ok(Asked::Answer(()));
            }
            if page == MAX_PAGES {
                return Err(answer.unreadable(&format!("there are more than {MAX_PAGES} pages")));
            }
        }
        Ok(Asked::Answer(()))
    }
}

/// A name that nobody could ask for is left out.
fn note(results: &mut Results, name: &str, state: CheckState) {
    let Ok(name) = CheckName::parse(name) else { return };
    let state = match results.remove(&name) {
        Some(before) => before.and(state),
        None => state,
    };
    results.insert(name, state);
}

fn path(repo: &RepoName) -> String {
    format!("/repos/{}/{}", repo.org(), repo.name())
}

/// A branch's name as one segment of a path.
fn segment(name: &str) -> String {
    let Ok(mut url) = Url::parse("http://x/") else { return String::new() };
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().push(name);
    }
    url.path().trim_start_matches('/').to_owned()
}

fn revision(answer: &Answer, text: &str) -> Result<Revision, GithubError> {
    Revision::parse(text).map_err(|error| answer.unreadable(&error.to_string()))
}
