//! Peers that another process of this machine owns, asked over a unix socket: one line of JSON each way.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Longer than a peer may take to start or to end.
const LONGEST: Duration = Duration::from_secs(120);

/// What an owner is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Something of one peer.
    Peer { name: String, verb: Verb },
    /// The end of all peers, and of the owner.
    End,
}

/// What can be asked of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verb {
    /// Its process id, while it runs.
    Pid,
    Start,
    Ready,
    Stop,
    Kill,
    Pause,
    Resume,
}

/// What came of it: the answer, or what went wrong.
pub(crate) type Reply = Result<String, String>;

/// Asks the owner that listens at `socket`.
pub(crate) fn ask(socket: &Path, request: &Request) -> Result<String> {
    let mut stream =
        UnixStream::connect(socket).with_context(|| format!("nobody answers at {}", socket.display()))?;
    stream.set_read_timeout(Some(LONGEST))?;
    writeln!(stream, "{}", serde_json::to_string(request)?)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).context("reading the owner's answer")?;
    match serde_json::from_str::<Reply>(&line).context("the owner went away")? {
        Ok(answer) => Ok(answer),
        Err(error) => bail!(error),
    }
}

/// The way to one peer.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    pub socket: PathBuf,
    pub name: String,
}

impl Remote {
    pub(crate) fn ask(&self, verb: Verb) -> Result<String> {
        ask(&self.socket, &Request::Peer { name: self.name.clone(), verb })
    }

    /// For what takes its time.
    pub(crate) async fn wait_for(&self, verb: Verb) -> Result<()> {
        let remote = self.clone();
        tokio::task::spawn_blocking(move || remote.ask(verb)).await.context("asking a peer's owner")??;
        Ok(())
    }
}
