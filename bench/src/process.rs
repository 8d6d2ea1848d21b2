//! fabrique's processes, seen from outside.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fabrique_bed::{Peer, Program};
use fabrique_stage::Stage;
use tokio::process::Command;
use tokio::time::MissedTickBehavior;

/// The resident memory of one of them, in MB.
pub(crate) fn resident_of(peer: &Peer) -> Result<f64> {
    resident(peer.pid().with_context(|| format!("{} does not run", peer.name()))?)
}

/// The resident memory of a process, in MB.
///
/// # Errors
/// When there is none.
pub fn resident(pid: u32) -> Result<f64> {
    memory(pid, "VmRSS:")
}

/// A line of a process's status, in MB.
fn memory(pid: u32, name: &str) -> Result<f64> {
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).context("reading a process's status")?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().with_context(|| name.to_owned())?;
    Ok(kibibytes * 1024.0 / 1e6)
}

/// A command that ran to its end.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Whether it ended with 0.
    pub(crate) succeeded: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// From its start to its end.
    pub(crate) seconds: f64,
    /// Its largest resident size, in MB, as it was some milliseconds before its end.
    pub(crate) peak: f64,
}

/// Runs a command to its end, and watches its memory.
pub(crate) async fn measured(mut command: Command) -> Result<Ran> {
    /// The kernel keeps the largest size; it has to be read while the process is there.
    const EVERY: Duration = Duration::from_millis(2);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let begun = Instant::now();
    let child = command.spawn().context("starting fabrique")?;
    let pid = child.id().context("a process without an id")?;
    let mut ended = Box::pin(child.wait_with_output());
    let mut look = tokio::time::interval(EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut peak = 0.0;
    let output = loop {
        tokio::select! {
            output = &mut ended => break output.context("waiting for fabrique")?,
            // Between its end and its reaping a process has no memory.
            _ = look.tick() => peak = memory(pid, "VmHWM:").unwrap_or(peak),
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Ran {
        succeeded: output.status.success(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
        seconds: begun.elapsed().as_secs_f64(),
        peak,
    })
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
