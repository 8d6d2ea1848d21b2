//! What can go wrong against all expectation.

use std::time::Duration;

use fabrique_ports::{Fault, Peer, PortError};

use crate::finding::Finding;
use crate::pki::PkiError;

/// A surprise in the dealings with the API server, or a configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// Settings that contradict themselves.
    #[error("the builders' settings: {}", list(findings))]
    Settings {
        /// Everything that is wrong.
        findings: Vec<Finding>,
    },
    /// Certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// `buildkitd.toml`.
    #[error("buildkitd.toml cannot be written")]
    Toml(#[from] toml::ser::Error),
    /// The API server refused, or was not there.
    #[error("the API server: cannot {what}: {}", short(source))]
    Api {
        /// What was asked.
        what: &'static str,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("the API server: no answer within {} s to: {what}", limit.as_secs_f32())]
    Slow {
        /// What was asked.
        what: &'static str,
        /// How long was waited.
        limit: Duration,
    },
    /// An answer that makes no sense.
    #[error("the API server answered without {what}")]
    Answer {
        /// What is missing.
        what: &'static str,
    },
}

impl KubernetesError {
    /// The HTTP status of a refusal.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        let KubernetesError::Api { source, .. } = self else { return None };
        match &**source {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        }
    }

    /// Somebody else was first: it is there already, has changed meanwhile, or is gone.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self.status(), Some(404 | 409))
    }
}

fn list(findings: &[Finding]) -> String {
    findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A refusal by its message: kube's own text repeats it in its debug form.
fn short(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

impl From<KubernetesError> for PortError {
    fn from(error: KubernetesError) -> Self {
        let (fault, remedy) = match (&error, error.status()) {
            (KubernetesError::Settings { .. }, _) => (Fault::Denied, Some("correct the builders' settings")),
            (KubernetesError::Pki(_), _) => (Fault::Denied, Some("check the builders' authority")),
            (_, Some(401 | 403)) => (Fault::Denied, Some("compare the worker's Role with the manifests")),
            (_, Some(400 | 405 | 422)) | (KubernetesError::Toml(_) | KubernetesError::Answer { .. }, _) => {
                (Fault::Unexpected, None)
            }
            (KubernetesError::Api { .. } | KubernetesError::Slow { .. }, _) => (Fault::Transient, None),
        };
        let port = PortError::new(Peer::Builder, fault, error.to_string());
        let port = if let Some(remedy) = remedy { port.remedy(remedy) } else { port };
        port.caused_by(error)
    }
}
