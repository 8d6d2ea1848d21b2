//! What this crate says when it does not do what it was asked.

use std::fmt;

use fabrique_core::id::{AppName, Channel, EnvironmentName, RelPath};
use fabrique_yaml::Finding;

use crate::binding::Drift;

/// Why a change to `cluster/apps` was not planned. Nothing is ever written together with a refusal, and
/// the same question on the same tree is refused again: it waits for a person, or for another commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A person holds the channel.
    #[error(
        "{app}/{environment}: the {channel} channel is held by {by} ({reason}); run `fabrique release {app}` to let it move"
    )]
    Held {
        /// The app.
        app: AppName,
        /// The environment.
        environment: EnvironmentName,
        /// The held channel.
        channel: Channel,
        /// Who holds it.
        by: String,
        /// Why.
        reason: String,
    },

    /// Bindings do not show what the composition says: a person changed them, and a person decides.
    #[error("{app}/{environment}: {}; run `fabrique repair {app}` to rewrite them from the composition, or revert the edit", Listed(.drifts))]
    Drift {
        /// The app.
        app: AppName,
        /// The environment.
        environment: EnvironmentName,
        /// Each binding that differs; never empty.
        drifts: Vec<Drift>,
    },

    /// Something has to happen first.
    #[error("{app}/{environment}: {what}; {remedy}")]
    NotYet {
        /// The app.
        app: AppName,
        /// The environment.
        environment: EnvironmentName,
        /// What is missing.
        what: String,
        /// What makes it come.
        remedy: String,
    },

    /// The app has no such environment.
    #[error(
        "{app} has no environment {environment}; declare it under spec.environments of apps/{app}/app.yaml"
    )]
    NoEnvironment {
        /// The app.
        app: AppName,
        /// The missing environment.
        environment: EnvironmentName,
    },

    /// A file cannot be used as it is.
    #[error("{0}")]
    BadFile(Box<Finding>),

    /// A binding's path leads nowhere.
    #[error("{file}: nothing at {path}: {found}; correct the file, or the binding in app.yaml")]
    BindingNotFound {
        /// The file, from the root of `cluster/apps`.
        file: RelPath,
        /// The binding's path.
        path: String,
        /// How far it leads, and what is near.
        found: String,
    },

    /// A binding's path leads to several places.
    #[error("{file}: {path} matches {} places (lines {}); make the path match exactly one", .lines.len(), Numbers(.lines))]
    BindingAmbiguous {
        /// The file, from the root of `cluster/apps`.
        file: RelPath,
        /// The binding's path.
        path: String,
        /// The lines of the matches, from 1.
        lines: Vec<usize>,
    },

    /// YAML that cannot be edited without risk of changing more than one value.
    #[error("{file}:{line}: {what}; {remedy}")]
    UnsupportedYaml {
        /// The file, from the root of `cluster/apps`.
        file: RelPath,
        /// The line, from 1.
        line: usize,
        /// What stands there.
        what: String,
        /// How to write it instead.
        remedy: String,
    },

    /// A path that this change may not read or write.
    #[error("{path}: {why}; nothing was written")]
    PathRefused {
        /// The path, escaped.
        path: String,
        /// The rule it breaks.
        why: String,
    },

    /// What was asked for cannot be written.
    #[error("{what}; {remedy}")]
    Unacceptable {
        /// What is wrong with it.
        what: String,
        /// What to do next.
        remedy: String,
    },
}

impl From<Finding> for Refusal {
    fn from(finding: Finding) -> Self {
        Self::BadFile(Box::new(finding))
    }
}

struct Numbers<'a>(&'a [usize]);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&texts.join(", "))
    }
}

struct Listed<'a>(&'a [Drift]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(Drift::to_string).collect();
        f.write_str(&texts.join("; "))
    }
}
