//! One Gitea, asked about each organisation's sources with that organisation's own token.

use std::collections::BTreeMap;

use async_trait::async_trait;
use fabrique_core::id::{BranchName, RelPath, RepoName, Revision};
use fabrique_gitea::{Gitea, GiteaConfig, GiteaError};
use fabrique_ports::PortResult;
use fabrique_ports::forge::{BranchHead, BranchTip, CommitStatus, Forge, ForgeFile, StatusOutcome};
use fabrique_ports::upstream::{AccountRight, MirrorOutcome, Mirrors, SyncRequest, WantedMirror};
use secrecy::SecretString;

/// Clients of one server that differ in their read token.
pub(crate) struct Forges {
    /// For organisations without a token of their own, and for everything but reading.
    default: Gitea,
    by_org: BTreeMap<String, Gitea>,
}

impl Forges {
    /// A client as `config` says, and one for each of `read_tokens`.
    pub(crate) fn new(
        config: &GiteaConfig,
        read_tokens: &BTreeMap<String, SecretString>,
    ) -> Result<Self, GiteaError> {
        let with_token = |(org, token): (&String, &SecretString)| {
            let mut config = config.clone();
            config.tokens.read = Some(token.clone());
            Ok((org.to_ascii_lowercase(), Gitea::new(config)?))
        };
        let by_org = read_tokens.iter().map(with_token).collect::<Result<_, GiteaError>>()?;
        Ok(Self { default: Gitea::new(config.clone())?, by_org })
    }

    fn reading(&self, repo: &RepoName) -> &Gitea {
        self.by_org.get(&repo.org().to_ascii_lowercase()).unwrap_or(&self.default)
    }
}

#[async_trait]
impl Forge for Forges {
    async fn branch_head(&self, repo: &RepoName, branch: &BranchName) -> PortResult<BranchHead> {
        self.reading(repo).branch_head(repo, branch).await
    }

    async fn branch_tip(&self, repo: &RepoName, branch: &BranchName) -> PortResult<Option<BranchTip>> {
        self.reading(repo).branch_tip(repo, branch).await
    }

    async fn was_pushed(&self, repo: &RepoName, revision: &Revision) -> PortResult<bool> {
        self.reading(repo).was_pushed(repo, revision).await
    }

    async fn file(
        &self,
        repo: &RepoName,
        revision: &Revision,
        path: &RelPath,
    ) -> PortResult<Option<ForgeFile>> {
        self.reading(repo).file(repo, revision, path).await
    }

    async fn set_status(
        &self,
        repo: &RepoName,
        revision: &Revision,
        status: &CommitStatus,
    ) -> PortResult<StatusOutcome> {
        self.default.set_status(repo, revision, status).await
    }
}

#[async_trait]
impl Mirrors for Forges {
    async fn ensure_mirror(&self, wanted: &WantedMirror, dry_run: bool) -> PortResult<MirrorOutcome> {
        self.default.ensure_mirror(wanted, dry_run).await
    }

    /// Of the account that reads the sources of this organisation.
    async fn ensure_rights(&self, repo: &RepoName, dry_run: bool) -> PortResult<Vec<AccountRight>> {
        self.reading(repo).ensure_rights(repo, dry_run).await
    }

    async fn request_sync(&self, repo: &RepoName) -> PortResult<SyncRequest> {
        self.default.request_sync(repo).await
    }
}
