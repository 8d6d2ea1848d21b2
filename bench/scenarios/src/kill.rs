//! A process that ends without a chance to say goodbye: Kubernetes itself gives every pod some seconds, however it is
//! asked.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::installation::{Installation, OWN};

/// The program's name, as the kernel knows it.
const PROGRAM: &str = "fabrique";
const LONGEST: Duration = Duration::from_secs(10);

impl Installation {
    /// Kills fabrique with SIGKILL in one pod of a role. Its container is started again.
    ///
    /// # Errors
    /// When there is no such pod, or no process in it.
    pub async fn kill9(&self, role: &str) -> Result<()> {
        let pods = self.running_pods(role).await?;
        kill_in(pods.first().with_context(|| format!("no pod of a {role} to kill"))?).await
    }

    /// The same in every pod of a role.
    ///
    /// # Errors
    /// When there is none, or no process in one.
    pub async fn kill9_all(&self, role: &str) -> Result<()> {
        let pods = self.running_pods(role).await?;
        ensure!(!pods.is_empty(), "no pod of a {role} to kill");
        for pod in &pods {
            kill_in(pod).await?;
        }
        Ok(())
    }

    async fn running_pods(&self, role: &str) -> Result<Vec<Value>> {
        let mut pods = self.list(OWN, "pods", &format!("app.kubernetes.io/component={role}")).await?;
        pods.retain(|pod| pod["status"]["phase"] == "Running");
        Ok(pods)
    }
}

async fn kill_in(pod: &Value) -> Result<()> {
    let uid = pod["metadata"]["uid"].as_str().context("a pod without a uid")?;
    let process = process_of(uid).with_context(|| format!("no process of {}", pod["metadata"]["name"]))?;
    let mut kill = Command::new("kill");
    kill.args(["-KILL", &process]).stdin(Stdio::null()).kill_on_drop(true);
    let status = tokio::time::timeout(LONGEST, kill.status()).await.context("kill hangs")??;
    ensure!(status.success(), "process {process} was gone before it was killed");
    Ok(())
}

/// The id of fabrique's process in a pod.
fn process_of(uid: &str) -> Option<String> {
    processes(uid, Some(PROGRAM)).next()
}

/// Signals every process of a pod, or those of one program, past its kubelet: `KILL`, `STOP`, `CONT`.
///
/// # Errors
/// When there is none.
pub fn signal(uid: &str, program: Option<&str>, signal: &str) -> Result<()> {
    let found: Vec<String> = processes(uid, program).collect();
    ensure!(
        !found.is_empty(),
        "pod {uid} has no process{}",
        program.map_or(String::new(), |p| format!(" {p}"))
    );
    // Those that end with another are gone by then.
    let mut kill = std::process::Command::new("kill");
    kill.arg(format!("-{signal}")).args(found).stdin(Stdio::null()).stderr(Stdio::null()).status()?;
    Ok(())
}

/// The ids of a pod's processes, or of those of one program: the bed's nodes have their processes on this machine.
fn processes(uid: &str, program: Option<&str>) -> impl Iterator<Item = String> {
    let read = |process: &Path, file: &str| std::fs::read_to_string(process.join(file)).unwrap_or_default();
    let of_pod = format!("pod{uid}");
    let paths = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let found = paths.filter(move |process| {
        program.is_none_or(|program| read(process, "comm").trim_end() == program)
            && read(process, "cgroup").contains(&of_pod)
    });
    let name =
        |process: std::path::PathBuf| process.file_name().map(|name| name.to_string_lossy().into_owned());
    // Threads and everything else there have no numbers.
    found.filter_map(name).filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}
