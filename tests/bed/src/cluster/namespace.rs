//! Namespaces that live as long as one process of ours.
//!
//! None has a name in the file system. The kernel takes a network namespace apart, with the ends of its links and
//! the other ends too, when its last process ends; a mount namespace likewise; and it kills everything in a process
//! namespace when the first process ends. So a killed owner leaves no link, mount or container behind.

use std::path::Path;

use anyhow::{Context, Result};

use crate::peer::{Peer, Ready};
use crate::spawn::{Entry, Launch, descendants};

/// What the first process of a machine does: it makes the mounts its own and buries what others abandon.
///
/// `/run` (locks of iptables, sockets of shims, pods' networks), `/var/lib` and `/var/log` are written by programs
/// that were never told otherwise, and two nodes must not meet there, nor anything stay on the host.
const MACHINE: &str = r#"
set -eu
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns
for folder in lib log; do
    mkdir -p "$1/$folder" "$1/$folder.work"
    mount -t overlay overlay -o "lowerdir=/var/$folder,upperdir=$1/$folder,workdir=$1/$folder.work" "/var/$folder"
done
touch "$2"
while :; do sleep infinity & wait $! || true; done
"#;

/// A process that holds namespaces open.
#[derive(Debug)]
pub(crate) struct Namespace {
    holder: Peer,
    whole: bool,
}

impl Namespace {
    /// A network of its own and nothing else.
    pub(crate) async fn network(name: &str, folder: &Path) -> Result<Self> {
        Self::start(name, folder, vec!["--net".to_owned(), "--".to_owned()], false).await
    }

    /// What containers take for a machine: network, processes and mounts of its own.
    pub(crate) async fn machine(name: &str, folder: &Path) -> Result<Self> {
        let flags = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let mut args: Vec<String> = flags.map(str::to_owned).into();
        args.push("--".to_owned());
        Self::start(name, folder, args, true).await
    }

    async fn start(name: &str, folder: &Path, mut args: Vec<String>, whole: bool) -> Result<Self> {
        let ready = folder.join("namespaces.ready");
        let script = if whole { MACHINE } else { "touch \"$2\"; exec sleep infinity" };
        args.extend(["bash", "-c", script, name].map(str::to_owned));
        args.extend([folder, ready.as_path()].map(|path| path.to_string_lossy().into_owned()));
        let launch = Launch {
            program: "unshare".into(),
            args,
            env: Vec::new(),
            folder: folder.to_owned(),
            user: None,
            entry: None,
        };
        let log = folder.join("namespaces.log");
        let holder = Peer::start(name, launch, Ready::File(ready), log).await?;
        Ok(Self { holder, whole })
    }

    /// Those that a peer holds already; `whole` when they are a machine's.
    pub(crate) fn of(holder: Peer, whole: bool) -> Self {
        Self { holder, whole }
    }

    pub(crate) fn holder(&self) -> &Peer {
        &self.holder
    }

    /// The way into the network alone.
    pub(crate) fn network_entry(&self) -> Result<Entry> {
        Ok(Entry { holder: self.pid()?, whole: false })
    }

    /// The way into everything.
    pub(crate) fn entry(&self) -> Result<Entry> {
        Ok(Entry { holder: self.pid()?, whole: self.whole })
    }

    /// The process inside, numbered as it is outside.
    fn pid(&self) -> Result<u32> {
        let started = self.holder.pid().with_context(|| format!("{} is gone", self.holder.name()))?;
        if !self.whole {
            return Ok(started);
        }
        let first = descendants(started).into_iter().next();
        Ok(first.with_context(|| format!("{} has no first process", self.holder.name()))?.id())
    }
}
