//! Following a composition that a person edited.

use fabrique_core::app::{App, DeployedInfra};
use fabrique_core::id::EnvironmentName;

use super::{Plan, Planned, Site, infra};
use crate::message::CommitMessage;
use crate::overlay::OverlayFiles;
use crate::refusal::Refusal;
use crate::tree::Tree;
use crate::{binding, composition, layout};

/// What an edited composition left behind: its bindings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lag {
    /// Whether another image is asked for, and what that needs.
    pub image: bool,
    /// Where the copy of the overlay is wanted from, when that is left behind too.
    pub copy: Option<DeployedInfra>,
}

/// Whether the files of an environment show what its composition was `then`, when one of them changed last, and the
/// composition says something else now: so a person edited the composition alone. Nothing when a person edited a file, and
/// when the composition was no composition then: it says nothing of what the files were to show.
///
/// # Errors
/// Whatever is wrong with a file.
pub fn lag(
    tree: &Tree,
    app: &App,
    environment: &EnvironmentName,
    then: &[u8],
) -> Result<Option<Lag>, Refusal> {
    let site = Site::open(tree, app, environment)?;
    if site.awaits_overlay() {
        return Ok(None);
    }
    let path = layout::composition_of(&app.name, environment);
    let Ok(then) = composition::parse(&path, then, &app.name, environment) else { return Ok(None) };
    let now = &site.before;
    let said = |composition: &fabrique_core::app::Composition| {
        let infra = &composition.infra;
        (composition.image.deployed.clone(), infra.deployed.clone(), infra.chart.clone())
    };
    if said(now) == said(&then) || !site.drift(tree, &then)?.is_empty() {
        return Ok(None);
    }
    let wanted = now.infra.deployed.as_ref().filter(|_| site.environment.infra.overlay().is_some());
    Ok(Some(Lag {
        image: now.image.deployed != then.image.deployed,
        copy: wanted.filter(|wanted| then.infra.deployed.as_ref() != Some(*wanted)).cloned(),
    }))
}

/// Makes every file of the environment show what its composition says, by a person's word: with `overlay`, which was
/// read where the composition says, the copy too.
///
/// # Errors
/// Whatever is wrong with a file, a binding or the overlay.
pub fn follow(tree: &Tree, app: &App, environment: &EnvironmentName, overlay: Option<&OverlayFiles>) -> Plan {
    let site = Site::open(tree, app, environment)?;
    let changes = match (overlay, &site.before.infra.deployed) {
        (Some(overlay), Some(wanted)) => infra::copied(&site, overlay, wanted, &site.before)?,
        (Some(_) | None, Some(_) | None) => {
            let mut changes = site.changes();
            site.write_bindings(&mut changes, &site.before, None)?;
            changes
        }
    };
    let subject = format!("Follow the composition of {} in {environment}", app.name);
    let message = message(&site, &subject, &site.drift(tree, &site.before).unwrap_or_default());
    site.finish(changes, &site.before, message)
}

/// A commit for what comes along with it: the files of the environment show the composition, and the Application does
/// not.
///
/// # Errors
/// Whatever is wrong with a file.
pub fn follow_with_nothing(
    tree: &Tree,
    app: &App,
    environment: &EnvironmentName,
) -> Result<Planned, Refusal> {
    let site = Site::open(tree, app, environment)?;
    let subject = format!("Bring what is rendered for {} in {environment} into line", app.name);
    Ok(Planned { changes: site.changes(), message: message(&site, &subject, &[]) })
}

fn message(site: &Site<'_>, subject: &str, drifts: &[binding::Drift]) -> CommitMessage {
    let body: Vec<String> = drifts.iter().map(ToString::to_string).collect();
    CommitMessage::new(subject, &body.join("\n"), site.trailers())
}
