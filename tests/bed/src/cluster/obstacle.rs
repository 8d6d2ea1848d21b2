//! Whether this machine can carry a cluster at all.

use std::fmt;
use std::fs;
use std::process::{Command, Stdio};

/// Bytes of memory that a cluster takes with Argo CD and a few builds.
const MEMORY: u64 = 3 << 30;

/// Why a machine cannot carry a cluster, as a sentence without its full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle(String);

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Obstacle {}

/// Looks for what no package can bring: rights, and features of the kernel.
pub(crate) fn look() -> Result<(), Obstacle> {
    let obstacle = |text: &str| Err(Obstacle(text.to_owned()));
    if !rustix::process::geteuid().is_root() {
        return obstacle("a cluster makes namespaces and mounts, which needs root");
    }
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !filesystems.lines().any(|line| line.ends_with("\toverlay")) {
        return obstacle("the kernel has no overlay file system");
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let memory_is_grouped = mounts.lines().any(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let options = fields.get(3).copied().unwrap_or_default();
        let has = |name: &str| options.split(',').any(|option| option == name);
        match fields.get(2) {
            Some(&"cgroup2") => has("rw"),
            Some(&"cgroup") => has("rw") && has("memory"),
            _ => false,
        }
    });
    if !memory_is_grouped {
        return obstacle("no control groups can be made here: none are mounted for writing");
    }
    if available_memory().is_some_and(|available| available < MEMORY) {
        return obstacle("less than 3 GiB of memory are available");
    }
    if !can("ip link add bed0 type bridge && ip link add bed1 type veth peer name bed2") {
        return obstacle("network namespaces, bridges or veth links cannot be made here");
    }
    Ok(())
}

fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Tries a command in namespaces that end with it.
fn can(script: &str) -> bool {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    command.args(["sh", "-c", script]).env("PATH", crate::install::search_path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
