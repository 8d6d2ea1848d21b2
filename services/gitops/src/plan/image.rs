//! Deploying an image: the composition and every binding of the image channel, in one commit.

use fabrique_core::app::{App, DeployedImage, Hold};
use fabrique_core::id::{BuildKey, Channel, EnvironmentName};
use fabrique_core::time::Timestamp;

use super::hold::cleaned;
use super::{Plan, Site};
use crate::message::{CommitMessage, Previous, Trailers};
use crate::tree::Tree;

/// Deploys `image`, built under `key`, at the moment `now` (which decides whether a hold is over).
///
/// Nothing is planned when the composition already shows this repository, digest and revision. While the
/// environment waits for its first overlay, only the composition is written.
///
/// # Errors
/// [`Refusal::Held`](crate::Refusal::Held); [`Refusal::Drift`](crate::Refusal::Drift) when a binding does not show what the composition says *before*
/// (before the first deployment it may show anything); whatever is wrong with a file or a binding.
pub fn deploy_image(
    tree: &Tree,
    app: &App,
    environment: &EnvironmentName,
    image: &DeployedImage,
    key: Option<&BuildKey>,
    now: Timestamp,
) -> Plan {
    let site = Site::open(tree, app, environment)?;
    if !same(site.before.image.deployed.as_ref(), image) {
        site.refuse_held(Channel::Image, now)?;
    }
    let subject = format!("Deploy {} {} to {environment}", app.name, image.revision.short());
    put(&site, image, key, None, &subject)
}

/// Puts `image` back by a person's word and holds the channel with it, in one commit, so that no
/// automatic deployment comes between the two. A hold that is there is replaced.
///
/// # Errors
/// As [`deploy_image`], without [`Refusal::Held`](crate::Refusal::Held).
pub fn roll_back(
    tree: &Tree,
    app: &App,
    environment: &EnvironmentName,
    image: &DeployedImage,
    hold: &Hold,
) -> Plan {
    let site = Site::open(tree, app, environment)?;
    let subject = format!("Roll back {} to {} in {environment}", app.name, image.revision.short());
    put(&site, image, None, Some(cleaned(hold)?), &subject)
}

/// A build that gives a known digest for a known revision is no news.
fn same(deployed: Option<&DeployedImage>, image: &DeployedImage) -> bool {
    deployed.is_some_and(|d| {
        d.repository == image.repository && d.digest == image.digest && d.revision == image.revision
    })
}

fn put(
    site: &Site<'_>,
    image: &DeployedImage,
    key: Option<&BuildKey>,
    hold: Option<Hold>,
    subject: &str,
) -> Plan {
    let bound = !site.awaits_overlay();
    if bound {
        site.refuse_drift(site.drift(site.tree, &site.before)?)?;
    }
    let mut after = site.before.clone();
    if !same(after.image.deployed.as_ref(), image) {
        after.image.deployed = Some(image.clone());
    }
    let mut body = image.repository.at(&image.digest);
    if let Some(hold) = hold {
        body.push_str(&format!("\n\nHeld by {}: {}", hold.by, hold.reason));
        after.image.hold = Some(hold);
    }
    if after == site.before {
        return Ok(None);
    }
    let mut changes = site.changes();
    site.write_composition(&mut changes, &after)?;
    if bound {
        site.write_bindings(&mut changes, &after, Some(Channel::Image))?;
    }
    let trailers = Trailers {
        channel: Some(Channel::Image),
        source_revision: Some(image.revision.clone()),
        image: Some(image.repository.clone()),
        digest: Some(image.digest.clone()),
        previous: site.before.image.deployed.as_ref().map(|d| Previous::Digest(d.digest.clone())),
        build_id: image.build.clone(),
        build_key: key.cloned(),
        ..site.trailers()
    };
    site.finish(changes, &after, CommitMessage::new(subject, &body, trailers))
}
