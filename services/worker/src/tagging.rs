//! The tags of an image: for people, and against the registry's garbage collection. Nothing is decided by them.

use std::sync::Arc;

use backon::Retryable as _;
use fabrique_core::app::App;
use fabrique_ports::PortError;

use crate::recording::patient;
use crate::session::Context;
use crate::writeback::Image;

/// Sets the tag that keeps the image from garbage collection, and the readable one. The first is worth some attempts,
/// and where they all fail the reconciler's; the other is for people only.
pub(crate) async fn tag(context: Arc<Context>, app: App, image: Image) {
    for (tag, otherwise) in [
        (image.key.keep_tag(), "the reconciler will set it"),
        (image.revision.short().to_owned(), "the image is known by its digest only"),
    ] {
        let set = || context.ports.registry.tag(&app.image, &image.digest, &tag);
        if let Err(error) = set.retry(patient()).when(PortError::transient).await {
            tracing::warn!(image = %app.image, tag, %error, "the tag was not set; {otherwise}");
        }
    }
}
