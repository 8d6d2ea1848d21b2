//! Building Go programs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::Workshop;

/// A module of ours whose only purpose is to pin another one with all its dependencies.
pub(crate) struct Pins {
    pub module: &'static str,
    pub sums: &'static str,
    pub imports: &'static str,
    /// What the linker is told, beside leaving symbols out: a version that the program reports of itself.
    pub link: &'static str,
}

impl Pins {
    /// Builds packages of the pinned modules into the product's folder, and returns the module's own folder.
    pub(crate) fn build(
        &self,
        shop: &Workshop<'_>,
        cgo: bool,
        tags: &str,
        packages: &[&str],
    ) -> Result<PathBuf> {
        let folder = shop.scratch.join("pins");
        fs::create_dir(&folder)?;
        for (name, content) in [("go.mod", self.module), ("go.sum", self.sums), ("tools.go", self.imports)] {
            fs::write(folder.join(name), content)?;
        }
        let mut command = go(cgo);
        let link = format!("-s -w {}", self.link);
        command.args(["build", "-ldflags", &link, "-tags", tags, "-o"]).arg(shop.out);
        // A folder as output needs the slash, or go would take it for a file's name when it is not there.
        command.args(packages).current_dir(&folder);
        shop.run(&mut command)?;
        Ok(folder)
    }
}

/// Builds one command of a module at a version; the checksum database vouches for it.
pub(crate) fn install(shop: &Workshop<'_>, package: &str, version: &str) -> Result<()> {
    let mut command = go(false);
    command.env("GOBIN", shop.out).args(["install", "-ldflags", "-s -w", &format!("{package}@{version}")]);
    shop.run(&mut command).map(drop)
}

/// The folder of a module that `folder`'s module requires.
pub(crate) fn module_folder(shop: &Workshop<'_>, folder: &PathBuf, module: &str) -> Result<PathBuf> {
    let mut command = go(false);
    command.args(["list", "-m", "-f", "{{.Dir}}", module]).current_dir(folder);
    shop.run(&mut command).map(PathBuf::from)
}

fn go(cgo: bool) -> Command {
    let mut command = Command::new("go");
    command.env("GOFLAGS", "-buildvcs=false").env("CGO_ENABLED", if cgo { "1" } else { "0" });
    // A go.work of the caller must not change what is built.
    command.env("GOWORK", "off");
    command
}
