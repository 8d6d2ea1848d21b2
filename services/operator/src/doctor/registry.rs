//! Registries: there, and letting us in.

use std::collections::BTreeMap;

use fabrique_core::id::ImageRepository;
use fabrique_observer::Apps;
use futures::future::join_all;

use super::{Check, Doctor};

/// A tag that nobody sets: asking for it shows whether the registry lets us read.
const NO_SUCH_TAG: &str = "fabrique-doctor";

pub(super) async fn registries(doctor: &Doctor, apps: Option<&Apps>) -> Vec<Check> {
    let configured = doctor.config.registries.iter().map(|registry| {
        let host = registry.split('/').next().unwrap_or(registry);
        (host.to_owned(), None)
    });
    let mut hosts: BTreeMap<String, Option<ImageRepository>> = configured.collect();
    for app in apps.iter().flat_map(|apps| apps.registrations.apps.values()) {
        hosts.insert(app.image.registry().to_owned(), Some(app.image.clone()));
    }
    let asked = hosts.into_iter().map(|(host, image)| async move {
        let name = format!("registry {host}");
        doctor.within(&name, registry(doctor, &name, &host, image)).await
    });
    join_all(asked).await
}

async fn registry(doctor: &Doctor, name: &str, host: &str, image: Option<ImageRepository>) -> Check {
    if let Err(error) = doctor.ports.registry.ping(host).await {
        return Check::error(name, &error);
    }
    let Some(image) = image else {
        return Check::ok(name, "answers; no registered app pushes there yet");
    };
    match doctor.ports.registry.resolve(&image, NO_SUCH_TAG).await {
        Ok(_) => Check::ok(
            name,
            format!("answers and lets us read {image}; whether it takes a push, the first build shows"),
        ),
        Err(error) => Check::error(name, &error),
    }
}
