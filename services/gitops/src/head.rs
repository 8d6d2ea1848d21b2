//! What each environment of an app shows at the head of `cluster/apps`, in plain values.

use fabrique_core::app::{App, Composition};
use fabrique_core::id::EnvironmentName;

use crate::binding::{self, Drift};
use crate::composition;
use crate::refusal::Refusal;
use crate::tree::Tree;

/// One environment as its files show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentHead {
    /// The environment.
    pub environment: EnvironmentName,
    /// Its composition; one in which nothing is deployed when there is none yet.
    pub composition: Result<Composition, Refusal>,
    /// How its bindings stand to the composition.
    pub bindings: Bindings,
}

/// How the bindings of an environment stand to its composition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bindings {
    /// All that have a value show it.
    Agree,
    /// They do not exist yet: the overlay was not copied.
    AwaitOverlay,
    /// These show something else.
    Drift(Vec<Drift>),
    /// It cannot be told: a place is missing or ambiguous, a file unreadable.
    Broken(Refusal),
}

impl EnvironmentHead {
    /// Why nothing may be written here, for people; nothing when all is well.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        if let Err(refusal) = &self.composition {
            return Some(refusal.to_string());
        }
        match &self.bindings {
            Bindings::Agree | Bindings::AwaitOverlay => None,
            Bindings::Drift(drifts) => {
                Some(drifts.iter().map(Drift::to_string).collect::<Vec<_>>().join("; "))
            }
            Bindings::Broken(refusal) => Some(refusal.to_string()),
        }
    }
}

/// Looks at every environment of `app`, in the order of its registration. Read-only.
#[must_use]
pub fn observe(tree: &Tree, app: &App) -> Vec<EnvironmentHead> {
    app.environments
        .iter()
        .map(|environment| {
            let composition = composition::load(tree, app, &environment.name)
                .map(|found| found.unwrap_or_else(|| composition::empty(&app.name, &environment.name)));
            let bindings = match &composition {
                Err(refusal) => Bindings::Broken(refusal.clone()),
                Ok(composition) if binding::awaits_overlay(tree, app, environment, composition) => {
                    Bindings::AwaitOverlay
                }
                Ok(_) => match binding::drift(tree, app, environment) {
                    Ok(drifts) if drifts.is_empty() => Bindings::Agree,
                    Ok(drifts) => Bindings::Drift(drifts),
                    Err(refusal) => Bindings::Broken(refusal),
                },
            };
            EnvironmentHead { environment: environment.name.clone(), composition, bindings }
        })
        .collect()
}
