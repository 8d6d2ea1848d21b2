//! The HTTP client that the bed talks to its own peers with.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A client without idle connections: each test has a runtime of its own, and a pooled connection dies with the
/// runtime that opened it.
pub(crate) fn client() -> Result<reqwest::Client> {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client.clone());
    }
    // Refused when the process has a provider already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .timeout(TIMEOUT)
        .pool_max_idle_per_host(0)
        .no_proxy()
        .build()
        .context("building the bed's HTTP client")?;
    Ok(CLIENT.get_or_init(|| client).clone())
}
