//! The two halves of what is deployed, which move apart from each other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is promoted, held or rolled back by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// The application: one digest.
    Image,
    /// The manifests around it: one revision of an overlay, or one chart version.
    Infra,
}

impl Channel {
    /// The word used in trailers, file formats and subjects.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Channel::Image => "image",
            Channel::Infra => "infra",
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
