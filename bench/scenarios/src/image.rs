//! Fabrique's own image, from the Dockerfile, by the bed's BuildKit.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::{Bed, BuildkitOptions, Cluster};
use fabrique_cluster_tests::manifests;
use serde_json::Value;
use tokio::process::Command;

/// The cluster's registry as a builder beside the cluster reaches it.
const BESIDE: &str = "198.18.0.2:80";
/// The same as nodes and pods call it.
const INSIDE: &str = "registry:80";
const LONGEST: Duration = Duration::from_mins(5);
/// A compiler on a machine that others use too.
const COMPILE: Duration = Duration::from_mins(20);

/// Builds the target `prebuilt`, pushes it, and returns it by digest, as pods name it.
pub(crate) async fn push(cluster: &Cluster) -> Result<String> {
    let plain = format!("[registry.\"{BESIDE}\"]\n  http = true\n");
    let options = BuildkitOptions { extra_toml: plain, ..BuildkitOptions::default() };
    let bed = Bed::builder().buildkit_with(options).start().await?;
    let context = tempfile::tempdir()?;
    tokio::fs::copy(binary().await?, context.path().join("fabrique")).await?;
    let metadata = context.path().join("metadata.json");
    let base = cluster.images().debian.replacen(INSIDE, BESIDE, 1);
    let mut build = bed.buildkit(0).buildctl();
    build.args(["build", "--frontend=dockerfile.v0", "--opt=target=prebuilt"]);
    build.arg(format!("--opt=build-arg:RUNTIME_BASE={base}"));
    build.arg(format!("--local=dockerfile={}", manifests::repository().display()));
    build.arg(format!("--local=context={}", context.path().display()));
    build.arg(format!("--output=type=image,name={BESIDE}/fabrique,push=true"));
    build.arg("--metadata-file").arg(&metadata);
    let output = tokio::time::timeout(LONGEST, build.output()).await.context("the image's build hangs")??;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&tokio::fs::read(metadata).await?)?;
    let digest = metadata["containerimage.digest"].as_str().context("a build without a digest")?;
    Ok(format!("{INSIDE}/fabrique@{digest}"))
}

/// The binary that `FABRIQUE_BINARY` names; without, the one beside this program. A run of all tests has built that for
/// its own; otherwise it is built here.
async fn binary() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("FABRIQUE_BINARY") {
        return Ok(named.into());
    }
    // target/debug/deps/scenarios-… is this program.
    let this = std::env::current_exe()?;
    let folder = this.ancestors().nth(2).context("a program outside of a target folder")?;
    let binary = folder.join("fabrique");
    if !binary.exists() {
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--locked", "--quiet", "--package", "fabrique"]);
        command.current_dir(manifests::repository()).stdin(Stdio::null()).kill_on_drop(true);
        let status = tokio::time::timeout(COMPILE, command.status()).await.context("cargo hangs")??;
        ensure!(status.success(), "fabrique does not build");
    }
    Ok(binary)
}
