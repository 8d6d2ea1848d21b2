//! How two revisions of one repository relate, and whether anything that matters changed between them.

use serde::{Deserialize, Serialize};

/// Where a revision stands as seen from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// The same revision.
    Same,
    /// A strict descendant: newer.
    Ahead,
    /// A strict ancestor: older.
    Behind,
    /// Neither is an ancestor of the other: history was rewritten.
    Diverged,
    /// One of them is not in the repository any more, so nothing can be said.
    Unknown,
}

/// Whether a path that matters differs between two trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Watched {
    /// At least one differs, or it cannot be told, which counts as changed.
    Changed,
    /// None differs.
    Unchanged,
}
