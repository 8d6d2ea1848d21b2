//! Temporary folders, locked by their owner and swept when the owner is gone.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

const LOCK: &str = "owner.lock";
/// Its age tells how long ago a test failed that used the folder.
const FAILED: &str = "failed";
/// How long a failed test's folder is spared, for somebody to read its logs.
const SPARED: Duration = Duration::from_secs(3600);
const REMOVAL: Duration = Duration::from_secs(5);

/// The folder of all beds of this user. In the system's temporary folder rather than in the cache: the user that
/// BuildKit runs as must be able to walk to it, and unix socket paths are limited to 108 bytes.
pub(crate) fn base() -> Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let base = std::env::temp_dir().join(format!("fabrique-bed-{uid}"));
    fs::create_dir_all(&base).with_context(|| format!("creating {}", base.display()))?;
    let owner = fs::metadata(&base)?.uid();
    ensure!(owner == uid, "{} belongs to uid {owner}, not to us", base.display());
    fs::set_permissions(&base, Permissions::from_mode(0o755))?;
    Ok(base)
}

/// The folder of a bed or a clone. Dropping it removes it, unless it was told to stay; after a `kill -9` of its
/// owner the next one to be made removes it.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    keep: bool,
    /// Held open for its lock, which tells sweepers that the owner lives.
    _lock: File,
}

impl Folder {
    /// Makes a fresh folder after sweeping those of dead owners.
    pub(crate) fn create() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let base = base()?;
        // A folder whose lock is made but not yet taken looks abandoned: nobody may sweep meanwhile.
        let turn = File::create(base.join("sweep.lock"))?;
        turn.lock().context("waiting for the turn to sweep")?;
        sweep(&base);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // The pid alone could meet the folder of a dead process of the same number that is still being swept.
        let salt = rand::random::<u16>();
        let path = base.join(format!("{}-{number}-{salt:04x}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        let lock = File::create(path.join(LOCK))?;
        lock.lock().context("locking a temporary folder")?;
        Ok(Self { path, keep: false, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder for an hour, so that logs can be read after a failure.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
        mark_failed(&self.path);
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            remove(&self.path);
        }
    }
}

/// Makes sweepers spare a folder for an hour after its owner's end.
pub(crate) fn mark_failed(folder: &Path) {
    // Without the mark the logs go early, which is no reason to fail once more.
    let _ = File::create(folder.join(FAILED));
}

fn failed_lately(folder: &Path) -> bool {
    let marked = fs::metadata(folder.join(FAILED)).and_then(|mark| mark.modified());
    marked.is_ok_and(|marked| marked.elapsed().is_ok_and(|age| age < SPARED))
}

/// Removes the folders whose owner's lock is free.
fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() && !failed_lately(&entry.path()) {
            remove(&entry.path());
        }
    }
}

/// A daemon that was just killed may still write for a moment, so the removal is tried again for a while.
fn remove(path: &Path) {
    let start = Instant::now();
    while path.exists() && fs::remove_dir_all(path).is_err() && start.elapsed() < REMOVAL {
        std::thread::sleep(Duration::from_millis(20));
    }
}
