//! Building Go programs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::Workshop;

/// A module of ours whose only purpose is to pin others with all their dependencies.
pub(crate) struct Pins {
    pub module: &'static str,
    pub sums: &'static str,
    /// Imports what is built, or is the program itself.
    pub imports: &'static str,
    /// What the linker is told, beside leaving symbols out: a version that the program reports of itself.
    pub link: &'static str,
}

impl Pins {
    /// Everything that decides what comes out.
    pub(crate) fn parts(&self) -> Vec<&'static str> {
        vec![self.module, self.sums, self.imports, self.link]
    }

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

/// Builds commands of one module at a version; the checksum database vouches for it.
pub(crate) fn install(shop: &Workshop<'_>, packages: &[&str], version: &str) -> Result<()> {
    let mut command = go(false);
    command.env("GOBIN", shop.out).args(["install", "-ldflags", "-s -w"]);
    command.args(packages.iter().map(|package| format!("{package}@{version}")));
    shop.run(&mut command).map(drop)
}

/// Like [`install`], of a command that is partly C.
pub(crate) fn install_cgo(shop: &Workshop<'_>, package: &str, version: &str, tags: &str) -> Result<()> {
    let mut command = go(true);
    command.env("GOBIN", shop.out).args(["install", "-ldflags", "-s -w", "-tags", tags]);
    shop.run(command.arg(format!("{package}@{version}"))).map(drop)
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
