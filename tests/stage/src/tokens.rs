//! Tokens that are taken away and given back, and secrets that are rotated.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::stage::{DEPLOYER, Fabrique, REPORTER, Stage, WRITES};

/// Gitea lets a user's own password alone list and delete tokens.
const PASSWORD: &str = "only-for-the-test-bed-0";

impl Stage {
    /// Revokes every token of the user that writes to `cluster/apps`.
    ///
    /// # Errors
    /// When Gitea refuses, or there is none.
    pub async fn revoke_apps_token(&self) -> Result<()> {
        let gitea = self.bed.gitea();
        let user = json!({ "login_name": DEPLOYER, "source_id": 0, "password": PASSWORD });
        gitea.api("PATCH", &format!("/admin/users/{DEPLOYER}"), Some(user)).await?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        let tokens = format!("{}/api/v1/users/{DEPLOYER}/tokens", gitea.base_url());
        let listed = client.get(&tokens).basic_auth(DEPLOYER, Some(PASSWORD)).send().await?;
        let listed: Value = listed.error_for_status()?.json().await?;
        let ids: Vec<i64> =
            listed.as_array().into_iter().flatten().filter_map(|token| token["id"].as_i64()).collect();
        ensure!(!ids.is_empty(), "{DEPLOYER} has no token: {listed}");
        for id in ids {
            let delete = client.delete(format!("{tokens}/{id}")).basic_auth(DEPLOYER, Some(PASSWORD));
            delete.send().await?.error_for_status()?;
        }
        Ok(())
    }

    /// Gives a process, and the commands for people, a new token for `cluster/apps`; both read it at their next
    /// start.
    ///
    /// # Errors
    /// When Gitea refuses, or a file cannot be written.
    pub async fn renew_apps_token(&self, fabrique: &Fabrique) -> Result<()> {
        let token = self.bed.gitea().create_token(DEPLOYER, &WRITES).await?;
        for beside in [fabrique.peer.log_path(), self.config()] {
            let folder = beside.parent().context("a file without a folder")?;
            std::fs::write(folder.join("apps-token"), &token)?;
        }
        Ok(())
    }

    /// Gives a process, and the commands for people, other secrets of the webhook; both read them at their next
    /// start.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn rotate_hook_secret(&self, fabrique: &Fabrique, secret: &str, next: Option<&str>) -> Result<()> {
        for beside in [fabrique.peer.log_path(), self.config()] {
            let folder = beside.parent().context("a file without a folder")?;
            std::fs::write(folder.join("webhook-secret"), secret)?;
            let next_file = folder.join("next-webhook-secret");
            let config = folder.join("fabrique.yaml");
            let text = std::fs::read_to_string(&config)?;
            let mut lines: Vec<String> =
                text.lines().filter(|line| !line.contains("next_secret_file:")).map(str::to_owned).collect();
            if let Some(next) = next {
                std::fs::write(&next_file, next)?;
                let receiver = lines.iter().position(|line| line == "receiver:").context("no receiver")?;
                lines.insert(receiver + 1, format!("  next_secret_file: {}", next_file.display()));
            }
            std::fs::write(config, lines.join("\n") + "\n")?;
        }
        Ok(())
    }

    /// Gives the user that writes to `cluster/apps` the right to, or leaves it the right to read.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn allow_writing_apps(&self, allowed: bool) -> Result<()> {
        let right = if allowed { "write" } else { "read" };
        self.bed.gitea().add_collaborator("cluster", "apps", DEPLOYER, right).await
    }

    /// Gives the user that sets commit statuses on a repository in `atlas` the right to, or leaves it the right to
    /// read.
    ///
    /// # Errors
    /// When Gitea refuses.
    pub async fn allow_statuses(&self, repo: &str, allowed: bool) -> Result<()> {
        let right = if allowed { "write" } else { "read" };
        self.bed.gitea().add_collaborator("atlas", repo, REPORTER, right).await
    }
}
