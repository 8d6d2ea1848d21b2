//! Fabrique's own image from its source: the Dockerfile's target `source`, on a base of this machine's toolchain and
//! with vendored crates, as behind an air gap.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::Bed;
use tokio::process::Command;

use crate::image::Build;
use crate::manifests;

/// What the target `source` copies of a repository, but for where crates come from, and what says so.
const SOURCES: [&str; 7] =
    [".dockerignore", "Cargo.toml", "Cargo.lock", "proto", "services", "bench", "tests"];
/// What links Rust, and compiles the C that some crates bring. What these need comes along.
const LINKER: [&str; 2] = ["gcc", "libc6-dev"];
/// What no compiler reads.
const BALLAST: [&str; 5] =
    ["/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/lintian", "/var"];
/// Not optimised, which would take longer than all else: what is tried is the Dockerfile, and not the compiler.
const CARGO_ARGS: &str = "--offline --config profile.release.opt-level=0 --config profile.release.lto=false";
/// A compiler on a machine that others use too.
const COMPILE: Duration = Duration::from_mins(40);
/// Reading lists of packages, copying folders, downloading crates.
const PREPARE: Duration = Duration::from_mins(10);

/// Builds the target `source` from the working copy, in a bed of its own, and returns what a step says that runs on that
/// image, as its user.
///
/// # Errors
/// When this machine has no C compiler of Debian's, or a server or the daemon refuses, with what it said.
pub async fn ask(command: &str) -> Result<String> {
    let bed = Bed::builder().registry().buildkit(1).start().await?;
    let debian = bed.debian().await?;
    let base = push_base(&bed, &debian).await?;
    let context = tempfile::tempdir()?;
    copy_sources(context.path()).await?;
    vendor(context.path()).await?;
    let arguments = [("BUILD_BASE", base.as_str()), ("RUNTIME_BASE", &debian), ("CARGO_ARGS", CARGO_ARGS)];
    let arguments = arguments.map(|(name, value)| format!("build-arg:{name}={value}"));
    let options = [vec!["target=source".to_owned()], arguments.into()].concat();
    let repository = manifests::repository();
    let build =
        Build { dockerfile: &repository, context: context.path(), options: &options, longest: COMPILE };
    let image = format!("{}/fabrique", bed.registry().host());
    let digest = build.push(&bed, &image).await?;
    said_on(&bed, &format!("{image}@{digest}"), command).await
}

/// What the Dockerfile's context holds of a folder with `files`, each with a line in it: what the repository's
/// `.dockerignore` lets through to the daemon.
///
/// # Errors
/// When a server or the daemon refuses, with what it said.
pub async fn let_through(files: &[&str]) -> Result<Vec<String>> {
    let bed = Bed::builder().registry().buildkit(1).start().await?;
    let (context, out) = (tempfile::tempdir()?, tempfile::tempdir()?);
    fs::copy(manifests::repository().join(".dockerignore"), context.path().join(".dockerignore"))?;
    for file in files {
        let path = context.path().join(file);
        fs::create_dir_all(path.parent().context("a file at the root")?)?;
        fs::write(path, "there\n")?;
    }
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("Dockerfile"), "FROM scratch\nCOPY . /\n")?;
    let build = Build { dockerfile: folder.path(), context: context.path(), options: &[], longest: PREPARE };
    build.export(&bed, &format!("type=local,dest={}", out.path().display())).await?;
    let there = files.iter().filter(|file| out.path().join(file).is_file());
    Ok(there.map(|&file| file.to_owned()).collect())
}

/// An image with this machine's Rust and its C compiler on the bed's Debian, which is of the same release.
async fn push_base(bed: &Bed, debian: &str) -> Result<String> {
    let (tools, dockerfile) = (tempfile::tempdir()?, tempfile::tempdir()?);
    linker(tools.path()).await?;
    toolchain(&tools.path().join("usr/local/rust")).await?;
    let text = format!(
        "FROM {debian}\nCOPY . /\nENV PATH=/usr/local/rust/bin:/usr/local/bin:/usr/bin CARGO_HOME=/usr/local/cargo\n\
         RUN cc --version && cargo --version\n"
    );
    fs::write(dockerfile.path().join("Dockerfile"), text)?;
    let build =
        Build { dockerfile: dockerfile.path(), context: tools.path(), options: &[], longest: PREPARE };
    let image = format!("{}/rust", bed.registry().host());
    Ok(format!("{image}@{}", build.push(bed, &image).await?))
}

/// What a step says on an image.
async fn said_on(bed: &Bed, image: &str, command: &str) -> Result<String> {
    let (folder, out) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let text = format!(
        "FROM {image} AS asked\nRUN ( {command} ) > /tmp/said\nFROM scratch\nCOPY --from=asked /tmp/said /\n"
    );
    fs::write(folder.path().join("Dockerfile"), text)?;
    let build = Build { dockerfile: folder.path(), context: folder.path(), options: &[], longest: PREPARE };
    build.export(bed, &format!("type=local,dest={}", out.path().display())).await?;
    Ok(fs::read_to_string(out.path().join("said"))?)
}

/// What compiles and links, of the toolchain that compiled this program.
async fn toolchain(into: &Path) -> Result<()> {
    let cargo = Path::new(env!("CARGO")).canonicalize()?;
    let root = cargo.ancestors().nth(2).context("a cargo outside of a toolchain")?;
    fs::create_dir_all(into.join("bin"))?;
    for program in ["cargo", "rustc"] {
        let from = root.join("bin").join(program);
        fs::copy(&from, into.join("bin").join(program)).with_context(|| format!("{}", from.display()))?;
    }
    copy(&root.join("lib"), into).await
}

/// The files of the packages that link, by Debian's own lists.
async fn linker(into: &Path) -> Result<()> {
    let mut left: Vec<String> = LINKER.iter().map(|&name| name.to_owned()).collect();
    let mut seen = BTreeSet::new();
    let mut found = BTreeMap::new();
    while let Some(package) = left.pop() {
        if !seen.insert(package.clone()) {
            continue;
        }
        let files = packages(&["--listfiles", &package]).await;
        let needed = packages(&["--show", "--showformat=${Depends}", &package]).await;
        // One of several that would do is there, and the others are not.
        let (Ok(files), Ok(needed)) = (files, needed) else { continue };
        left.extend(names(&needed).map(str::to_owned));
        for file in files.lines() {
            found.extend(taken(Path::new(file))?);
        }
    }
    ensure!(found.contains_key(Path::new("/usr/bin/gcc")), "this machine has no gcc of Debian's");
    for (file, source) in found {
        let to = into.join(file.strip_prefix("/")?);
        fs::create_dir_all(to.parent().context("a file at the root")?)?;
        if source.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source)?, &to)?;
        } else {
            fs::copy(&source, &to).with_context(|| format!("{}", source.display()))?;
        }
    }
    // An alternative, which belongs to no package.
    std::os::unix::fs::symlink("gcc", into.join("usr/bin/cc"))?;
    Ok(())
}

/// The names in a list of dependencies: `a (>= 1), b | c`.
fn names(dependencies: &str) -> impl Iterator<Item = &str> {
    let all = dependencies.split([',', '|']).filter_map(|one| one.split_whitespace().next());
    all.map(|name| name.split(':').next().unwrap_or(name))
}

/// Where a packaged file goes, and comes from; nothing for folders, and for what nobody reads. Folders on the way may be
/// symlinks, as `/lib` is, and have to stay those.
fn taken(file: &Path) -> Result<Option<(PathBuf, PathBuf)>> {
    let there = fs::symlink_metadata(file).is_ok_and(|metadata| !metadata.is_dir());
    if !there || BALLAST.iter().any(|folder| file.starts_with(folder)) {
        return Ok(None);
    }
    match file.parent().zip(file.file_name()) {
        // Such a symlink itself, which the base has.
        None => Ok(None),
        Some((folder, _)) if folder == Path::new("/") => Ok(None),
        Some((folder, name)) => Ok(Some((folder.canonicalize()?.join(name), file.to_owned()))),
    }
}

async fn copy_sources(into: &Path) -> Result<()> {
    for source in SOURCES {
        copy(&manifests::repository().join(source), into).await?;
    }
    Ok(())
}

/// Every crate of the lock, where cargo looks for them before all others.
async fn vendor(context: &Path) -> Result<()> {
    let mut vendor = Command::new(env!("CARGO"));
    // Quietly it would not say what to configure.
    vendor.args(["vendor", "--locked", ".cargo/vendor"]).current_dir(context);
    let config = said(vendor, PREPARE).await?;
    ensure!(config.contains("vendored-sources"), "cargo does not say how to use what it vendored: {config}");
    fs::write(context.join(".cargo/config.toml"), config)?;
    Ok(())
}

/// A file, or a folder with all that is in it.
async fn copy(from: &Path, into: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.args(["--archive", "--"]).args([from, into]);
    said(copy, PREPARE).await.map(drop)
}

async fn packages(args: &[&str]) -> Result<String> {
    let mut query = Command::new("dpkg-query");
    query.args(args);
    said(query, PREPARE).await
}

/// What a command prints before its good end.
async fn said(mut command: Command, longest: Duration) -> Result<String> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let what = format!("{:?}", command.as_std());
    let output = tokio::time::timeout(longest, command.output()).await;
    let output = output.with_context(|| format!("not in time: {what}"))??;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what}: {error}");
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_dependencies_are_read_without_versions_and_architectures() {
        let list = "cpp (= 4:12.2.0-3), gcc-12 (>= 12.2.0-1~), libgcc-12-dev:amd64, a | b:any (<< 2)";
        assert_eq!(names(list).collect::<Vec<_>>(), ["cpp", "gcc-12", "libgcc-12-dev", "a", "b"]);
        assert_eq!(names("").count(), 0);
    }
}
