//! A lock per clone, between tasks and between processes.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::GitError;

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Held for as long as it lives. Shared by whoever uses a clone; exclusive for whoever makes or deletes it.
/// The kernel lets go of it when its owner dies.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

impl Lock {
    /// Takes the lock file at `path`, waiting at most `patience`.
    pub(crate) async fn take(path: &Path, mode: Mode, patience: Duration) -> Result<Self, GitError> {
        let state = |source| GitError::State { path: path.to_owned(), source };
        let file = File::options().create(true).append(true).open(path).map_err(state)?;
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let taken = match mode {
                Mode::Shared => file.try_lock_shared(),
                Mode::Exclusive => file.try_lock(),
            };
            match taken {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(GitError::Locked { path: path.to_owned(), waited: patience });
                }
                Err(TryLockError::Error(source)) => return Err(state(source)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn readers_share_and_a_writer_waits_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.lock");
        let soon = Duration::from_millis(20);
        let one = Lock::take(&path, Mode::Shared, soon).await.unwrap();
        let two = Lock::take(&path, Mode::Shared, soon).await.unwrap();
        drop(one);
        let refused = Lock::take(&path, Mode::Exclusive, soon).await;
        assert!(matches!(refused, Err(GitError::Locked { .. })), "{refused:?}");
        drop(two);
        Lock::take(&path, Mode::Exclusive, soon).await.unwrap();
    }
}
