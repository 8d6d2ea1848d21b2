//! Building the peers once, into a cache keyed by what they are built from.
//!
//! Each [`Product`] is a folder `<cache>/<name>-<hash of its pins>`. It is built in a sibling folder and renamed
//! when complete, under a file lock, so that a folder that exists is whole and concurrent builders wait for each
//! other. A changed pin is a new folder; old ones stay for other checkouts.

mod go;
mod products;
mod system;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

pub(crate) use products::{
    ADMIN, ADMIN_PASSWORD, BUSYBOX_BLOBS, LAYER, LAYER_DIGEST, architecture, gitea_config,
};
pub use products::{Group, Product};
pub(crate) use system::{Account, postgresql, search_path, user_namespaces_restricted};

/// Bumped when the code that builds changes what comes out.
const RECIPE: &str = "1";
const HEARTBEAT: Duration = Duration::from_secs(30);
const LONGEST_COMMAND: Duration = Duration::from_secs(45 * 60);
/// How many products are built at a time. A compiler uses every core by itself; while one product is downloaded or
/// linked, it is another one's.
const AT_ONCE: usize = 2;
/// Below this much free space the Go build cache, which has done its work, is given up.
const LOW_DISK: u64 = 10 << 30;

/// Where the built peers are kept.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `${XDG_CACHE_HOME:-$HOME/.cache}/fabrique/bed`.
    ///
    /// # Errors
    /// When neither variable is set, or the folder cannot be made.
    pub fn open() -> Result<Self> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
        let root = cache.context("neither XDG_CACHE_HOME nor HOME is set")?.join("fabrique/bed");
        fs::create_dir_all(&root).with_context(|| format!("creating {}", root.display()))?;
        Ok(Self { root })
    }

    /// The folder of a product, built or not.
    #[must_use]
    pub fn folder(&self, product: Product) -> PathBuf {
        self.root.join(format!("{}-{}", product.name(), key(product)))
    }

    /// Where something that runs in the background writes its log.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.root.join(format!("{name}.log"))
    }

    /// Whether a product is there.
    #[must_use]
    pub fn has(&self, product: Product) -> bool {
        self.folder(product).is_dir()
    }
}

fn key(product: Product) -> String {
    let mut hash = Sha256::new();
    for part in product.pins().iter().chain(&[RECIPE, std::env::consts::ARCH]) {
        // Length first, so that no two lists of parts read the same.
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hex::encode(&hash.finalize()[..6])
}

/// `sha256:` and 64 hex digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// Builds those of `products` that the cache lacks, with progress on standard error. Installs the Debian packages
/// and makes the user that they need.
///
/// # Errors
/// When a tool is missing and cannot be installed, or a build fails (with the end of its output).
pub fn ensure(cache: &Cache, products: &[Product]) -> Result<()> {
    let missing: Vec<Product> = products.iter().copied().filter(|product| !cache.has(*product)).collect();
    system::prepare(products, missing.is_empty())?;
    if missing.is_empty() {
        return Ok(());
    }
    let queue = Mutex::new(missing.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(product) = next() {
            build(cache, product).with_context(|| format!("building {product}")).inspect_err(|_| {
                // Nobody is to wait for the rest: nothing can be started without this one.
                while next().is_some() {}
            })?;
        }
        anyhow::Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let outcomes: Vec<Result<()>> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        outcomes.into_iter().collect::<Result<()>>()
    })?;
    spare_disk(cache)
}

fn build(cache: &Cache, product: Product) -> Result<()> {
    for needed in product.needs() {
        // Another thread may be at it, and is then waited for.
        build(cache, *needed).with_context(|| format!("building {needed}"))?;
    }
    let target = cache.folder(product);
    let lock = File::create(cache.root.join(format!("{}.lock", product.name())))?;
    if lock.try_lock().is_err() {
        say(&format!("{product}: waiting for who builds it already"));
        lock.lock()?;
    }
    if cache.has(product) {
        return Ok(());
    }
    say(&format!("{product}: building, {}", product.estimate()));
    let start = Instant::now();
    let prefix = format!(".building-{}.", product.name());
    remove_leftovers(&cache.root, &prefix)?;
    let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(&cache.root)?;
    let out = folder.path().join("out");
    fs::create_dir(&out)?;
    product.build(cache, &Workshop { product, scratch: folder.path(), out: &out })?;
    fs::rename(&out, &target).with_context(|| format!("putting {} in place", target.display()))?;
    say(&format!("{product}: built in {:.0} s", start.elapsed().as_secs_f32()));
    Ok(())
}

/// Removes what builds of the same product left that were killed; its lock says that none is alive.
fn remove_leftovers(root: &Path, prefix: &str) -> Result<()> {
    for entry in fs::read_dir(root)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// What the building of one product works with.
pub(crate) struct Workshop<'a> {
    product: Product,
    /// Goes away after the build.
    scratch: &'a Path,
    /// Becomes the product's folder.
    out: &'a Path,
}

impl Workshop<'_> {
    /// Runs a command to its end, with a sign of life every half minute, and returns its standard output.
    fn run(&self, command: &mut Command) -> Result<String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let (said, told) = (self.scratch.join("stdout"), self.scratch.join("stderr"));
        command.env("PATH", search_path()).stdin(Stdio::null());
        command.stdout(File::create(&said)?).stderr(File::create(&told)?);
        let mut child = command.spawn().with_context(|| format!("starting {program}"))?;
        let (start, mut beats) = (Instant::now(), 1);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if start.elapsed() > LONGEST_COMMAND {
                child.kill()?;
                bail!("{program} took over {} minutes", LONGEST_COMMAND.as_secs() / 60);
            }
            if start.elapsed() > HEARTBEAT * beats {
                say(&format!("{}: still building after {} s", self.product, start.elapsed().as_secs()));
                beats += 1;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let told = fs::read(&told)?;
        let told = String::from_utf8_lossy(&told);
        if !status.success() {
            let lines: Vec<&str> = told.lines().collect();
            bail!("{program} failed ({status}):\n{}", lines[lines.len().saturating_sub(30)..].join("\n"));
        }
        Ok(String::from_utf8_lossy(&fs::read(&said)?).trim().to_owned())
    }
}

fn spare_disk(cache: &Cache) -> Result<()> {
    let disk = rustix::fs::statvfs(&cache.root)?;
    if disk.f_bavail * disk.f_frsize >= LOW_DISK {
        return Ok(());
    }
    say("less than 10 GiB of disk left: dropping the Go build cache");
    // Without it the next build is slow; a full disk is worse, and a failure here is neither.
    let _ = Command::new("go").args(["clean", "-cache"]).env("PATH", search_path()).status();
    Ok(())
}

/// Progress goes to standard error as it happens: a first build takes minutes.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "bed: {line}");
}
