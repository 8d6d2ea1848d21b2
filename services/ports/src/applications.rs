//! What the deployer makes of what is committed, for whoever waits for it.

use std::collections::BTreeSet;

use async_trait::async_trait;

use crate::PortResult;

/// How the deployer sees one Application.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApplicationState {
    /// Whether what runs is what is committed, in its words: `Synced`, `OutOfSync`, `Unknown`.
    pub sync: String,
    /// How it fares, in its words: `Healthy`, `Progressing`, `Degraded`, `Missing`.
    pub health: String,
    /// The commits that it was compared with, one for each source; none before it was compared.
    pub revisions: Vec<String>,
    /// Its last sync, where there was one.
    pub operation: Option<SyncOperation>,
    /// The images that are run, as their manifests name them; none while that is not known.
    pub images: BTreeSet<String>,
    /// What is wrong, where it says so.
    pub message: Option<String>,
    /// The digest of the rendered file that it was applied from, where it names one.
    pub rendered: Option<String>,
}

/// The last sync of an Application.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SyncOperation {
    /// What became of it, in the deployer's words: `Running`, `Succeeded`, `Failed`, `Error`.
    pub phase: String,
    /// The commits that it deployed, or was to, one for each source.
    pub revisions: Vec<String>,
    /// What it says of itself.
    pub message: Option<String>,
}

impl SyncOperation {
    /// Whether it failed, and is not tried again by itself.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        matches!(self.phase.as_str(), "Failed" | "Error")
    }
}

impl ApplicationState {
    /// Whether everything that is committed is there and well.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.sync == "Synced" && self.health == "Healthy"
    }
}

/// Looks at Applications, and changes none.
#[async_trait]
pub trait Applications: Send + Sync {
    /// The Application of this name; nothing while there is none.
    ///
    /// # Errors
    /// When the cluster does not answer, or refuses.
    async fn application(&self, name: &str) -> PortResult<Option<ApplicationState>>;
}
