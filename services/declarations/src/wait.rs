//! Why an app that is declared rightly is left alone for now.

use std::fmt;

use fabrique_core::id::AppName;
use serde::Serialize;

/// A reason to wait that ends by itself when a declaration changes: never a hold, which a person has to lift, and
/// never a reason to delete anything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "reason", content = "app")]
pub enum Wait {
    /// The app's own declaration says `ready: false`.
    NotReady,
    /// An app that it depends on says `ready: false`.
    DependencyNotReady(AppName),
    /// An app that it depends on has no declaration that can be read.
    DependencyUndeclared(AppName),
    /// An app that it depends on has a registration that cannot be used.
    DependencyMisregistered(AppName),
    /// An app that it depends on is not registered.
    DependencyAbsent(AppName),
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::NotReady => f.write_str("its declaration says ready: false"),
            Wait::DependencyNotReady(app) => write!(f, "{app}, which it depends on, says ready: false"),
            Wait::DependencyUndeclared(app) => {
                write!(f, "{app}, which it depends on, has no declaration that can be read")
            }
            Wait::DependencyMisregistered(app) => {
                write!(
                    f,
                    "{app}, which it depends on, waits until its registration apps/{app}/app.yaml is right"
                )
            }
            Wait::DependencyAbsent(app) => write!(f, "{app}, which it depends on, is not registered"),
        }
    }
}
