//! What apps declare: in their own repositories, and all of them against the cluster's contract.

mod cluster;
mod live;
mod local;
mod target;

use std::collections::BTreeMap;

use fabrique_core::id::AppName;
use fabrique_declarations::{Finding, Wait};
use serde::Serialize;

use crate::exit::Exit;

pub use cluster::Cluster;
pub(crate) use live::{Judged, judged};
pub use live::{Ports, against, live};
pub(crate) use local::has_registration;
pub use local::{directory, is_cluster_apps};

/// What was looked at and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Declared {
    /// How many declarations were read without a finding.
    pub declarations: usize,
    /// How many overlays were looked at; none are where the cluster is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlays: Option<usize>,
    /// How many requests the cluster was asked; none where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<usize>,
    /// Everything that is wrong, by file and line.
    pub findings: Vec<Finding>,
    /// Why apps are left alone although nothing is wrong with them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub waits: BTreeMap<AppName, Vec<Wait>>,
}

impl Declared {
    /// The same about one app only.
    #[must_use]
    pub fn about(mut self, app: &AppName) -> Self {
        self.findings.retain(|finding| finding.apps.contains(app));
        self.waits.retain(|waiting, _| waiting == app);
        self
    }

    /// How the process ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        Exit::ok_if(self.findings.is_empty())
    }
}
