//! Heads and commit statuses.

use async_trait::async_trait;
use fabrique_core::id::{BranchName, RelPath, RepoName, Revision};
use fabrique_ports::PortResult;
use fabrique_ports::forge::{
    BranchHead, BranchTip, CommitStatus, Forge, ForgeFile, StatusOutcome, StatusState,
};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::client::{Gitea, Path};
use crate::config::Purpose;
use crate::error::GiteaError;
use crate::text::one_line;

/// How far back pushes are looked through: whoever asks pushed a moment ago.
const ACTIVITIES: &str = "50";
/// The most characters of a status description that Gitea keeps.
const DESCRIPTION_LIMIT: usize = 255;

#[derive(Deserialize)]
struct Branch {
    name: String,
    commit: Option<Commit>,
}

#[derive(Deserialize)]
struct Commit {
    id: String,
}

#[derive(Deserialize)]
struct TipCommit {
    sha: String,
    commit: CommitDetails,
    #[serde(default)]
    parents: Vec<ParentCommit>,
    files: Option<Vec<TouchedFile>>,
}

#[derive(Deserialize)]
struct CommitDetails {
    committer: Signature,
}

#[derive(Deserialize)]
struct Signature {
    date: String,
}

#[derive(Deserialize)]
struct ParentCommit {
    sha: String,
}

#[derive(Deserialize)]
struct TouchedFile {
    filename: String,
}

#[derive(Deserialize)]
struct Activity {
    op_type: String,
    /// JSON again, for pushes.
    #[serde(default)]
    content: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pushed {
    #[serde(default)]
    commits: Vec<PushedCommit>,
    head_commit: Option<PushedCommit>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PushedCommit {
    sha1: String,
}

impl Activity {
    /// Whether it is a push with this commit among its newest.
    fn brought(&self, revision: &Revision) -> bool {
        if self.op_type != "commit_repo" {
            return false;
        }
        let Ok(Pushed { commits, head_commit }) = serde_json::from_str(&self.content) else { return false };
        head_commit.iter().chain(&commits).any(|commit| commit.sha1 == revision.as_str())
    }
}

#[async_trait]
impl Forge for Gitea {
    async fn branch_head(&self, repo: &RepoName, branch: &BranchName) -> PortResult<BranchHead> {
        Ok(self.read_head(repo, branch).await?)
    }

    async fn branch_tip(&self, repo: &RepoName, branch: &BranchName) -> PortResult<Option<BranchTip>> {
        Ok(self.read_tip(repo, branch).await?)
    }

    async fn was_pushed(&self, repo: &RepoName, revision: &Revision) -> PortResult<bool> {
        Ok(self.tells_of_push(repo, revision).await?)
    }

    async fn file(
        &self,
        repo: &RepoName,
        revision: &Revision,
        path: &RelPath,
    ) -> PortResult<Option<ForgeFile>> {
        Ok(self.read_file(repo, revision, path).await?)
    }

    async fn set_status(
        &self,
        repo: &RepoName,
        revision: &Revision,
        status: &CommitStatus,
    ) -> PortResult<StatusOutcome> {
        Ok(self.write_status(repo, revision, status).await?)
    }
}

impl Gitea {
    async fn read_head(&self, repo: &RepoName, branch: &BranchName) -> Result<BranchHead, GiteaError> {
        let purpose = self.reading(repo);
        let path = Path::repo(repo).then(["branches"]).then(branch.as_str().split('/'));
        let answer = self.get(purpose, &path).await?;
        match answer.status {
            StatusCode::OK => {
                let found: Branch = answer.json()?;
                // A database may compare names without case, and git does not.
                let Some(commit) = found.commit.filter(|_| found.name == branch.as_str()) else {
                    return Ok(BranchHead::NoBranch);
                };
                let revision = Revision::parse(&commit.id).map_err(|error| answer.unreadable(&error))?;
                Ok(BranchHead::At(revision))
            }
            StatusCode::NOT_FOUND if self.sees(purpose, repo).await? => Ok(BranchHead::NoBranch),
            StatusCode::NOT_FOUND => Ok(BranchHead::NoRepository),
            _ => Err(answer.refused()),
        }
    }

    /// By its full name, as one segment: a tag of the same short name would come first.
    async fn read_tip(&self, repo: &RepoName, branch: &BranchName) -> Result<Option<BranchTip>, GiteaError> {
        let path = Path::repo(repo)
            .then(["git", "commits", &branch.full_ref()])
            .query("stat", "false")
            .query("verification", "false")
            .query("files", "true");
        let answer = self.get(self.reading(repo), &path).await?;
        if answer.status != StatusCode::OK {
            return Ok(None);
        }
        let found: TipCommit = answer.json()?;
        let id = |sha: &str| Revision::parse(sha).map_err(|error| answer.unreadable(&error));
        let committed: jiff::Timestamp =
            found.commit.committer.date.parse().map_err(|error| answer.unreadable(&error))?;
        Ok(Some(BranchTip {
            revision: id(&found.sha)?,
            parents: found.parents.iter().map(|parent| id(&parent.sha)).collect::<Result<_, _>>()?,
            committed: committed.as_second(),
            touched: found.files.unwrap_or_default().into_iter().map(|file| file.filename).collect(),
        }))
    }

    /// Asks for the commit; an error when the repository itself cannot be seen, since "no" would then be
    /// a guess.
    async fn knows(
        &self,
        purpose: Purpose,
        repo: &RepoName,
        revision: &Revision,
    ) -> Result<bool, GiteaError> {
        let path = Path::repo(repo)
            .then(["git", "commits", revision.as_str()])
            .query("stat", "false")
            .query("verification", "false")
            .query("files", "false");
        let answer = self.get(purpose, &path).await?;
        match answer.status {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND if self.sees(purpose, repo).await? => Ok(false),
            StatusCode::NOT_FOUND => Err(GiteaError::NoRepository { repo: repo.to_string(), purpose }),
            _ => Err(answer.refused()),
        }
    }

    /// Gitea's activity lists the pushes of each repository, newest first, after they moved a branch.
    async fn tells_of_push(&self, repo: &RepoName, revision: &Revision) -> Result<bool, GiteaError> {
        let purpose = self.reading(repo);
        if !self.knows(purpose, repo, revision).await? {
            return Ok(false);
        }
        let path = Path::repo(repo).then(["activities", "feeds"]).query("limit", ACTIVITIES);
        let answer = self.get(purpose, &path).await?;
        if answer.status != StatusCode::OK {
            return Err(answer.refused());
        }
        let activities: Vec<Activity> = answer.json()?;
        Ok(activities.iter().any(|activity| activity.brought(revision)))
    }

    async fn read_file(
        &self,
        repo: &RepoName,
        revision: &Revision,
        path: &RelPath,
    ) -> Result<Option<ForgeFile>, GiteaError> {
        let path =
            Path::repo(repo).then(["raw"]).then(path.as_str().split('/')).query("ref", revision.as_str());
        let answer = self.get(self.reading(repo), &path).await?;
        match answer.status {
            // Of a link the content is where it leads.
            StatusCode::OK if answer.is_link() => Ok(Some(ForgeFile::Elsewhere)),
            StatusCode::OK => Ok(Some(ForgeFile::Content(answer.content()))),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(answer.refused()),
        }
    }

    async fn write_status(
        &self,
        repo: &RepoName,
        revision: &Revision,
        status: &CommitStatus,
    ) -> Result<StatusOutcome, GiteaError> {
        let path = Path::repo(repo).then(["statuses", revision.as_str()]);
        let body = json!({
            "context": status.context,
            "state": state(status.state),
            "description": one_line(&status.description, DESCRIPTION_LIMIT),
            "target_url": status.link.as_deref().unwrap_or_default(),
        });
        let answer = self.send(Purpose::Status, Method::POST, &path, Some(&body)).await?;
        match answer.status {
            StatusCode::CREATED => Ok(StatusOutcome::Set),
            // Gitea answers 500 for an unknown revision and for its own troubles alike.
            StatusCode::INTERNAL_SERVER_ERROR | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY
                if !self.knows(Purpose::Status, repo, revision).await? =>
            {
                Ok(StatusOutcome::UnknownRevision)
            }
            _ => Err(answer.refused()),
        }
    }
}

fn state(state: StatusState) -> &'static str {
    match state {
        StatusState::Pending => "pending",
        StatusState::Success => "success",
        StatusState::Failure => "failure",
        StatusState::Error => "error",
    }
}
