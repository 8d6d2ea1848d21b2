//! Advancing the infra channel: a newer overlay, filled from the image that is deployed.

use fabrique_core::app::{App, Binding, Composition, DeployedImage, DeployedInfra, InfraFrom};
use fabrique_core::id::{Channel, Digest, EnvironmentName};
use fabrique_core::time::Timestamp;

use super::{Plan, Site, deploy_image};
use crate::binding::Drift;
use crate::changes::Changes;
use crate::message::{CommitMessage, Previous, Trailers};
use crate::overlay::{OverlayFiles, leftover_placeholder};
use crate::refusal::Refusal;
use crate::tree::Tree;
use crate::{binding, layout, placeholder};

/// Replaces the environment's files by `overlay`, which was read at `infra`, filled through the bindings
/// from the composition's present image.
///
/// The copied set is the whole directory `apps/<app>/<environment>/` but its composition: a file that the
/// overlay does not have is removed, also one that a person added. Files that people keep belong in the
/// overlay, or in an environment whose infra is `from: files`.
///
/// # Errors
/// [`Refusal::NotYet`] before the first image; [`Refusal::Held`]; [`Refusal::Drift`] when a person changed
/// a binding in the files that would be replaced; [`Refusal::BadFile`] when a placeholder of the app's
/// image is missing, doubled or where nothing fills it, and when a file is not there that the copy needs.
pub fn advance_infra(
    tree: &Tree,
    app: &App,
    environment: &EnvironmentName,
    overlay: &OverlayFiles,
    infra: &DeployedInfra,
    now: Timestamp,
) -> Plan {
    let site = Site::open(tree, app, environment)?;
    if matches!(site.environment.infra, InfraFrom::Files) {
        let what = "its manifests are kept in cluster/apps, no overlay is copied";
        return Err(site.not_yet(what, "declare infra: { from: head, repo, path } in app.yaml"));
    }
    if site.before.image.deployed.is_none() {
        let what = "no image is deployed, so the overlay's placeholders cannot be filled";
        return Err(site.not_yet(what, "the first build deploys one"));
    }
    let mut after = site.before.clone();
    after.infra.deployed = Some(infra.clone());
    after.infra.chart = None;

    let mut changes = copied(&site, overlay, infra, &after)?;
    site.write_composition(&mut changes, &after)?;

    let previous = site.before.infra.deployed.as_ref();
    let trailers = Trailers {
        channel: Some(Channel::Infra),
        source_revision: Some(infra.revision.clone()),
        previous: previous.map(|d| Previous::Revision(d.revision.clone())),
        ..site.trailers()
    };
    let subject = format!("Advance the infra of {} in {environment} to {}", app.name, infra.revision.short());
    let body = format!("{} {}", infra.overlay.repo, infra.overlay.path);
    let planned = site.finish(changes, &after, CommitMessage::new(&subject, &body, trailers))?;
    if planned.is_some() {
        site.refuse_held(Channel::Infra, now)?;
        refuse_drift_in_old_files(&site)?;
    }
    Ok(planned)
}

/// Whether the overlay could be copied into an environment that has none, once an image of the app is there.
///
/// # Errors
/// What the first [`advance_infra`] would be refused for. What keeps an image away is for [`deploy_image`] to tell.
pub fn fits(
    tree: &Tree,
    app: &App,
    environment: &EnvironmentName,
    overlay: &OverlayFiles,
    infra: &DeployedInfra,
    now: Timestamp,
) -> Result<(), Refusal> {
    let image = DeployedImage {
        repository: app.image.clone(),
        digest: Digest::of(infra.revision.as_str().as_bytes()),
        revision: infra.revision.clone(),
        version: None,
        build: None,
    };
    let Ok(Some(planned)) = deploy_image(tree, app, environment, &image, None, now) else { return Ok(()) };
    let Ok(deployed) = tree.apply(&planned.changes) else { return Ok(()) };
    advance_infra(&deployed, app, environment, overlay, infra, now).map(|_| ())
}

/// The copy, filled: everything that changes but the composition.
pub(super) fn copied(
    site: &Site<'_>,
    overlay: &OverlayFiles,
    infra: &DeployedInfra,
    after: &Composition,
) -> Result<Changes, Refusal> {
    let Site { tree, app, environment, directory, .. } = site;
    let mut changes = site.changes();
    let own = layout::composition_of(&app.name, &environment.name);
    for (path, _) in tree.below(directory).filter(|(path, _)| **path != own) {
        changes.remove(path.clone())?;
    }
    for (path, content) in overlay.iter() {
        changes.write(directory.join(path), content.clone())?;
    }
    fill(site, &mut changes, &environment.bindings, after)?;
    let placeholders = placeholder::find(tree, app, environment, &infra.overlay.path, &site.copy(&changes))?;
    if !placeholders.is_empty() {
        fill(site, &mut changes, &placeholders, after)?;
        let kept = placeholder::render(&app.name, &environment.name, &placeholders);
        changes.write(layout::placeholders_of(&app.name, &environment.name), kept)?;
    }
    if let Some(absent) = overlay.absent(&infra.overlay.path).into_iter().next() {
        return Err(absent.into());
    }
    let of_contract = placeholder::of_contract(tree)?;
    for (path, content) in changes.iter().filter_map(|(path, content)| Some((path, content?))) {
        if let Some(finding) = leftover_placeholder(path, content, (&app.name, &of_contract)) {
            return Err(finding.into());
        }
    }
    Ok(changes)
}

/// Writes the files of the copy in which `bindings` show `after`.
fn fill(
    site: &Site<'_>,
    changes: &mut Changes,
    bindings: &[Binding],
    after: &Composition,
) -> Result<(), Refusal> {
    let copied = site.tree.apply(changes)?;
    for (path, content) in binding::fill(bindings, &site.directory, after, &copied)? {
        changes.write(path, content)?;
    }
    Ok(())
}

/// A binding that a person changed in the copied files stops the advance that would silently undo it.
///
/// A pinned revision is moved by writing it into the composition: until the copy follows, the bindings of
/// the infra channel differ, and the copy is what makes them agree.
fn refuse_drift_in_old_files(site: &Site<'_>) -> Result<(), Refusal> {
    if site.awaits_overlay() {
        return Ok(());
    }
    let bindings = binding::known(site.tree, site.app, site.environment)?;
    let mut drifts = binding::readable_drift(site.tree, &site.directory, &bindings, &site.before);
    if matches!(site.environment.infra, InfraFrom::Pinned(_)) {
        let of_infra = |drift: &Drift| {
            let shows = |b: &Binding| site.directory.join(&b.file) == drift.file && b.path == drift.path;
            bindings.iter().any(|b| b.channel == Channel::Infra && shows(b))
        };
        drifts.retain(|drift| !of_infra(drift));
    }
    site.refuse_drift(drifts)
}
