//! The kustomize that Argo CD uses too.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::install::{self, Cache, Product};

/// How long rendering may take on a busy machine.
const LONGEST: Duration = Duration::from_secs(60);

/// Renders an overlay.
///
/// # Errors
/// When kustomize refuses it, or warns of what a later version refuses, with what it said.
pub async fn kustomize_build(folder: &Path) -> Result<String> {
    let cache = Cache::open()?;
    let preparing = cache.clone();
    tokio::task::spawn_blocking(move || install::ensure(&preparing, &[Product::Kustomize])).await??;
    let mut command = Command::new(cache.folder(Product::Kustomize).join("kustomize"));
    command.arg("build").arg(folder).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LONGEST, command.output()).await.context("kustomize hangs")??;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kustomize build {}: {told}", folder.display());
    ensure!(told.trim().is_empty(), "kustomize build {} warns: {told}", folder.display());
    Ok(String::from_utf8(output.stdout)?)
}
