//! fabrique's processes, seen from outside.

use std::path::Path;

use anyhow::{Context as _, Result};
use fabrique_bed::{Peer, Program};
use fabrique_stage::Stage;

/// The resident memory of one of them, in MB.
pub(crate) fn resident_of(peer: &Peer) -> Result<f64> {
    resident(peer.pid().with_context(|| format!("{} does not run", peer.name()))?)
}

/// The resident memory of a process, in MB.
///
/// # Errors
/// When there is none.
pub fn resident(pid: u32) -> Result<f64> {
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).context("reading a process's status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().context("VmRSS")?;
    Ok(kibibytes * 1024.0 / 1e6)
}

/// Starts `fabrique reconcile --every <every>`, with a log in JSON.
pub(crate) async fn reconciler(stage: &Stage, every: &str) -> Result<Peer> {
    let folder = stage.bed.folder().join(format!("reconciler-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    Peer::run(Program {
        name: format!("fabrique-reconcile-{every}"),
        executable: stage.binary().to_owned(),
        args: ["--log-format", "json", "reconcile", "--every", every].map(str::to_owned).into(),
        env: vec![("FABRIQUE_CONFIG".to_owned(), stage.config().display().to_string())],
        folder,
        // The reconciler listens nowhere; what it does shows in its log. The bus is up already.
        ready_url: format!("{}/healthz", stage.bed.nats().monitor_url()),
    })
    .await
}

/// Copies a process's log into `folder`.
pub(crate) fn keep_log(peer: &Peer, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let to = folder.join(format!("{}.log", peer.name()));
    std::fs::copy(peer.log_path(), &to).with_context(|| format!("writing {}", to.display()))?;
    Ok(())
}
