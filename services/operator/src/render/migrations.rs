//! What is run before the syncs of deployed images.

use fabrique_core::id::RelPath;
use fabrique_declarations::Contract;
use fabrique_gitops::render::Settings;
use fabrique_gitops::{Finding, Registrations, Tree, composition};
use fabrique_observer::migrations::rendered_at;

use crate::declared::Ports;
use crate::error::OperatorError;

/// The files as they should be, and what a person has to mend.
pub(super) type Migrations = (Vec<(RelPath, String)>, Vec<Finding>);

/// Those of every environment in which an image is deployed, at its revision.
///
/// # Errors
/// When a source cannot be read.
pub(super) async fn all(
    tree: &Tree,
    registrations: &Registrations,
    contract: Option<&Contract>,
    ports: &Ports,
    settings: &Settings,
) -> Result<Migrations, OperatorError> {
    let (mut files, mut findings) = (Vec::new(), Vec::new());
    let Some(contract) = contract else { return Ok((files, findings)) };
    for app in registrations.apps.values().filter(|app| app.source.migrations.is_some()) {
        for environment in &app.environments {
            // A composition that cannot be read is told with its Application.
            let Ok(Some(composition)) = composition::load(tree, app, &environment.name) else { continue };
            let Some(image) = composition.image.deployed else { continue };
            let known = (registrations, contract);
            let (source, place) = (ports.source.as_ref(), (app, &environment.name));
            match rendered_at(source, &image.revision, tree, known, place, settings).await? {
                Ok(file) => files.extend(file),
                Err(finding) => findings.push(finding),
            }
        }
    }
    Ok((files, findings))
}
