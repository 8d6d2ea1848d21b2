//! Setting an installation up: what is made once, before anything is pushed, as an administrator.

use async_trait::async_trait;
use fabrique_core::id::{BranchName, RelPath, RepoName};
use secrecy::SecretString;

use crate::PortResult;

/// A repository as somebody finds it who wants to use one of its branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepositoryState {
    /// There is none.
    Missing,
    /// It is there, without a single commit that the forge knows of.
    Empty,
    /// It has commits, and none on the branch.
    NoBranch,
    /// It has the branch.
    Ready,
}

/// What an account may do in a repository, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Nothing.
    None,
    /// Read it.
    Read,
    /// Push to it.
    Write,
    /// Change its settings and webhooks.
    Admin,
}

/// What the forge says to a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenAnswer {
    /// It is somebody's.
    Accepted,
    /// It is nobody's, or not any more.
    Refused,
}

/// The forge, for its administrator. Nothing that is made is made twice: whoever was first counts.
#[async_trait]
pub trait ForgeSetup: Send + Sync {
    /// Who the administrator is.
    ///
    /// # Errors
    /// Denied when name and password are not an administrator's.
    async fn administrator(&self) -> PortResult<String>;

    /// Whether there is such an organisation.
    async fn has_organisation(&self, name: &str) -> PortResult<bool>;
    /// Makes an organisation whose repositories only signed-in accounts see.
    async fn make_organisation(&self, name: &str) -> PortResult<()>;

    /// How the repository is found.
    async fn repository(&self, repo: &RepoName, branch: &BranchName) -> PortResult<RepositoryState>;
    /// Makes a private repository without a commit.
    async fn make_repository(&self, repo: &RepoName, branch: &BranchName) -> PortResult<()>;
    /// Commits the first files of an empty repository to its branch, all in one commit. Where there are some by now, none is
    /// written.
    async fn put_first(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        files: &[(RelPath, Vec<u8>)],
        message: &str,
    ) -> PortResult<()>;

    /// Whether there is such an account.
    async fn has_account(&self, login: &str) -> PortResult<bool>;
    /// Makes an account whose password nobody knows.
    async fn make_account(&self, login: &str, password: &SecretString) -> PortResult<()>;
    /// What the account may do in the repository. Both are there.
    async fn right(&self, repo: &RepoName, login: &str) -> PortResult<Right>;
    /// Lets the account do this in the repository.
    async fn grant(&self, repo: &RepoName, login: &str, right: Right) -> PortResult<()>;

    /// What the forge says to a token.
    async fn try_token(&self, token: &SecretString) -> PortResult<TokenAnswer>;
    /// Makes a token of the account. Its value is told this once.
    async fn make_token(&self, login: &str, name: &str, scopes: &[&str]) -> PortResult<SecretString>;
    /// Revokes the account's token of this name, if there is one.
    async fn revoke_token(&self, login: &str, name: &str) -> PortResult<()>;
}

/// Whoever deploys what is committed, at the door that webhooks come in by.
#[async_trait]
pub trait DeployerDoor: Send + Sync {
    /// Whether it is there.
    ///
    /// # Errors
    /// Transient while it does not answer, or not well.
    async fn answers(&self) -> PortResult<()>;
    /// Whether it takes a push that is signed with this secret. The push is about a repository that nobody has.
    async fn takes(&self, secret: &SecretString) -> PortResult<bool>;
}

/// What the deployer keeps to check webhooks by.
pub enum KeptSecret {
    /// Nothing: it takes whatever comes.
    Nothing,
    /// This, by which it checks.
    This(SecretString),
    /// This, and it lacks a key that is kept beside it.
    Partly(SecretString),
}

/// Whoever deploys what is committed, from within.
#[async_trait]
pub trait DeployerInside: Send + Sync {
    /// The secret that it checks webhooks by.
    async fn secret(&self) -> PortResult<KeptSecret>;
    /// Has it check webhooks by this.
    async fn keep_secret(&self, secret: &SecretString) -> PortResult<()>;
    /// Has it watch a branch for nothing but to be told of it, as from now; whatever an earlier probe saw is forgotten.
    async fn place_probe(&self, url: &str, branch: &BranchName) -> PortResult<()>;
    /// Whether it was told of a push to that branch since.
    async fn probe_was_told(&self) -> PortResult<bool>;
    /// Ends that, if it was begun.
    async fn remove_probe(&self) -> PortResult<()>;
}
