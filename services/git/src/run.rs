//! One child process: fed, read within bounds, and ended with all that it started.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long git has to remove its lock files before it is killed.
const GRACE: Duration = Duration::from_secs(2);
/// How long the killed ones have to be gone.
const REAPED: Duration = Duration::from_secs(1);
/// How often a group is looked at until it is gone.
const POLL: Duration = Duration::from_millis(10);
/// How much of the messages is kept; the rest is read and dropped.
const MESSAGES: u64 = 16 << 10;

/// What a child wrote, and how it ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Why there is nothing finished.
#[derive(Debug)]
pub(crate) enum Stopped {
    Io(io::Error),
    TimedOut,
    TooMuch,
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Runs a command in a process group of its own, feeds it `input`, and waits for at most `patience`. More than
/// `limit` bytes on standard output stop it. If the future is dropped the group is ended all the same.
pub(crate) async fn run(
    mut command: Command,
    input: Bytes,
    patience: Duration,
    limit: u64,
) -> Result<Finished, Stopped> {
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = Group::new(command.spawn()?)?;
    let outcome = timeout(patience, group.converse(input, limit)).await;
    match outcome {
        Ok(Ok(finished)) => Ok(finished),
        Ok(Err(stopped)) => {
            group.end().await;
            Err(stopped)
        }
        Err(_) => {
            group.end().await;
            Err(Stopped::TimedOut)
        }
    }
}

/// A child that leads a process group.
struct Group {
    child: Option<Child>,
    leader: Pid,
}

impl Group {
    fn new(child: Child) -> io::Result<Self> {
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let leader = pid.ok_or_else(|| io::Error::other("the child has no process id"))?;
        Ok(Self { child: Some(child), leader })
    }

    async fn converse(&mut self, input: Bytes, limit: u64) -> Result<Finished, Stopped> {
        let Some(child) = self.child.as_mut() else {
            return Err(Stopped::Io(io::Error::other("the child has ended already")));
        };
        let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                match stdin.write_all(&input).await {
                    // A child that has read enough says so by its exit code.
                    Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
                    Ok(()) | Err(_) => {}
                }
            }
            Ok::<(), Stopped>(())
        };
        let ((), stdout, stderr) = tokio::try_join!(feed, bounded(out, limit), head(err))?;
        let status = child.wait().await?;
        self.child = None;
        Ok(Finished { status, stdout, stderr })
    }

    async fn end(&mut self) {
        if let Some(child) = self.child.take() {
            end(child, self.leader).await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(child) = self.child.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(end(child, self.leader))),
            Err(_) => drop(kill_process_group(self.leader, Signal::KILL)),
        }
    }
}

/// Asks first: git removes its lock files on SIGTERM, and one that is left blocks every later fetch.
async fn end(mut child: Child, leader: Pid) {
    // Errors mean that nobody is left in the group.
    let _ = kill_process_group(leader, Signal::TERM);
    if timeout(GRACE, async { tokio::join!(child.wait(), gone(leader)) }).await.is_err() {
        let _ = kill_process_group(leader, Signal::KILL);
        let _ = child.wait().await;
        // A dead child counts until whoever adopted it has reaped it, which some never do.
        let _ = timeout(REAPED, gone(leader)).await;
    }
}

/// Waits until nobody is left in a group. Its id is free only then, so that it names no stranger before.
async fn gone(leader: Pid) {
    while test_kill_process_group(leader).is_ok() {
        tokio::time::sleep(POLL).await;
    }
}

async fn bounded(stream: Option<impl AsyncRead + Unpin>, limit: u64) -> Result<Vec<u8>, Stopped> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let read = stream.take(limit.saturating_add(1)).read_to_end(&mut bytes).await?;
        if u64::try_from(read).unwrap_or(u64::MAX) > limit {
            return Err(Stopped::TooMuch);
        }
    }
    Ok(bytes)
}

async fn head(stream: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, Stopped> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        (&mut stream).take(MESSAGES).read_to_end(&mut bytes).await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LIMIT: u64 = 1 << 20;
    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_child_is_fed_and_read() {
        let finished = run(shell("cat; echo oops >&2; exit 3"), Bytes::from_static(b"hi"), LONG, LIMIT).await;
        let finished = finished.unwrap();
        assert_eq!((finished.status.code(), &finished.stdout[..]), (Some(3), &b"hi"[..]));
        assert_eq!(finished.stderr, b"oops\n");
    }

    #[tokio::test]
    async fn a_late_child_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!("sleep 100 & echo $! > {}; wait", pid.display());
        let start = Instant::now();
        let stopped = run(shell(&script), Bytes::new(), Duration::from_millis(300), LIMIT).await;
        assert!(matches!(stopped, Err(Stopped::TimedOut)), "{stopped:?}");
        assert!(start.elapsed() < Duration::from_secs(10));
        let grandchild = std::fs::read_to_string(pid).unwrap();
        // Whoever adopted it may not have reaped it yet.
        let status = std::fs::read_to_string(format!("/proc/{}/status", grandchild.trim()));
        assert!(status.is_err() || status.is_ok_and(|text| text.contains("State:\tZ")));
    }

    #[tokio::test]
    async fn a_flood_is_cut_off() {
        let stopped = run(shell("yes"), Bytes::new(), LONG, LIMIT).await;
        assert!(matches!(stopped, Err(Stopped::TooMuch)), "{stopped:?}");
    }

    #[tokio::test]
    async fn many_messages_do_not_block_a_child() {
        let finished = run(shell("head -c 1000000 /dev/zero >&2"), Bytes::new(), LONG, LIMIT).await.unwrap();
        assert_eq!(finished.stderr.len() as u64, MESSAGES);
    }
}
