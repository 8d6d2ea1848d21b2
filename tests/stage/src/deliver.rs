//! A webhook delivered by hand, to see its answer: Gitea keeps it to itself.

use anyhow::Result;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::stage::Stage;

impl Stage {
    /// Delivers what Gitea sends for a push to `main`, signed. Returns the status and the body.
    ///
    /// # Errors
    /// When the receiver does not answer.
    pub async fn deliver_push(&self, repo: &str, before: &str, after: &str) -> Result<(u16, String)> {
        let payload = json!({
            "ref": "refs/heads/main", "before": before, "after": after, "repository": { "full_name": repo },
        });
        self.deliver(&payload).await
    }

    async fn deliver(&self, payload: &Value) -> Result<(u16, String)> {
        let body = payload.to_string();
        let mac = Hmac::<Sha256>::new_from_slice(self.hook_secret().as_bytes())?.chain_update(&body);
        let client = reqwest::Client::builder().no_proxy().build()?;
        let request = client
            .post(self.hook_url())
            .header("content-type", "application/json")
            .header("x-gitea-event", "push")
            .header("x-gitea-delivery", "f6266f16-1bf3-46a5-9ea4-602e06ead473")
            .header("x-gitea-signature", hex::encode(mac.finalize().into_bytes()))
            .body(body);
        let answer = request.send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }
}
