//! What the adapter is told at the start.

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::SecretString;

/// Everything about registries that an installation decides. Hosts are spelled as in image names:
/// `registry:80`, `ghcr.io`.
#[derive(Debug, Clone, Default)]
pub struct RegistryConfig {
    /// By host; a host that is not here is reached over https and anonymously.
    pub hosts: BTreeMap<String, Access>,
    /// How long things may take.
    pub timeouts: Timeouts,
}

/// How one registry is reached.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Over http instead of https.
    pub plain_http: bool,
    /// `host:port` where it is reached from here, where that is not its name: by a port-forward, say.
    pub address: Option<String>,
    /// As whom.
    pub credentials: Credentials,
}

/// As whom a registry is asked.
#[derive(Debug, Clone, Default)]
pub enum Credentials {
    /// As nobody; if the registry names a token service, with the token that it gives to anybody.
    #[default]
    Anonymous,
    /// By user and password, at the registry itself or at the token service that it names.
    Basic {
        /// The user.
        user: String,
        /// The password or token.
        password: SecretString,
    },
    /// By a token that the registry takes as it is.
    Bearer(SecretString),
}

/// How long requests may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Until there is a connection.
    pub connect: Duration,
    /// A request as a whole.
    pub request: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), request: Duration::from_secs(30) }
    }
}
