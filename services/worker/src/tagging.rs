//! The tags of an image: for people, and against the registry's garbage collection. Nothing is decided by them.

use std::sync::Arc;

use backon::Retryable as _;
use fabrique_core::app::App;
use fabrique_core::id::Digest;
use fabrique_gitops::composition;
use fabrique_observer::Apps;
use fabrique_ports::PortResult;
use fabrique_ports::{PortError, registry::Registry};

use crate::recording::patient;
use crate::session::Context;
use crate::writeback::Image;

/// Sets the tag that keeps the image from garbage collection, and the readable one. The first is worth some attempts,
/// and where they all fail the reconciler's; the other is for people only.
pub(crate) async fn tag(context: Arc<Context>, app: App, image: Image) {
    let registry = context.ports.registry.as_ref();
    let apps = context.apps.last_read();
    let shown = |digest: &Digest| apps.as_ref().is_some_and(|apps| shows(apps, &app, digest));
    let keep = || keep(registry, &app, &image, &shown);
    if let Err(error) = keep.retry(patient()).when(PortError::transient).await {
        let key = &image.key;
        tracing::warn!(image = %app.image, %key, %error, "the tag that keeps it was not set; the reconciler will set it");
    }
    let tag = image.revision.short();
    let set = || registry.tag(&app.image, &image.digest, tag);
    if let Err(error) = set.retry(patient()).when(PortError::transient).await {
        tracing::warn!(image = %app.image, tag, %error, "the tag was not set; the image is known by its digest only");
    }
}

/// Keeps the image by its key's tag, or by one of its own where that keeps another image that is deployed.
async fn keep(
    registry: &dyn Registry,
    app: &App,
    image: &Image,
    shown: impl Fn(&Digest) -> bool,
) -> PortResult<()> {
    let of_key = image.key.keep_tag();
    let tag = match registry.resolve(&app.image, &of_key).await? {
        Some(kept) if kept == image.digest => return Ok(()),
        Some(kept) if shown(&kept) => image.key.keep_tag_beside(&image.digest),
        Some(_) | None => of_key,
    };
    registry.tag(&app.image, &image.digest, &tag).await
}

/// Whether a composition of the app has this image. One that cannot be read may have it.
fn shows(apps: &Apps, app: &App, digest: &Digest) -> bool {
    app.environments.iter().any(|environment| match composition::load(&apps.tree, app, &environment.name) {
        Ok(composition) => {
            composition.and_then(|it| it.image.deployed).is_some_and(|deployed| deployed.digest == *digest)
        }
        Err(_) => true,
    })
}
