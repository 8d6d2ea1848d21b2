//! What is in the registry, and what anybody who may write to it can do there.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::stage::Stage;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Every kind of manifest that a build may push.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json";

/// A manifest as the registry serves it.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// Its media type.
    pub media_type: String,
    /// Its bytes, as text.
    pub text: String,
    /// Its content.
    pub body: Value,
}

impl Stage {
    /// A manifest by tag or digest.
    ///
    /// # Errors
    /// When the registry does not have it.
    pub async fn manifest(&self, repository: &str, reference: &str) -> Result<Manifest> {
        let url = format!("{}/v2/{repository}/manifests/{reference}", self.bed.registry().base_url());
        let answer = client()?.get(url).header("Accept", MANIFESTS).send().await?.error_for_status()?;
        let media_type =
            answer.headers().get("Content-Type").context("no content type")?.to_str()?.to_owned();
        let text = answer.text().await?;
        Ok(Manifest { media_type, body: serde_json::from_str(&text)?, text })
    }

    /// The configuration blob of the image of one platform.
    ///
    /// # Errors
    /// When the registry does not have it.
    pub async fn image_config(&self, repository: &str, manifest: &Manifest) -> Result<Value> {
        let digest = manifest.body["config"]["digest"].as_str().context("no config in the manifest")?;
        Ok(serde_json::from_str(&self.blob(repository, digest).await?)?)
    }

    /// A blob, as text.
    ///
    /// # Errors
    /// When the registry does not have it.
    pub async fn blob(&self, repository: &str, digest: &str) -> Result<String> {
        let url = format!("{}/v2/{repository}/blobs/{digest}", self.bed.registry().base_url());
        Ok(client()?.get(url).send().await?.error_for_status()?.text().await?)
    }

    /// The manifest with another configuration, which is pushed; the manifest itself is not.
    ///
    /// # Errors
    /// When the registry refuses.
    pub async fn reconfigured(
        &self,
        repository: &str,
        manifest: &Manifest,
        config: String,
    ) -> Result<Manifest> {
        let mut body = manifest.body.clone();
        body["config"]["size"] = config.len().into();
        body["config"]["digest"] =
            self.bed.registry().put_blob(repository, config.into_bytes()).await?.into();
        Ok(Manifest { media_type: manifest.media_type.clone(), text: body.to_string(), body })
    }

    /// Deletes a manifest, with all tags on it, when it is named by its digest; else the tag alone.
    ///
    /// # Errors
    /// When the registry does not have it, or refuses.
    pub async fn delete_manifest(&self, repository: &str, reference: &str) -> Result<()> {
        let url = format!("{}/v2/{repository}/manifests/{reference}", self.bed.registry().base_url());
        client()?.delete(url).send().await?.error_for_status()?;
        Ok(())
    }

    /// Lets a tag point to a manifest, as anybody who may write to the registry can.
    ///
    /// # Errors
    /// When the registry refuses.
    pub async fn forge_tag(&self, repository: &str, tag: &str, manifest: &Manifest) -> Result<()> {
        let url = format!("{}/v2/{repository}/manifests/{tag}", self.bed.registry().base_url());
        let request = client()?.put(url).header("Content-Type", &manifest.media_type);
        request.body(manifest.text.clone()).send().await?.error_for_status()?;
        Ok(())
    }
}

/// A client without idle connections: each test has a runtime of its own, and a pooled connection dies with it.
fn client() -> Result<reqwest::Client> {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client.clone());
    }
    // Refused when the process has a provider already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().timeout(TIMEOUT).pool_max_idle_per_host(0).no_proxy().build()?;
    Ok(CLIENT.get_or_init(|| client).clone())
}
