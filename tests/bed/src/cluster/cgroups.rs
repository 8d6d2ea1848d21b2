//! A control group per node, in every hierarchy that the machine has.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// The group of all nodes, directly below the root of each hierarchy.
const GROUP: &str = "fabrique-bed";
const REMOVAL: Duration = Duration::from_secs(10);

/// The group of one node as the kubelet is told it.
pub(crate) fn of_node(node: &str) -> String {
    format!("/{GROUP}/{node}")
}

/// The groups of a cluster, removed when this is dropped. Its processes must be dead or dying by then.
#[derive(Debug)]
pub(crate) struct Groups(());

impl Groups {
    /// Makes the groups of nodes.
    pub(crate) fn create(nodes: &[&str]) -> Result<Self> {
        for hierarchy in hierarchies()? {
            let group = hierarchy.root.join(GROUP);
            hierarchy.make(&group)?;
            for node in nodes {
                hierarchy.make(&group.join(node))?;
            }
        }
        Ok(Self(()))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // What is left is removed before the next cluster starts, and only then matters.
        let _ = remove();
    }
}

/// Removes all groups of a cluster, whose processes are dead or dying. Without any it does nothing.
pub(crate) fn remove() -> Result<()> {
    let start = Instant::now();
    for hierarchy in hierarchies()? {
        let group = hierarchy.root.join(GROUP);
        while group.exists() && remove_tree(&group).is_err() {
            ensure!(start.elapsed() < REMOVAL, "{} still has processes", group.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

struct Hierarchy {
    root: PathBuf,
    unified: bool,
}

impl Hierarchy {
    fn make(&self, group: &Path) -> Result<()> {
        fs::create_dir_all(group).with_context(|| format!("making the control group {}", group.display()))?;
        let Some(parent) = group.parent() else { return Ok(()) };
        if self.unified {
            let available = fs::read_to_string(parent.join("cgroup.controllers"))?;
            let wanted: Vec<String> = available.split_whitespace().map(|name| format!("+{name}")).collect();
            // Some controllers refuse in some places; the kubelet says so when one that it needs is missing.
            let _ = fs::write(parent.join("cgroup.subtree_control"), wanted.join(" "));
            return Ok(());
        }
        // A cpuset without processors takes no process.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if group.join(file).exists() {
                fs::write(group.join(file), fs::read_to_string(parent.join(file))?)?;
            }
        }
        Ok(())
    }
}

fn hierarchies() -> Result<Vec<Hierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let found = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (root, kind) = (fields.next()?, fields.next()?);
        let unified = kind == "cgroup2";
        (unified || kind == "cgroup").then(|| Hierarchy { root: root.into(), unified })
    });
    Ok(found.collect())
}

/// Control groups are removed like folders, but their files go by themselves.
fn remove_tree(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}
