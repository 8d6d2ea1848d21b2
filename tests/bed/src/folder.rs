//! The temporary folder of a bed, locked by its owner and swept when the owner is gone.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

const LOCK: &str = "owner.lock";
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

/// A bed's folder. Dropping it removes it, unless it was told to stay.
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
        sweep(&base);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // The pid alone could meet the folder of a dead process of the same number that is still being swept.
        let salt = rand::random::<u16>();
        let path = base.join(format!("{}-{number}-{salt:04x}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        let lock = File::create(path.join(LOCK))?;
        lock.lock().context("locking the bed's folder")?;
        Ok(Self { path, keep: false, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder for the next sweep, so that logs can be read after a failure.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            remove(&self.path);
        }
    }
}

/// Removes the folders whose owner's lock is free. A folder that has no lock file yet is being made just now.
fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
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
