//! Webhooks delivered by hand, to see how they are answered: Gitea keeps that to itself.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

/// What Gitea sends for a push to a branch of a repository, as far as anybody may rely on it. The address in it leads
/// nowhere: nobody may clone from there.
#[must_use]
pub fn push(repo: &str, branch: &str, before: &str, after: &str) -> Value {
    let repository = json!({ "full_name": repo, "clone_url": "http://127.0.0.1:9/nowhere.git" });
    json!({ "ref": format!("refs/heads/{branch}"), "before": before, "after": after, "repository": repository })
}

/// What Gitea writes into `X-Gitea-Signature` of a delivery of this body.
///
/// # Errors
/// Never: HMAC takes secrets of any length.
pub fn signature(secret: &str, body: &[u8]) -> Result<String> {
    let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())?.chain_update(body);
    Ok(hex::encode(mac.finalize().into_bytes()))
}

/// The delivery of any body as a push, signed. Each has an id of its own, as what Gitea's button sends again has.
///
/// # Errors
/// Never: HMAC takes secrets of any length.
pub fn delivery(
    client: &reqwest::Client,
    url: &str,
    secret: &str,
    body: Vec<u8>,
) -> Result<reqwest::RequestBuilder> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let request = client
        .post(url)
        .header("content-type", "application/json")
        .header("x-gitea-event", "push")
        .header("x-gitea-delivery", format!("f6266f16-1bf3-46a5-9ea4-{number:012x}"))
        .header("x-gitea-signature", signature(secret, &body)?);
    Ok(request.body(body))
}
