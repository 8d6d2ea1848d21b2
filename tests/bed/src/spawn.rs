//! Child processes that cannot outlive this process.
//!
//! The kernel's parent-death signal goes out when the **thread** that forked ends, and test threads and runtimes
//! come and go. So one thread, which lives as long as the process, forks every peer.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::sync::watch;

/// Nearly every peer is written in Go and lives for seconds on a machine with memory to spare and few processors: it
/// collects garbage a quarter as often as it would.
const LEISURE: (&str, &str) = ("GOGC", "400");

/// How a peer is started, each time in the same way.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub program: PathBuf,
    pub args: Vec<String>,
    /// The whole environment but for PATH and [`LEISURE`]: a peer must not change with the caller's shell.
    pub env: Vec<(String, String)>,
    pub folder: PathBuf,
    /// The user to become, when not the caller.
    pub user: Option<String>,
    /// The namespaces to enter, when not the caller's.
    pub entry: Option<Entry>,
}

impl Launch {
    fn command(&self, log: &Path) -> Result<Command> {
        let output = OpenOptions::new().create(true).append(true).open(log)?;
        let mut command = Command::new("setpriv");
        if let Some(user) = &self.user {
            command.args(["--reuid", user, "--regid", user, "--init-groups"]);
        }
        command.args(["--pdeathsig", "SIGKILL", "--"]);
        if let Some(entry) = self.entry {
            command.args(entry.command());
        }
        command.arg(&self.program).args(&self.args);
        command.env_clear().env("PATH", crate::install::search_path()).env(LEISURE.0, LEISURE.1);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.folder).process_group(0);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        Ok(command)
    }
}

/// The namespaces of a process, to be entered by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Who is in them already.
    pub holder: u32,
    /// Processes and mounts too, not the network alone.
    pub whole: bool,
}

impl Entry {
    /// What to put before a program and its arguments to have it run there.
    pub(crate) fn command(self) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.holder)];
        if self.whole {
            words.extend([format!("--target={}", self.holder), "--mount".to_owned(), "--pid".to_owned()]);
        }
        words.push("--".to_owned());
        if self.whole {
            // The program is then nsenter's child, and is to end with it.
            words.extend(["setpriv", "--pdeathsig", "SIGTERM", "--"].map(str::to_owned));
        }
        words
    }
}

/// A process that was started and may have ended since.
#[derive(Debug)]
pub(crate) struct Running {
    pub pid: u32,
    /// Signals go through this descriptor: a number may have been given to another process, this may not.
    handle: OwnedFd,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl Running {
    /// Starts `launch` with its output appended to `log`.
    pub(crate) fn start(launch: &Launch, log: &Path) -> Result<Self> {
        let command = launch.command(log)?;
        let child = fork(command).with_context(|| format!("starting {}", launch.program.display()))?;
        let pid = child.id();
        let handle = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .context("opening a handle on the new process")?;
        let exit = reap(child)?;
        Ok(Self { pid, handle, exit })
    }

    /// Why and how it ended, when it did.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Waits until it has ended.
    pub(crate) async fn wait(&self) {
        let mut exit = self.exit.clone();
        // The sender only goes away after it has sent: then there is nothing left to wait for.
        let _ = exit.wait_for(Option::is_some).await;
    }

    /// Sends a signal to this process alone. A process that has ended already is no error.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        match rustix::process::pidfd_send_signal(&self.handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("sending {signal:?} to process {}", self.pid)),
        }
    }

    /// Sends a signal to this process and everything below it, parents first.
    pub(crate) fn signal_tree(&self, signal: Signal) -> Result<()> {
        // The children of a process that is killed are nobody's a moment later, and one that is frozen may
        // have forked until then: so it is looked before and after.
        let before = descendants(self.pid);
        self.signal(signal)?;
        for process in before.into_iter().chain(descendants(self.pid)) {
            if let Some(pid) = process.pid().filter(|_| process.lives()) {
                // It may have ended between the look and the signal.
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
        Ok(())
    }
}

type Order = (Command, mpsc::SyncSender<io::Result<Child>>);

fn fork(command: Command) -> Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        let work = move || {
            for (mut command, reply) in inbox {
                let _ = reply.send(command.spawn());
            }
        };
        // Without the thread every order fails below, with a message.
        let _ = std::thread::Builder::new().name("bed-spawner".to_owned()).spawn(work);
        Mutex::new(orders)
    });
    let (reply, answer) = mpsc::sync_channel(1);
    spawner
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, reply))
        .context("the bed's spawning thread is gone")?;
    Ok(answer.recv().context("the bed's spawning thread did not answer")??)
}

fn reap(mut child: Child) -> Result<watch::Receiver<Option<ExitStatus>>> {
    let (sender, exit) = watch::channel(None);
    std::thread::Builder::new().name("bed-reaper".to_owned()).spawn(move || {
        let status = child.wait().unwrap_or_default();
        sender.send_replace(Some(status));
    })?;
    Ok(exit)
}

/// One process at one time: a pid with its start time, so that a reused number is not mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    id: u32,
    started: u64,
}

impl Process {
    pub(crate) fn id(self) -> u32 {
        self.id
    }

    fn pid(self) -> Option<Pid> {
        i32::try_from(self.id).ok().and_then(Pid::from_raw)
    }

    /// Whether it still runs; a zombie does not.
    pub(crate) fn lives(self) -> bool {
        stat(self.id).is_some_and(|stat| stat.started == self.started && stat.state != "Z")
    }
}

/// All processes below `root`, parents before children.
pub(crate) fn descendants(root: u32) -> Vec<Process> {
    let all: Vec<(u32, Stat)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .collect();
    let mut tree = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (id, stat) in all.iter().filter(|(_, stat)| stat.parent == parent) {
            tree.push(Process { id: *id, started: stat.started });
            parents.push(*id);
        }
    }
    tree
}

struct Stat {
    state: String,
    parent: u32,
    started: u64,
}

/// The three fields of `/proc/<pid>/stat` that matter here. The command's name stands in parentheses and may
/// hold anything, so counting starts after the last one: state is then field 0, the parent 1, the start 19.
fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Stat {
        state: (*fields.first()?).to_owned(),
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}
