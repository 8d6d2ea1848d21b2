//! Fabrique's own image, from the Dockerfile, by the bed's BuildKit.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::{Bed, BuildkitOptions, Cluster};
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::manifests;

/// The cluster's registry as a builder beside the cluster reaches it.
const BESIDE: &str = "198.18.0.2:80";
/// The same as nodes and pods call it.
const INSIDE: &str = "registry:80";
const LONGEST: Duration = Duration::from_mins(5);
/// A compiler on a machine that others use too.
const COMPILE: Duration = Duration::from_mins(20);

/// Builds the target `prebuilt` on the bed's Debian with this binary, or with [`binary`], pushes it to `repository`, and
/// returns it by digest, as pods name it.
///
/// # Errors
/// When a server or the daemon refuses, or there is no binary and none can be made.
pub async fn push(cluster: &Cluster, repository: &str, given: Option<&Path>) -> Result<String> {
    let program = match given {
        Some(program) => program.to_owned(),
        None => binary().await?,
    };
    let context = tempfile::tempdir()?;
    tokio::fs::copy(program, context.path().join("fabrique")).await?;
    let options = ["target=prebuilt".to_owned(), format!("build-arg:RUNTIME_BASE={}", base(cluster))];
    build(repository, &manifests::repository(), context.path(), &options).await
}

/// The same with nothing but a program of the bed's in it, on the path.
///
/// # Errors
/// When a server or the daemon refuses.
pub async fn push_program(cluster: &Cluster, repository: &str, program: &Path) -> Result<String> {
    let context = tempfile::tempdir()?;
    tokio::fs::copy(program, context.path().join("program")).await?;
    let name = program.file_name().context("a program without a name")?.to_string_lossy();
    let dockerfile = format!("FROM {}\nCOPY program /usr/local/bin/{name}\n", base(cluster));
    tokio::fs::write(context.path().join("Dockerfile"), dockerfile).await?;
    build(repository, context.path(), context.path(), &[]).await
}

/// The same with a folder of the bed's in it, as `/opt/program`.
///
/// # Errors
/// When a server or the daemon refuses.
pub async fn push_folder(cluster: &Cluster, repository: &str, folder: &Path) -> Result<String> {
    let own = tempfile::tempdir()?;
    let dockerfile = format!("FROM {}\nCOPY . /opt/program/\n", base(cluster));
    tokio::fs::write(own.path().join("Dockerfile"), dockerfile).await?;
    build(repository, own.path(), folder, &[]).await
}

/// The bed's Debian, to a builder beside the cluster.
fn base(cluster: &Cluster) -> String {
    cluster.images().debian.replacen(INSIDE, BESIDE, 1)
}

async fn build(repository: &str, dockerfile: &Path, context: &Path, options: &[String]) -> Result<String> {
    let plain = format!("[registry.\"{BESIDE}\"]\n  http = true\n");
    let buildkit = BuildkitOptions { extra_toml: plain, ..BuildkitOptions::default() };
    let bed = Bed::builder().buildkit_with(buildkit).start().await?;
    let image = format!("{BESIDE}/{repository}");
    let digest = Build { dockerfile, context, options, longest: LONGEST }.push(&bed, &image).await?;
    Ok(format!("{INSIDE}/{repository}@{digest}"))
}

/// A build from folders of this machine.
pub(crate) struct Build<'a> {
    /// Where the Dockerfile is.
    pub(crate) dockerfile: &'a Path,
    /// What it copies from.
    pub(crate) context: &'a Path,
    /// Of the frontend: the target, arguments.
    pub(crate) options: &'a [String],
    /// How long it may take.
    pub(crate) longest: Duration,
}

impl Build<'_> {
    /// Pushes the image by this name, and returns its digest.
    pub(crate) async fn push(&self, bed: &Bed, image: &str) -> Result<String> {
        let metadata = self.export(bed, &format!("type=image,name={image},push=true")).await?;
        let digest = metadata["containerimage.digest"].as_str();
        digest.map(str::to_owned).context("a build without a digest")
    }

    /// Has the bed's daemon build it, and export it in a way of `buildctl`. Returns what is told of it.
    pub(crate) async fn export(&self, bed: &Bed, output: &str) -> Result<Value> {
        let metadata = tempfile::NamedTempFile::new()?;
        let mut build = bed.buildkit(0).buildctl();
        build.args(["build", "--frontend=dockerfile.v0"]);
        build.args(self.options.iter().map(|option| format!("--opt={option}")));
        build.arg(format!("--local=dockerfile={}", self.dockerfile.display()));
        build.arg(format!("--local=context={}", self.context.display()));
        build.arg(format!("--output={output}"));
        build.arg("--metadata-file").arg(metadata.path());
        let ended = tokio::time::timeout(self.longest, build.output()).await;
        let ended = ended.context("the image's build hangs")??;
        ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        Ok(serde_json::from_slice(&tokio::fs::read(metadata.path()).await?).unwrap_or_default())
    }
}

/// The binary that `FABRIQUE_BINARY` names; without, the one beside this program. A run of all tests has built that for
/// its own; otherwise it is built here, once.
///
/// # Errors
/// When it does not build.
pub async fn binary() -> Result<PathBuf> {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    BUILT.get_or_try_init(find_or_build).await.cloned()
}

async fn find_or_build() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("FABRIQUE_BINARY") {
        return Ok(named.into());
    }
    // target/debug/deps/cluster-… is this program.
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
