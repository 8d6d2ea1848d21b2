//! Whether a registry takes a push: an upload that is begun and cancelled.
//!
//! After that the registry knows no upload any more. The files of distribution 3.1 are another matter: it writes down,
//! after it has removed everything, how far it had hashed, which is some hundred bytes.

use async_trait::async_trait;
use fabrique_core::id::ImageRepository;
use fabrique_ports::PortResult;
use fabrique_ports::registry::{PushTrial, RegistryInspection};
use reqwest::header::{CONTENT_LENGTH, LOCATION};
use reqwest::{Response, StatusCode};
use url::Url;

use crate::client::{PUSH, sorted};
use crate::error::RegistryError;
use crate::registry::OciRegistry;

#[async_trait]
impl RegistryInspection for OciRegistry {
    async fn try_push(&self, image: &ImageRepository) -> PortResult<PushTrial> {
        let begun = self.begin_upload(image).await?;
        Ok(match self.upload_at(image, &begun) {
            Ok(place) => self.cancel_upload(image, place).await,
            Err(why) => PushTrial::Left(why),
        })
    }
}

impl OciRegistry {
    async fn begin_upload(&self, image: &ImageRepository) -> Result<Response, RegistryError> {
        let host = image.registry();
        let url = format!("{}/v2/{}/blobs/uploads/", self.registries.base(host), image.name());
        // Some registries insist on the length of nothing.
        let build = || self.registries.http().post(&url).header(CONTENT_LENGTH, "0");
        let answer = self.registries.admitted(image, PUSH, build).await?;
        let answer = sorted(host, answer, || format!("a push to {image}"))?;
        match answer.status() {
            StatusCode::ACCEPTED => Ok(answer),
            status @ (StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => Err(RegistryError::NoPush {
                host: host.to_owned(),
                status: status.as_u16(),
                image: image.to_string(),
            }),
            status => Err(RegistryError::Odd {
                host: host.to_owned(),
                what: format!("{status} to the beginning of a push to {image}"),
            }),
        }
    }

    /// Where the upload goes on, or why it is not followed there: credentials stay with the registry that they are for.
    fn upload_at(&self, image: &ImageRepository, begun: &Response) -> Result<Url, String> {
        let root = Url::parse(&self.registries.base(image.registry()))
            .map_err(|_| format!("{} is no host", image.registry()))?;
        let place = begun.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let place = place.ok_or("it does not say where uploads go on")?;
        let place = root.join(place).map_err(|_| "where it says that uploads go on is no URL")?;
        if place.origin() == root.origin() {
            return Ok(place);
        }
        let there = place.origin().ascii_serialization();
        Err(format!("uploads go on at {there}, not at {}", root.origin().ascii_serialization()))
    }

    async fn cancel_upload(&self, image: &ImageRepository, place: Url) -> PushTrial {
        let build = || self.registries.http().delete(place.clone());
        match self.registries.admitted(image, PUSH, build).await.map(|answer| answer.status()) {
            // One that is gone already needs no end.
            Ok(status) if status.is_success() || status == StatusCode::NOT_FOUND => PushTrial::Cancelled,
            Ok(status) => PushTrial::Left(format!("it answered {status} to the upload's end")),
            Err(error) => PushTrial::Left(error.to_string()),
        }
    }
}
