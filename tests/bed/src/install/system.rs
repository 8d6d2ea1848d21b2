//! What the bed needs of the machine: Debian packages and an unprivileged user.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Product, say};

/// The user that BuildKit and PostgreSQL run as.
const ACCOUNT: &str = "fabrique-bed";
const SUBORDINATE_IDS: u64 = 65_536;
/// The first number that Debian's useradd gives out by itself.
const FIRST_SUBORDINATE: u64 = 100_000;

/// Something that the machine has to have, the Debian package that brings it, and when it is needed.
struct Tool {
    sign: Sign,
    package: &'static str,
    /// The products that need it; every one when empty.
    products: &'static [Product],
    /// Whether only building needs it, not running.
    build: bool,
}

/// How it shows that it is there.
enum Sign {
    Program(&'static str),
    File(&'static str),
    /// A module of Python, which may be there without its command.
    PythonModule(&'static str),
}

impl Sign {
    fn is_there(&self) -> bool {
        match self {
            Self::Program(name) => finds(name),
            Self::File(path) => Path::new(path).exists(),
            Self::PythonModule(name) => python_has(name),
        }
    }
}

const TOOLS: [Tool; 17] = {
    use Product::{
        Argocd, Builder, Busybox, Debian, Gitea, KubeRouter, Kubectl, Kubernetes, Nats, Postgres,
        Rootlesskit, Runc, Squid,
    };
    use Sign::{File, Program, PythonModule};
    const fn to_run(program: &'static str, package: &'static str, products: &'static [Product]) -> Tool {
        Tool { sign: Program(program), package, products, build: false }
    }
    const fn to_build(sign: Sign, package: &'static str, products: &'static [Product]) -> Tool {
        Tool { sign, package, products, build: true }
    }
    [
        to_run("setpriv", "util-linux", &[]),
        to_run("git", "git", &[]),
        to_run("runc", "runc", &[Rootlesskit]),
        to_run("newuidmap", "uidmap", &[Rootlesskit, Builder]),
        to_run("ip", "iproute2", &[Kubernetes]),
        to_run("mount", "mount", &[Kubernetes]),
        to_run("iptables", "iptables", &[Kubernetes, KubeRouter]),
        to_run("ipset", "ipset", &[KubeRouter]),
        to_run("redis-server", "redis-server", &[Argocd]),
        to_build(Program("gcc"), "gcc", &[Gitea, Runc]),
        to_build(Program("pkg-config"), "pkg-config", &[Runc]),
        to_build(File("/usr/include/seccomp.h"), "libseccomp-dev", &[Runc]),
        to_build(Program("python3"), "python3", &[Nats, Kubectl, Postgres]),
        to_build(PythonModule("pip"), "python3-pip", &[Nats, Kubectl, Postgres]),
        to_build(Program("tar"), "tar", &[Busybox, Debian, Builder, Squid]),
        to_build(Program("debootstrap"), "debootstrap", &[Debian]),
        to_build(Program("setcap"), "libcap2-bin", &[Builder]),
    ]
};

/// PATH with the folders that a minimal environment leaves out.
pub(crate) fn search_path() -> OsString {
    let mut folders: Vec<PathBuf> = std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect();
    for extra in ["/usr/local/go/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"] {
        if !folders.iter().any(|folder| folder == Path::new(extra)) {
            folders.push(extra.into());
        }
    }
    std::env::join_paths(folders).unwrap_or_else(|_| "/usr/sbin:/usr/bin:/sbin:/bin".into())
}

/// Ubuntu's AppArmor forbids user namespaces to ordinary users, which rootless builds are made of.
pub(crate) fn user_namespaces_restricted() -> bool {
    let switch = fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    switch.is_ok_and(|value| value.trim() == "1")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn finds(program: &str) -> bool {
    std::env::split_paths(&search_path()).any(|folder| folder.join(program).is_file())
}

/// Installs missing packages and makes the user. With `built`, only what running needs.
pub(super) fn prepare(products: &[Product], built: bool) -> Result<()> {
    let needed = TOOLS.iter().filter(|tool| !(built && tool.build));
    let needed = needed.filter(|tool| {
        tool.products.is_empty() || tool.products.iter().any(|product| products.contains(product))
    });
    let missing = needed.filter(|tool| !tool.sign.is_there());
    let mut packages: Vec<&str> = missing.map(|tool| tool.package).collect();
    if packages.contains(&"gcc") {
        packages.push("libc6-dev");
    }
    ensure!(built || finds("go"), "building the test bed needs Go 1.26.8 or later on the PATH");
    if !packages.is_empty() {
        install(&packages)?;
    } else if !built && [Product::Busybox, Product::Squid].iter().any(|product| products.contains(product)) {
        refresh_package_lists()?;
    }
    if [Product::Rootlesskit, Product::Postgres].iter().any(|product| products.contains(product)) && is_root()
    {
        make_account()?;
    }
    Ok(())
}

fn python_has(module: &str) -> bool {
    let mut command = Command::new("python3");
    command
        .args(["-m", module, "--version"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn install(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    ensure!(is_root(), "the test bed needs packages that only root can install: apt-get install {list}");
    say(&format!("installing {list}"));
    refresh_package_lists()?;
    let mut command = Command::new("apt-get");
    command.args(["install", "--yes", "--no-install-recommends", "--quiet", "--quiet"]);
    finish(command.args(packages))
}

/// `apt-get download` works for everybody, but only with lists.
fn refresh_package_lists() -> Result<()> {
    if is_root() { finish(Command::new("apt-get").args(["update", "--quiet", "--quiet"])) } else { Ok(()) }
}

fn finish(command: &mut Command) -> Result<()> {
    command.env("DEBIAN_FRONTEND", "noninteractive");
    // Taken for a rescue shell, in which no package starts a server of its own.
    command.env("RUNLEVEL", "1");
    command.env("PATH", search_path()).stdin(Stdio::null());
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} failed ({}):\n{}", output.status, told.trim());
    Ok(())
}

/// The programs of the distribution's PostgreSQL, of its newest version where there are several. Root installs it.
pub(crate) fn postgresql() -> Result<PathBuf> {
    let newest = || {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let there = versions.filter(|version| version.path().join("bin/initdb").is_file());
        let number = |name: &OsString| name.to_str().and_then(|name| name.parse::<u32>().ok());
        let best = there.filter_map(|version| Some((number(&version.file_name())?, version.path()))).max();
        best.map(|(_, folder)| folder.join("bin"))
    };
    if newest().is_none() {
        install(&["postgresql"])?;
    }
    newest().context("the package postgresql brought no initdb")
}

/// The release of the distribution, like `bookworm`.
pub(super) fn codename() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release")?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release names no release")?.trim_matches('"').to_owned())
}

/// The name of the user that runs this process.
pub(crate) fn user_name() -> Result<String> {
    let uid = rustix::process::getuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd")?;
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid));
    let name = line.and_then(|line| line.split(':').next());
    Ok(name.with_context(|| format!("uid {uid} has no name in /etc/passwd"))?.to_owned())
}

/// Who builds run as.
pub(crate) struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// Whether that is somebody other than the caller.
    pub switch: bool,
}

impl Account {
    /// The bed's own user when the caller is root, else the caller, who then needs a range in `/etc/subuid`.
    pub(crate) fn for_builds() -> Result<Self> {
        let switch = is_root();
        let name = if switch { ACCOUNT.to_owned() } else { user_name()? };
        let passwd = fs::read_to_string("/etc/passwd")?;
        let line = passwd.lines().find(|line| line.split(':').next() == Some(&name));
        let fields: Vec<&str> = line.with_context(|| format!("no user {name}"))?.split(':').collect();
        let number = |field: usize| fields.get(field).and_then(|text| text.parse().ok());
        let (uid, gid) = number(2).zip(number(3)).with_context(|| format!("bad ids of user {name}"))?;
        ensure!(
            range_of(&name, Path::new("/etc/subuid"))?,
            "{name} has no range in /etc/subuid: usermod --add-subuids 100000-165535 {name}"
        );
        Ok(Self { name, uid, gid, switch })
    }
}

fn range_of(name: &str, file: &Path) -> Result<bool> {
    let text = if file.exists() { fs::read_to_string(file)? } else { String::new() };
    Ok(text.lines().any(|line| line.split(':').next() == Some(name)))
}

fn make_account() -> Result<()> {
    let (subuid, subgid) = (Path::new("/etc/subuid"), Path::new("/etc/subgid"));
    let complete = || -> Result<bool> {
        let known = fs::read_to_string("/etc/passwd")?.lines().any(|line| line.starts_with("fabrique-bed:"));
        Ok(known && range_of(ACCOUNT, subuid)? && range_of(ACCOUNT, subgid)?)
    };
    if complete()? {
        return Ok(());
    }
    let lock = File::create("/run/lock/fabrique-bed.lock").context("creating the lock for the bed's user")?;
    lock.lock()?;
    if complete()? {
        return Ok(());
    }
    say(&format!("making the user {ACCOUNT}, which builds run as"));
    if !fs::read_to_string("/etc/passwd")?.lines().any(|line| line.starts_with("fabrique-bed:")) {
        let mut command = Command::new("useradd");
        command.args(["--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]);
        finish(command.args(["--shell", "/usr/sbin/nologin", ACCOUNT]))?;
    }
    for (file, flag) in [(subuid, "--add-subuids"), (subgid, "--add-subgids")] {
        if !range_of(ACCOUNT, file)? {
            let first = first_free(file)?;
            let range = format!("{first}-{}", first + SUBORDINATE_IDS - 1);
            finish(Command::new("usermod").args([flag, &range, ACCOUNT]))?;
        }
    }
    Ok(())
}

/// The first subordinate id above all ranges that are given out.
fn first_free(file: &Path) -> Result<u64> {
    let text = if file.exists() { fs::read_to_string(file)? } else { String::new() };
    let ends = text.lines().filter_map(|line| {
        let mut numbers = line.split(':').skip(1).map(|field| field.trim().parse::<u64>());
        Some(numbers.next()?.ok()? + numbers.next()?.ok()?)
    });
    Ok(ends.max().unwrap_or(0).max(FIRST_SUBORDINATE))
}
