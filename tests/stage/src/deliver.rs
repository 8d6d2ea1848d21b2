//! A webhook delivered by hand, to see its answer: Gitea keeps it to itself.

use anyhow::Result;
use fabrique_bed::webhook;

use crate::stage::Stage;

impl Stage {
    /// Delivers what Gitea sends for a push to `main`, signed. Returns the status and the body.
    ///
    /// # Errors
    /// When the receiver does not answer.
    pub async fn deliver_push(&self, repo: &str, before: &str, after: &str) -> Result<(u16, String)> {
        let push = webhook::push(repo, "main", before, after);
        self.deliver(self.hook_secret(), push.to_string().into_bytes()).await
    }

    /// The same to any receiver of the stage, for any branch.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn deliver_push_to(
        &self,
        url: &str,
        repo: &str,
        branch: &str,
        after: &str,
    ) -> Result<(u16, String)> {
        let push = webhook::push(repo, branch, &"0".repeat(40), after);
        deliver(url, self.hook_secret(), push.to_string().into_bytes()).await
    }

    /// Delivers any body, signed with any secret, as a push. Returns the status and the body of the answer.
    ///
    /// # Errors
    /// When the receiver does not answer.
    pub async fn deliver(&self, secret: &str, body: Vec<u8>) -> Result<(u16, String)> {
        deliver(&self.hook_url(), secret, body).await
    }
}

async fn deliver(url: &str, secret: &str, body: Vec<u8>) -> Result<(u16, String)> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let answer = webhook::delivery(&client, url, secret, body)?.send().await?;
    Ok((answer.status().as_u16(), answer.text().await?))
}
