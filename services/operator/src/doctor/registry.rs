//! Registries: there, letting us read, and taking pushes.

use std::collections::{BTreeMap, BTreeSet};

use fabrique_core::id::ImageRepository;
use fabrique_observer::Apps;
use fabrique_ports::PortResult;
use fabrique_ports::registry::PushTrial;
use futures::future::join_all;
use futures::{StreamExt as _, stream};

use super::{Check, Doctor, Level};

/// A tag that nobody sets: asking for it shows whether the registry lets us read.
const NO_SUCH_TAG: &str = "fabrique-doctor";
/// How many pushes are tried at once at one registry.
const AT_ONCE: usize = 4;
/// How many repositories a finding names.
const NAMED: usize = 5;

pub(super) async fn registries(doctor: &Doctor, apps: Option<&Apps>) -> Vec<Check> {
    let configured = doctor.config.registries.iter().map(|registry| {
        let host = registry.split('/').next().unwrap_or(registry);
        (host.to_owned(), BTreeSet::new())
    });
    let mut hosts: BTreeMap<String, BTreeSet<ImageRepository>> = configured.collect();
    for app in apps.iter().flat_map(|apps| apps.registrations.apps.values()) {
        hosts.entry(app.image.registry().to_owned()).or_default().insert(app.image.clone());
    }
    let asked = hosts.into_iter().map(|(host, images)| registry(doctor, host, images.into_iter().collect()));
    join_all(asked).await.into_iter().flatten().collect()
}

async fn registry(doctor: &Doctor, host: String, images: Vec<ImageRepository>) -> Vec<Check> {
    let name = format!("registry {host}");
    let reads = reads(doctor, name.clone(), host.clone(), images.first().cloned());
    let reads = doctor.within(&name, reads).await;
    // One that does not let us read has said already what is wrong.
    if images.is_empty() || reads.level > Level::Ok {
        return vec![reads];
    }
    let name = format!("push {host}");
    let pushes = doctor.within(&name, pushes(doctor, name.clone(), images)).await;
    vec![reads, pushes]
}

/// Whether the registry answers, and lets us read the first of its images.
async fn reads(doctor: &Doctor, name: String, host: String, image: Option<ImageRepository>) -> Check {
    if let Err(error) = doctor.ports.registry.ping(&host).await {
        return Check::error(name, &error);
    }
    let Some(image) = image else {
        return Check::ok(name, "answers; no registered app pushes there yet");
    };
    match doctor.ports.registry.resolve(&image, NO_SUCH_TAG).await {
        Ok(_) => Check::ok(name, format!("answers and lets us read {image}")),
        Err(error) => Check::error(name, &error),
    }
}

/// Tries a push to as many of `images` as are to be tried.
async fn pushes(doctor: &Doctor, name: String, images: Vec<ImageRepository>) -> Check {
    let known = images.len();
    let tried: Vec<(ImageRepository, PortResult<PushTrial>)> =
        stream::iter(images.into_iter().take(doctor.config.bounds.pushes))
            .map(|image| async move {
                let trial = doctor.ports.registry.try_push(&image).await;
                (image, trial)
            })
            .buffered(AT_ONCE)
            .collect()
            .await;
    judge(&name, &tried, known)
}

/// `known` is how many repositories there are, tried or not.
fn judge(name: &str, tried: &[(ImageRepository, PortResult<PushTrial>)], known: usize) -> Check {
    let untried = match known.saturating_sub(tried.len()) {
        0 => String::new(),
        more => format!("; {more} more were not tried (doctor.pushes)"),
    };
    let refused: Vec<_> =
        tried.iter().filter_map(|(image, trial)| Some((image, trial.as_ref().err()?))).collect();
    if let Some((_, error)) = refused.first() {
        let images = named(refused.iter().map(|(image, _)| image.name()));
        let what = format!(
            "refuses {} of {} pushes tried, to {images}{untried}: {}",
            refused.len(),
            tried.len(),
            error.finding()
        );
        return Check { what, ..Check::error(name, error) };
    }
    let left: Vec<_> = tried
        .iter()
        .filter_map(|(image, trial)| match trial {
            Ok(PushTrial::Left(why)) => Some((image, why)),
            Ok(PushTrial::Cancelled) | Err(_) => None,
        })
        .collect();
    if let Some((_, why)) = left.first() {
        let images = named(left.iter().map(|(image, _)| image.name()));
        return Check::warn(
            name,
            format!(
                "takes pushes, but an upload that was begun could not be cancelled at {images}{untried}: {why}"
            ),
            "let the registry purge uploads that nobody finishes; behind a proxy, let it say where uploads go on as \
             its clients reach it",
        );
    }
    match tried {
        [] => Check::ok(name, format!("not tried{untried}")),
        [(image, _)] => Check::ok(name, format!("takes a push to {}{untried}", image.name())),
        several => Check::ok(name, format!("takes pushes to {} repositories{untried}", several.len())),
    }
}

fn named<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let names: Vec<&str> = names.take(NAMED).collect();
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use fabrique_ports::{Fault, Peer, PortError};

    use super::*;

    fn images(count: usize) -> Vec<ImageRepository> {
        (0..count).map(|n| ImageRepository::parse(&format!("registry:80/app-{n}")).unwrap()).collect()
    }

    fn judged(trials: Vec<PortResult<PushTrial>>, known: usize) -> Check {
        let tried: Vec<_> = images(trials.len()).into_iter().zip(trials).collect();
        judge("push registry:80", &tried, known)
    }

    fn refusal() -> PortResult<PushTrial> {
        Err(PortError::new(Peer::Registry, Fault::Denied, "no").remedy("let us in"))
    }

    #[test]
    fn a_push_that_is_taken_everywhere_is_well_and_says_how_many_were_not_tried() {
        assert_eq!(judged(vec![Ok(PushTrial::Cancelled)], 1).what, "takes a push to app-0");
        let some = judged(vec![Ok(PushTrial::Cancelled), Ok(PushTrial::Cancelled)], 5);
        assert_eq!(some.level, Level::Ok);
        assert_eq!(some.what, "takes pushes to 2 repositories; 3 more were not tried (doctor.pushes)");
    }

    #[test]
    fn one_refusal_among_many_fails_and_names_its_repository() {
        let check = judged(vec![Ok(PushTrial::Cancelled), refusal()], 2);
        assert_eq!(check.level, Level::Fail);
        assert_eq!(check.what, "refuses 1 of 2 pushes tried, to app-1: the registry: no");
        assert_eq!(check.remedy, "let us in");
        let many = judged((0..8).map(|_| refusal()).collect(), 8);
        assert!(many.what.contains("app-4 and 3 more"), "{}", many.what);
    }

    #[test]
    fn an_upload_that_cannot_be_cancelled_is_worth_a_warning() {
        let check = judged(vec![Ok(PushTrial::Left("405".to_owned()))], 1);
        assert_eq!(check.level, Level::Warn);
        assert!(check.what.ends_with("at app-0: 405") && !check.remedy.is_empty(), "{check:?}");
    }
}
