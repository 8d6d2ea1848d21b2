//! A working copy for tests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::folder::Folder;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A clone in a temporary folder, driven through the git command line with a fixed identity and without the
/// machine's own git configuration. Credentials may stand in the URL: this is the test's side only.
#[derive(Debug)]
pub struct GitRepo {
    path: PathBuf,
    /// Removed with everything in it when the clone is dropped.
    _folder: Folder,
}

impl GitRepo {
    /// Clones all branches of `url` and checks out the default one.
    ///
    /// # Errors
    /// When git fails.
    pub async fn clone(url: &str) -> Result<Self> {
        let folder = Folder::create()?;
        let path = folder.path().join("work");
        run(folder.path(), &["clone", "--quiet", "--", url, "work"]).await?;
        Ok(Self { path, _folder: folder })
    }

    /// A repository of its own, without a commit, on the branch `main`.
    ///
    /// # Errors
    /// When git fails.
    pub async fn init() -> Result<Self> {
        let folder = Folder::create()?;
        let path = folder.path().join("work");
        run(folder.path(), &["init", "--quiet", "--initial-branch=main", "--", "work"]).await?;
        Ok(Self { path, _folder: folder })
    }

    /// The root of the working copy.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs any git command in the working copy and returns its standard output, trimmed.
    ///
    /// # Errors
    /// When git fails (its messages are in the error) or takes a minute.
    pub async fn git(&self, args: &[&str]) -> Result<String> {
        run(&self.path, args).await
    }

    /// Writes a file, making its folders.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn write(&self, path: &str, content: impl AsRef<[u8]>) -> Result<()> {
        let file = self.path.join(path);
        if let Some(parent) = file.parent() {
            tokio::fs::create_dir_all(parent).await?;
        }
        tokio::fs::write(&file, content).await.with_context(|| format!("writing {}", file.display()))
    }

    /// Reads a file of the working copy.
    ///
    /// # Errors
    /// When it cannot be read as text.
    pub async fn read(&self, path: &str) -> Result<String> {
        let file = self.path.join(path);
        tokio::fs::read_to_string(&file).await.with_context(|| format!("reading {}", file.display()))
    }

    /// Commits everything in the working copy, even when nothing changed, and returns the revision.
    ///
    /// # Errors
    /// When git fails.
    pub async fn commit(&self, message: &str) -> Result<String> {
        self.git(&["add", "--all"]).await?;
        self.git(&["commit", "--quiet", "--allow-empty", "--message", message]).await?;
        self.head().await
    }

    /// The revision that is checked out.
    ///
    /// # Errors
    /// When git fails.
    pub async fn head(&self) -> Result<String> {
        self.git(&["rev-parse", "HEAD"]).await
    }

    /// Pushes the current branch under its own name.
    ///
    /// # Errors
    /// When git fails or the push is refused.
    pub async fn push(&self) -> Result<()> {
        self.git(&["push", "--quiet", "origin", "HEAD"]).await.map(drop)
    }

    /// Pushes the current branch over whatever is there.
    ///
    /// # Errors
    /// When git fails or the push is refused.
    pub async fn push_force(&self) -> Result<()> {
        self.git(&["push", "--quiet", "--force", "origin", "HEAD"]).await.map(drop)
    }

    /// Fetches and moves the current branch to the remote one, losing local commits.
    ///
    /// # Errors
    /// When git fails.
    pub async fn pull(&self) -> Result<()> {
        self.git(&["fetch", "--quiet", "--prune", "origin"]).await?;
        self.git(&["reset", "--quiet", "--hard", "@{upstream}"]).await.map(drop)
    }

    /// Checks out a branch, made from the current revision when it is new.
    ///
    /// # Errors
    /// When git fails.
    pub async fn branch(&self, name: &str) -> Result<()> {
        if self.git(&["checkout", "--quiet", name, "--"]).await.is_ok() {
            return Ok(());
        }
        self.git(&["checkout", "--quiet", "-b", name, "--"]).await.map(drop)
    }

    /// Deletes a branch on the remote.
    ///
    /// # Errors
    /// When git fails or the deletion is refused.
    pub async fn delete_branch(&self, name: &str) -> Result<()> {
        self.git(&["push", "--quiet", "origin", "--delete", &format!("refs/heads/{name}")]).await.map(drop)
    }

    /// Tags the current revision and pushes the tag.
    ///
    /// # Errors
    /// When git fails or the push is refused.
    pub async fn tag(&self, name: &str) -> Result<()> {
        self.git(&["tag", "--", name]).await?;
        self.git(&["push", "--quiet", "origin", &format!("refs/tags/{name}")]).await.map(drop)
    }

    /// Deletes a tag on the remote.
    ///
    /// # Errors
    /// When git fails or the deletion is refused.
    pub async fn delete_tag(&self, name: &str) -> Result<()> {
        self.git(&["push", "--quiet", "origin", "--delete", &format!("refs/tags/{name}")]).await.map(drop)
    }

    /// Moves the current branch back by `commits`, locally; [`GitRepo::push_force`] shows it to the forge.
    ///
    /// # Errors
    /// When there are not that many.
    pub async fn rewind(&self, commits: u32) -> Result<()> {
        self.git(&["reset", "--quiet", "--hard", &format!("HEAD~{commits}")]).await.map(drop)
    }
}

async fn run(folder: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    command.args(args).current_dir(folder).kill_on_drop(true).stdin(std::process::Stdio::null());
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "Ada").env(format!("GIT_{role}_EMAIL"), "ada@example.org");
    }
    let what = format!("git {}", args.first().copied().unwrap_or_default());
    let output = tokio::time::timeout(TIMEOUT, command.output())
        .await
        .with_context(|| format!("{what} took over a minute"))?
        .with_context(|| format!("starting {what}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what} failed ({}): {}", output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
