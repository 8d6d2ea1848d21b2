//! The port, in terms of requests.

use async_trait::async_trait;
use bytes::Bytes;
use fabrique_core::id::{Digest, ImageRepository};
use fabrique_ports::PortResult;
use fabrique_ports::registry::Registry;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, Response, StatusCode};

use crate::client::{Ask, MANIFEST_LIMIT, Registries, read};
use crate::config::RegistryConfig;
use crate::error::RegistryError;
use crate::media;

const DIGEST: &str = "docker-content-digest";

/// Every registry that image names can point to.
#[derive(Debug)]
pub struct OciRegistry {
    pub(crate) registries: Registries,
}

/// A manifest or index as it is stored.
#[derive(Debug)]
struct Manifest {
    bytes: Bytes,
    media_type: String,
}

impl OciRegistry {
    /// Makes the http client.
    ///
    /// # Errors
    /// [`RegistryError::Client`].
    pub fn new(config: RegistryConfig) -> Result<Self, RegistryError> {
        Ok(Self { registries: Registries::new(config)? })
    }

    async fn digest_of_tag(
        &self,
        image: &ImageRepository,
        tag: &str,
    ) -> Result<Option<Digest>, RegistryError> {
        check_tag(tag)?;
        let answer = self.get(Method::HEAD, image, tag).await?;
        let Some(answer) = found(image, answer)? else { return Ok(None) };
        if let Some(digest) = digest_header(&answer) {
            return Ok(Some(digest));
        }
        // The header is optional; the content is not.
        let answer = self.get(Method::GET, image, tag).await?;
        let Some(answer) = found(image, answer)? else { return Ok(None) };
        let manifest = manifest(image, answer).await?;
        Ok(Some(Digest::of(&manifest.bytes)))
    }

    async fn has_manifest(&self, image: &ImageRepository, digest: &Digest) -> Result<bool, RegistryError> {
        let answer = self.get(Method::HEAD, image, digest.as_str()).await?;
        let Some(answer) = found(image, answer)? else { return Ok(false) };
        match digest_header(&answer) {
            Some(told) if told == *digest => Ok(true),
            Some(told) => Err(wrong(image, digest, told.to_string())),
            None => Ok(self.manifest(image, digest).await?.is_some()),
        }
    }

    async fn set_tag(
        &self,
        image: &ImageRepository,
        digest: &Digest,
        tag: &str,
    ) -> Result<(), RegistryError> {
        check_tag(tag)?;
        let manifest = self.manifest(image, digest).await?;
        let manifest = manifest
            .ok_or_else(|| RegistryError::NoManifest { image: image.to_string(), digest: digest.clone() })?;
        let stored = Some((manifest.bytes, manifest.media_type));
        let ask = Ask { method: Method::PUT, image, reference: tag, manifest: stored };
        let answer = self.registries.ask(&ask).await?;
        if !answer.status().is_success() {
            return Err(odd(image, format!("{} to the tag {tag}", answer.status())));
        }
        match digest_header(&answer) {
            Some(told) if told != *digest => Err(wrong(image, digest, told.to_string())),
            Some(_) | None => Ok(()),
        }
    }

    /// A manifest by digest, checked against it.
    async fn manifest(
        &self,
        image: &ImageRepository,
        digest: &Digest,
    ) -> Result<Option<Manifest>, RegistryError> {
        let answer = self.get(Method::GET, image, digest.as_str()).await?;
        let Some(answer) = found(image, answer)? else { return Ok(None) };
        let manifest = manifest(image, answer).await?;
        let content = Digest::of(&manifest.bytes);
        if content == *digest { Ok(Some(manifest)) } else { Err(wrong(image, digest, content.to_string())) }
    }

    async fn get(
        &self,
        method: Method,
        image: &ImageRepository,
        reference: &str,
    ) -> Result<Response, RegistryError> {
        self.registries.ask(&Ask { method, image, reference, manifest: None }).await
    }
}

#[async_trait]
impl Registry for OciRegistry {
    async fn has(&self, image: &ImageRepository, digest: &Digest) -> PortResult<bool> {
        Ok(self.has_manifest(image, digest).await?)
    }

    async fn resolve(&self, image: &ImageRepository, tag: &str) -> PortResult<Option<Digest>> {
        Ok(self.digest_of_tag(image, tag).await?)
    }

    async fn tag(&self, image: &ImageRepository, digest: &Digest, tag: &str) -> PortResult<()> {
        Ok(self.set_tag(image, digest, tag).await?)
    }

    async fn ping(&self, host: &str) -> PortResult<()> {
        Ok(self.registries.ping(host).await?)
    }
}

/// The answer, if it is a manifest or index; nothing for 404.
fn found(image: &ImageRepository, answer: Response) -> Result<Option<Response>, RegistryError> {
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Ok(None),
        status => return Err(odd(image, format!("{status} about a manifest"))),
    }
    let media_type = media_type(&answer);
    if media::is_image(&media_type) {
        Ok(Some(answer))
    } else {
        Err(odd(
            image,
            format!("a manifest of the media type {:?}", media_type.chars().take(80).collect::<String>()),
        ))
    }
}

async fn manifest(image: &ImageRepository, answer: Response) -> Result<Manifest, RegistryError> {
    let media_type = media_type(&answer);
    let bytes = read(image.registry(), answer, MANIFEST_LIMIT).await?;
    Ok(Manifest { bytes, media_type })
}

fn media_type(answer: &Response) -> String {
    let header = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    header.unwrap_or_default().to_owned()
}

fn digest_header(answer: &Response) -> Option<Digest> {
    let header = answer.headers().get(DIGEST)?.to_str().ok()?;
    Digest::parse(header).ok()
}

fn wrong(image: &ImageRepository, digest: &Digest, found: String) -> RegistryError {
    RegistryError::WrongContent { image: image.to_string(), digest: digest.clone(), found }
}

fn odd(image: &ImageRepository, what: String) -> RegistryError {
    RegistryError::Odd { host: image.registry().to_owned(), what }
}

/// The rule of the distribution specification: `[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}`.
fn check_tag(tag: &str) -> Result<(), RegistryError> {
    let valid = tag.len() <= 128
        && tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    if valid { Ok(()) } else { Err(RegistryError::BadTag(tag.chars().take(80).collect())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_follows_the_specification() {
        for good in ["1b1ddb30aa2f", "key-0a", "_x", "v1.2", &"a".repeat(128)] {
            assert!(check_tag(good).is_ok(), "{good}");
        }
        for bad in
            ["", ".", "..", "-x", "a/b", "a:b", "a@b", "../../x", "a b", "a\n", "é", "%2e", &"a".repeat(129)]
        {
            assert!(check_tag(bad).is_err(), "{bad}");
        }
    }
}
