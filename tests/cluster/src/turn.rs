//! One at a time: the namespaces of the bench's overlay are there once in a cluster, and the cluster may be everybody's.

use std::fs::File;

use anyhow::{Context as _, Result};

/// Waits, for as long as it takes, until no other process has what the overlay installs. It is this process's until
/// the file is closed.
///
/// # Errors
/// When there is no such lock on this machine.
pub async fn take() -> Result<File> {
    let waiting = tokio::task::spawn_blocking(|| {
        let file = File::create(std::env::temp_dir().join("fabrique-installation.lock"))?;
        file.lock()?;
        Ok::<_, std::io::Error>(file)
    });
    waiting.await?.context("taking the turn to install")
}
