//! Gitea about itself and about the token.

use async_trait::async_trait;
use fabrique_core::id::{BranchName, RepoName};
use fabrique_ports::PortResult;
use fabrique_ports::forge::{ForgeInfo, ForgeInspection, RepoRights};
use reqwest::StatusCode;
use serde::Deserialize;

use crate::client::{Gitea, Path};
use crate::error::GiteaError;

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct User {
    login: String,
}

#[derive(Deserialize)]
struct Repository {
    #[serde(default)]
    archived: bool,
    permissions: Option<Permissions>,
}

#[derive(Deserialize)]
struct Branch {
    user_can_push: bool,
}

#[derive(Deserialize)]
struct Permissions {
    admin: bool,
    push: bool,
    pull: bool,
}

/// Without [`Gitea::inspecting`], the server is asked with the token `read` and `cluster/apps` with `apps`.
/// Rights are those of the token's user: Gitea does not tell a token's scopes, so a narrow scope shows only
/// as a refusal.
#[async_trait]
impl ForgeInspection for Gitea {
    async fn info(&self) -> PortResult<ForgeInfo> {
        Ok(self.read_info().await?)
    }

    async fn rights(&self, repo: &RepoName) -> PortResult<Option<RepoRights>> {
        Ok(self.read_rights(repo).await?)
    }

    async fn may_push(&self, repo: &RepoName, branch: &BranchName) -> PortResult<Option<bool>> {
        Ok(self.read_branch(repo, branch).await?)
    }
}

impl Gitea {
    async fn read_info(&self) -> Result<ForgeInfo, GiteaError> {
        let purpose = self.inspection(None);
        let answer = self.get(purpose, &Path::new(["version"])).await?;
        if answer.status != StatusCode::OK {
            return Err(answer.refused());
        }
        let Version { version } = answer.json()?;
        if self.config().tokens.of(purpose).is_none() {
            return Ok(ForgeInfo { version, login: None });
        }
        let answer = self.get(purpose, &Path::new(["user"])).await?;
        match answer.status {
            StatusCode::OK => Ok(ForgeInfo { version, login: Some(answer.json::<User>()?.login) }),
            // A good token without the scope read:user.
            StatusCode::FORBIDDEN => Ok(ForgeInfo { version, login: None }),
            _ => Err(answer.refused()),
        }
    }

    async fn read_rights(&self, repo: &RepoName) -> Result<Option<RepoRights>, GiteaError> {
        let answer = self.get(self.inspection(Some(repo)), &Path::repo(repo)).await?;
        match answer.status {
            StatusCode::OK => {
                let Repository { archived, permissions } = answer.json()?;
                let (admin, push, pull) =
                    permissions.map_or((false, false, true), |p| (p.admin, p.push, p.pull));
                Ok(Some(RepoRights { pull, push, admin, archived }))
            }
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(answer.refused()),
        }
    }
    async fn read_branch(&self, repo: &RepoName, branch: &BranchName) -> Result<Option<bool>, GiteaError> {
        let path = Path::repo(repo).then(["branches"]).then(branch.as_str().split('/'));
        let answer = self.get(self.inspection(Some(repo)), &path).await?;
        match answer.status {
            StatusCode::OK => Ok(Some(answer.json::<Branch>()?.user_can_push)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(answer.refused()),
        }
    }
}
