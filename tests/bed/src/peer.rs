//! The handle on one server of the bed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::Signal;
use tokio::process::Command;

use crate::remote::{Remote, Verb};
use crate::spawn::{Launch, Process, Running, descendants};
use crate::wait::wait_until;

const READY: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(10);
const GONE: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(5);
/// Lines of the log that go into an error or a failed test's output.
const TAIL: usize = 15;
const WIDEST: usize = 300;

/// How a peer says that it can be used.
#[derive(Debug, Clone)]
pub(crate) enum Ready {
    /// A GET answers 200.
    Http(String),
    /// A command ends with 0.
    Command(PathBuf, Vec<String>),
    /// A file is there.
    File(PathBuf),
    /// By running: whoever needs it waits for what it does.
    Started,
}

/// A server process that can be stopped, killed, paused and started again on the same port and folders.
///
/// All methods take `&self`, so that a test can break a peer while other tasks use it. Dropping the bed kills it.
#[derive(Debug)]
pub struct Peer {
    name: String,
    log: PathBuf,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// A process of ours.
    Own(Box<Own>),
    /// One of another process, which is asked to act.
    Remote(Remote),
}

#[derive(Debug)]
struct Own {
    launch: Launch,
    ready: Ready,
    /// The newest life, ended or not.
    running: Mutex<Option<Arc<Running>>>,
}

/// A program of the caller's own, to be run with the bed's care: no life after its owner's, its log kept.
#[derive(Debug, Clone)]
pub struct Program {
    /// The name that its log and errors carry.
    pub name: String,
    /// The executable.
    pub executable: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its whole environment but for PATH.
    pub env: Vec<(String, String)>,
    /// Where it runs and logs.
    pub folder: PathBuf,
    /// The URL that answers 200 once it is ready.
    pub ready_url: String,
}

impl Peer {
    /// Starts a program of the caller's own and waits until it is ready.
    ///
    /// # Errors
    /// When it ends by itself or is not ready within a minute.
    pub async fn run(program: Program) -> Result<Self> {
        let log = program.folder.join(format!("{}.log", program.name));
        let launch = Launch {
            program: program.executable,
            args: program.args,
            env: program.env,
            folder: program.folder,
            user: None,
            entry: None,
        };
        Self::start(&program.name, launch, Ready::Http(program.ready_url), log).await
    }

    pub(crate) async fn start(name: &str, launch: Launch, ready: Ready, log: PathBuf) -> Result<Self> {
        let own = Own { launch, ready, running: Mutex::new(None) };
        let peer = Self { name: name.to_owned(), log, body: Body::Own(Box::new(own)) };
        peer.start_again().await?;
        Ok(peer)
    }

    /// A peer that runs already, owned by who listens at `socket`.
    pub(crate) fn remote(name: &str, socket: &Path, log: PathBuf) -> Self {
        let remote = Remote { socket: socket.to_owned(), name: name.to_owned() };
        Self { name: name.to_owned(), log, body: Body::Remote(remote) }
    }

    /// The name that its log and errors carry, like `gitea` or `buildkit-0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id, while it runs. For BuildKit it is the one of rootlesskit, the daemon's parent.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match &self.body {
            Body::Own(own) => own.alive().map(|running| running.pid),
            Body::Remote(remote) => remote.ask(Verb::Pid).ok()?.parse().ok(),
        }
    }

    /// Whether the process lives, paused or not.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// The file that takes its output, over all its lives.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The last `lines` lines of its output.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Starts the process again with the same arguments, port and folders, and waits until it is ready.
    ///
    /// # Errors
    /// When it runs already, ends by itself, or is not ready within a minute.
    pub async fn start_again(&self) -> Result<()> {
        match &self.body {
            Body::Own(own) => {
                own.start(&self.name, &self.log)?;
                self.ready().await
            }
            Body::Remote(remote) => remote.wait_for(Verb::Start).await,
        }
    }

    /// Waits until the peer answers, as [`Peer::start_again`] does by itself.
    ///
    /// # Errors
    /// When the process ends, or is not ready within a minute.
    pub async fn ready(&self) -> Result<()> {
        let own = match &self.body {
            Body::Own(own) => own,
            Body::Remote(remote) => return remote.wait_for(Verb::Ready).await,
        };
        let what = format!("{} to be ready", self.name);
        let outcome = wait_until(&what, READY, || async {
            match own.ended() {
                Some(how) => Some(Err(anyhow!("{} ended while starting: {how}", self.name))),
                None => own.probe().await.then_some(Ok(())),
            }
        });
        outcome.await.and_then(|answer| answer).map_err(|error| self.with_log(&error))
    }

    /// Asks it to end (SIGTERM), kills it when it has not within 10 s, and waits until all of it is gone.
    ///
    /// # Errors
    /// When a process survives its SIGKILL for 10 s.
    pub async fn stop(&self) -> Result<()> {
        self.end(Signal::TERM, Verb::Stop).await
    }

    /// Kills it (SIGKILL), with all that it started, and waits until all of it is gone.
    ///
    /// # Errors
    /// When a process survives for 10 s.
    pub async fn kill9(&self) -> Result<()> {
        self.end(Signal::KILL, Verb::Kill).await
    }

    /// Freezes it (SIGSTOP): connections stay open and nothing answers.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> Result<()> {
        self.signal_tree(Signal::STOP, Verb::Pause)
    }

    /// Lets a paused peer go on (SIGCONT).
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> Result<()> {
        self.signal_tree(Signal::CONT, Verb::Resume)
    }

    /// Does what another process asks for on behalf of [`Peer::remote`].
    pub(crate) async fn obey(&self, verb: Verb) -> Result<String> {
        match verb {
            Verb::Pid => return Ok(self.pid().map_or_else(String::new, |pid| pid.to_string())),
            Verb::Start => self.start_again().await?,
            Verb::Ready => self.ready().await?,
            Verb::Stop => self.stop().await?,
            Verb::Kill => self.kill9().await?,
            Verb::Pause => self.pause()?,
            Verb::Resume => self.resume()?,
        }
        Ok(String::new())
    }

    /// The tail of the log under a heading, for people.
    pub(crate) fn report(&self) -> String {
        let state = match &self.body {
            Body::Own(own) => own.ended().unwrap_or_else(|| "running".to_owned()),
            Body::Remote(_) => "owned by another process".to_owned(),
        };
        let (name, log) = (&self.name, self.log.display());
        let tail = self.log_tail(TAIL);
        let lines = tail.lines().map(|line| line.chars().take(WIDEST).chain(['\n']).collect::<String>());
        format!("---- {name} ({state}), last lines of {log}\n{}", lines.collect::<String>())
    }

    fn signal_tree(&self, signal: Signal, verb: Verb) -> Result<()> {
        match &self.body {
            Body::Own(own) => {
                let running = own.alive().with_context(|| format!("{} does not run", self.name))?;
                running.signal_tree(signal)
            }
            Body::Remote(remote) => remote.ask(verb).map(drop),
        }
    }

    async fn end(&self, signal: Signal, verb: Verb) -> Result<()> {
        match &self.body {
            Body::Own(own) => own.end(signal).await.map_err(|error| self.with_log(&error)),
            Body::Remote(remote) => remote.wait_for(verb).await,
        }
    }

    fn with_log(&self, error: &anyhow::Error) -> anyhow::Error {
        anyhow!("{error:#}\n{}", self.report())
    }
}

impl Own {
    fn running(&self) -> Option<Arc<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn alive(&self) -> Option<Arc<Running>> {
        self.running().filter(|running| running.ended().is_none())
    }

    fn ended(&self) -> Option<String> {
        match self.running() {
            None => Some("never started".to_owned()),
            Some(running) => running.ended().map(|status| status.to_string()),
        }
    }

    fn start(&self, name: &str, log: &Path) -> Result<()> {
        let mut slot = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = slot.as_ref().is_some_and(|running| running.ended().is_none());
        ensure!(!lives, "{name} runs already");
        *slot = Some(Arc::new(Running::start(&self.launch, log)?));
        Ok(())
    }

    async fn end(&self, signal: Signal) -> Result<()> {
        let Some(running) = self.running() else { return Ok(()) };
        let tree = descendants(running.pid);
        if running.ended().is_none() {
            if signal == Signal::KILL {
                running.signal_tree(Signal::KILL)?;
            } else {
                // A paused peer must hear it too.
                running.signal_tree(Signal::CONT)?;
                running.signal(signal)?;
                if tokio::time::timeout(GRACE, running.wait()).await.is_err() {
                    running.signal_tree(Signal::KILL)?;
                }
            }
        }
        wait_until("its processes to end", GONE, || {
            let gone = running.ended().is_some() && !tree.iter().copied().any(Process::lives);
            async move { gone.then_some(()) }
        })
        .await
    }

    async fn probe(&self) -> bool {
        match &self.ready {
            Ready::Http(url) => {
                let Ok(client) = crate::http::client() else { return false };
                let answer = client.get(url).timeout(PROBE).send().await;
                answer.is_ok_and(|answer| answer.status().is_success())
            }
            Ready::Command(program, args) => {
                let mut command = Command::new(program);
                command.args(args).kill_on_drop(true);
                let output = tokio::time::timeout(PROBE, command.output()).await;
                output.is_ok_and(|output| output.is_ok_and(|output| output.status.success()))
            }
            Ready::File(path) => path.exists(),
            Ready::Started => true,
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let Some(running) = self.running() else { return };
        let tree = descendants(running.pid);
        if running.ended().is_none() && running.signal_tree(Signal::KILL).is_err() {
            return;
        }
        let start = Instant::now();
        while (running.ended().is_none() || tree.iter().any(|process| process.lives()))
            && start.elapsed() < GONE
        {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
