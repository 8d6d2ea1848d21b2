//! Gitea for its administrator: what is made once, before there are tokens.
//!
//! Every request carries a name and a password, because Gitea makes tokens for nobody without. A 404 is an answer here:
//! an administrator sees everything that there is.

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fabrique_core::id::{BranchName, RelPath, RepoName};
use fabrique_ports::PortResult;
use fabrique_ports::setup::{ForgeSetup, RepositoryState, Right, TokenAnswer};
use reqwest::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{Answer, Gitea, Login, Path};
use crate::config::Purpose;
use crate::error::GiteaError;
use crate::text::escaped;

/// Gitea's own largest page.
const PAGE: usize = 50;
/// More tokens than this of one account are not looked through.
const MAX_PAGES: usize = 20;

/// A Gitea server, asked by its administrator.
#[derive(Debug, Clone)]
pub struct Administrator(Gitea);

impl Administrator {
    /// The administrator `name` of the server that `gitea` is.
    #[must_use]
    pub fn of(gitea: &Gitea, name: &str, password: SecretString) -> Self {
        Self(gitea.by(Login::Password(name.to_owned(), password)))
    }

    /// Looks after webhooks that are signed with `secret`, by the administrator's rights.
    #[must_use]
    pub fn hooks(&self, secret: SecretString) -> Gitea {
        self.0.signing(secret)
    }

    /// Whether there is something.
    async fn has(&self, path: &Path) -> Result<bool, GiteaError> {
        let answer = self.0.get(Purpose::Admin, path).await?;
        match answer.status {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(answer.refused()),
        }
    }

    async fn send(&self, method: Method, path: &Path, body: &Value) -> Result<Answer, GiteaError> {
        let answer = self.0.send(Purpose::Admin, method, path, Some(body)).await?;
        if answer.status.is_success() { Ok(answer) } else { Err(not_done(answer)) }
    }

    async fn found(&self, repo: &RepoName, branch: &BranchName) -> Result<RepositoryState, GiteaError> {
        #[derive(Deserialize)]
        struct Repository {
            empty: bool,
        }
        let answer = self.0.get(Purpose::Admin, &Path::repo(repo)).await?;
        let empty = match answer.status {
            StatusCode::OK => answer.json::<Repository>()?.empty,
            StatusCode::NOT_FOUND => return Ok(RepositoryState::Missing),
            _ => return Err(answer.refused()),
        };
        // A first commit whose caller went away may be there although Gitea still says empty.
        Ok(match (self.knows_branch(repo, branch).await?, empty) {
            (true, _) => RepositoryState::Ready,
            (false, true) => RepositoryState::Empty,
            (false, false) if self.has(&in_git(repo, branch)).await? => RepositoryState::Empty,
            (false, false) => RepositoryState::NoBranch,
        })
    }

    /// Whether Gitea's database knows the branch.
    async fn knows_branch(&self, repo: &RepoName, branch: &BranchName) -> Result<bool, GiteaError> {
        self.has(&Path::repo(repo).then(["branches", branch.as_str()])).await
    }

    /// Commits these files, each by `operation`: "create" for what must not be there, "upload" for what may be.
    async fn commit_files(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        files: &[(RelPath, Vec<u8>)],
        message: &str,
        operation: &str,
    ) -> Result<Answer, GiteaError> {
        let files: Vec<Value> = files
            .iter()
            .map(|(path, content)| {
                json!({ "operation": operation, "path": path.as_str(), "content": STANDARD.encode(content) })
            })
            .collect();
        let body = json!({ "branch": branch.as_str(), "message": message, "files": files });
        let path = Path::repo(repo).then(["contents"]);
        self.0.send(Purpose::Admin, Method::POST, &path, Some(&body)).await
    }

    /// Whether the branch has the first commit of an attempt whose caller went away, and Gitea's database knows of no branch:
    /// its hook was ended with the request. Gitea notices only with the next commit; until then the branch is missing and
    /// every file of it is there already.
    async fn is_unnoticed(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        message: &str,
    ) -> Result<bool, GiteaError> {
        #[derive(Deserialize)]
        struct Found {
            commit: Message,
            parents: Vec<Value>,
        }
        #[derive(Deserialize)]
        struct Message {
            message: String,
        }
        let answer = self.0.get(Purpose::Admin, &in_git(repo, branch)).await?;
        if answer.status != StatusCode::OK {
            return Ok(false);
        }
        let found: Found = answer.json()?;
        let is_ours = found.parents.is_empty() && found.commit.message.trim_end() == message.trim_end();
        Ok(is_ours && !self.knows_branch(repo, branch).await?)
    }

    async fn token_id(&self, login: &str, name: &str) -> Result<Option<i64>, GiteaError> {
        #[derive(Deserialize)]
        struct Token {
            id: i64,
            name: String,
        }
        for page in 1..=MAX_PAGES {
            let path = tokens(login).query("limit", PAGE.to_string()).query("page", page.to_string());
            let answer = self.0.get(Purpose::Admin, &path).await?;
            if answer.status != StatusCode::OK {
                return Err(answer.refused());
            }
            let listed: Vec<Token> = answer.json()?;
            if listed.is_empty() {
                return Ok(None);
            }
            if let Some(token) = listed.iter().find(|token| token.name == name) {
                return Ok(Some(token.id));
            }
        }
        Err(GiteaError::Unreadable {
            request: format!("listing the tokens of {login}"),
            problem: format!("there are more than {MAX_PAGES} pages"),
        })
    }
}

#[async_trait]
impl ForgeSetup for Administrator {
    async fn administrator(&self) -> PortResult<String> {
        #[derive(Deserialize)]
        struct User {
            login: String,
            #[serde(default)]
            is_admin: bool,
        }
        let answer = self.0.get(Purpose::Admin, &Path::new(["user"])).await?;
        if answer.status != StatusCode::OK {
            return Err(answer.refused().into());
        }
        let user: User = answer.json()?;
        if user.is_admin {
            return Ok(user.login);
        }
        let login = escaped(&user.login, 80);
        Err(GiteaError::Configuration(format!("{login} is no administrator; name one")).into())
    }

    async fn has_organisation(&self, name: &str) -> PortResult<bool> {
        Ok(self.has(&Path::new(["orgs", name])).await?)
    }

    async fn make_organisation(&self, name: &str) -> PortResult<()> {
        let body = json!({ "username": name, "visibility": "limited" });
        self.send(Method::POST, &Path::new(["orgs"]), &body).await?;
        Ok(())
    }

    async fn repository(&self, repo: &RepoName, branch: &BranchName) -> PortResult<RepositoryState> {
        Ok(self.found(repo, branch).await?)
    }

    async fn make_repository(&self, repo: &RepoName, branch: &BranchName) -> PortResult<()> {
        let body = json!({
            "name": repo.name(), "private": true, "auto_init": false, "default_branch": branch.as_str(),
        });
        self.send(Method::POST, &Path::new(["orgs", repo.org(), "repos"]), &body).await?;
        Ok(())
    }

    async fn put_first(
        &self,
        repo: &RepoName,
        branch: &BranchName,
        files: &[(RelPath, Vec<u8>)],
        message: &str,
    ) -> PortResult<()> {
        let answer = self.commit_files(repo, branch, files, message, "create").await?;
        match answer.status {
            StatusCode::CREATED => Ok(()),
            // There are files already: of somebody who was faster, or of an attempt that was not answered.
            StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY
                if self.is_unnoticed(repo, branch, message).await? =>
            {
                let again = self.commit_files(repo, branch, files, message, "upload").await?;
                if again.status == StatusCode::CREATED { Ok(()) } else { Err(not_committed(again).into()) }
            }
            StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY => Ok(()),
            _ => Err(not_committed(answer).into()),
        }
    }

    async fn has_account(&self, login: &str) -> PortResult<bool> {
        Ok(self.has(&Path::new(["users", login])).await?)
    }

    async fn make_account(&self, login: &str, password: &SecretString) -> PortResult<()> {
        let body = json!({
            "username": login,
            // Gitea wants an address; by RFC 2606 this one is nobody's.
            "email": format!("{login}@fabrique.invalid"),
            "password": password.expose_secret(),
            "must_change_password": false,
            "send_notify": false,
        });
        self.send(Method::POST, &Path::new(["admin", "users"]), &body).await?;
        Ok(())
    }

    async fn right(&self, repo: &RepoName, login: &str) -> PortResult<Right> {
        #[derive(Deserialize)]
        struct Given {
            permission: String,
        }
        let path = Path::repo(repo).then(["collaborators", login, "permission"]);
        let answer = self.0.get(Purpose::Admin, &path).await?;
        if answer.status != StatusCode::OK {
            return Err(not_done(answer).into());
        }
        Ok(match answer.json::<Given>()?.permission.as_str() {
            "none" => Right::None,
            "read" => Right::Read,
            "write" => Right::Write,
            "admin" | "owner" => Right::Admin,
            other => return Err(answer.unreadable(&format!("the permission {other}")).into()),
        })
    }

    async fn grant(&self, repo: &RepoName, login: &str, right: Right) -> PortResult<()> {
        let path = Path::repo(repo).then(["collaborators", login]);
        let permission = match right {
            Right::None => {
                let answer = self.0.send(Purpose::Admin, Method::DELETE, &path, None).await?;
                let gone = answer.status.is_success() || answer.status == StatusCode::NOT_FOUND;
                return if gone { Ok(()) } else { Err(answer.refused().into()) };
            }
            Right::Read => "read",
            Right::Write => "write",
            Right::Admin => "admin",
        };
        self.send(Method::PUT, &path, &json!({ "permission": permission })).await?;
        Ok(())
    }

    async fn try_token(&self, token: &SecretString) -> PortResult<TokenAnswer> {
        let text = token.expose_secret();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(TokenAnswer::Refused);
        }
        // Whatever it may do, who it belongs to is asked: without the scope for that it is a 403.
        let asking = self.0.by(Login::Token(token.clone()));
        let answer = asking.get(Purpose::Admin, &Path::new(["user"])).await?;
        match answer.status {
            StatusCode::OK | StatusCode::FORBIDDEN => Ok(TokenAnswer::Accepted),
            StatusCode::UNAUTHORIZED => Ok(TokenAnswer::Refused),
            _ => Err(answer.refused().into()),
        }
    }

    async fn make_token(&self, login: &str, name: &str, scopes: &[&str]) -> PortResult<SecretString> {
        #[derive(Deserialize)]
        struct Made {
            sha1: SecretString,
        }
        let answer =
            self.send(Method::POST, &tokens(login), &json!({ "name": name, "scopes": scopes })).await?;
        // What serde says about an answer may have parts of it.
        let made: Result<Made, GiteaError> = answer.json();
        Ok(made.map_err(|_| answer.unreadable(&"there is no token in it"))?.sha1)
    }

    async fn revoke_token(&self, login: &str, name: &str) -> PortResult<()> {
        let Some(id) = self.token_id(login, name).await? else { return Ok(()) };
        let path = tokens(login).then([id.to_string().as_str()]);
        let answer = self.0.send(Purpose::Admin, Method::DELETE, &path, None).await?;
        match answer.status {
            StatusCode::NO_CONTENT | StatusCode::NOT_FOUND => Ok(()),
            _ => Err(answer.refused().into()),
        }
    }
}

/// An administrator is refused a commit only where another push holds the branch, as that of an earlier attempt may.
fn not_committed(answer: Answer) -> GiteaError {
    match answer.status {
        StatusCode::FORBIDDEN => answer.overtaken(),
        _ => not_done(answer),
    }
}

/// Of what a look has just found, or missed: the next look tells what has become of it.
fn not_done(answer: Answer) -> GiteaError {
    match answer.status {
        StatusCode::NOT_FOUND | StatusCode::CONFLICT => answer.overtaken(),
        _ => answer.refused(),
    }
}

/// The head of the branch as git has it, whatever Gitea's database knows.
fn in_git(repo: &RepoName, branch: &BranchName) -> Path {
    Path::repo(repo).then(["git", "commits", branch.as_str()])
}

fn tokens(login: &str) -> Path {
    Path::new(["users", login, "tokens"])
}
