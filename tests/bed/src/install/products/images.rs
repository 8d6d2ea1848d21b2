//! Layers of images, made by hand: no build may depend on a builder that is itself under test.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use super::super::{Cache, Workshop, digest, system};
use super::{Product, only_file};

/// The file of every product that is a layer, uncompressed.
pub(crate) const LAYER: &str = "layer.tar";
/// The layer's digest beside it, `sha256:…`.
pub(crate) const LAYER_DIGEST: &str = "layer.digest";
/// The blobs that the base image's manifest names, as files.
pub(crate) const BUSYBOX_BLOBS: [&str; 2] = [LAYER, "config.json"];

/// What Debian's layer has beside the essential packages: what a builder needs and what a probe asks with.
pub(super) const DEBIAN_PACKAGES: &str = "git,uidmap,ca-certificates,libseccomp2,iproute2,curl";
/// What no container reads.
const DEBIAN_BALLAST: [&str; 8] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/lintian",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
];
/// The user that builders run as, uid and gid 1000, with the numbers of its containers' users.
pub(super) const DEBIAN_USER: [(&str, &str); 4] = [
    ("etc/passwd", "user:x:1000:1000::/home/user:/bin/bash\n"),
    ("etc/group", "user:x:1000:\n"),
    ("etc/subuid", "user:100000:65536\n"),
    ("etc/subgid", "user:100000:65536\n"),
];

/// An image of one layer from the distribution's static busybox.
pub(super) fn busybox(shop: &Workshop<'_>) -> Result<()> {
    let (packages, unpacked, root) =
        (shop.scratch.join("packages"), shop.scratch.join("unpacked"), shop.scratch.join("root"));
    fs::create_dir(&packages)?;
    shop.run(Command::new("apt-get").args(["download", "busybox-static"]).current_dir(&packages))?;
    shop.run(Command::new("dpkg-deb").arg("-x").arg(only_file(&packages)?).arg(&unpacked))?;
    for folder in ["bin", "etc", "root", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let program = root.join("bin/busybox");
    let packed = ["bin/busybox", "usr/bin/busybox"].map(|path| unpacked.join(path));
    let packed = packed.iter().find(|path| path.exists()).context("no busybox in the package")?;
    fs::copy(packed, &program)?;
    for applet in shop.run(Command::new(&program).arg("--list"))?.lines().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    pack(shop, &root, &["--owner=0", "--group=0"])?;
    describe_image(shop.out, &fs::read(shop.out.join(LAYER))?)
}

fn describe_image(out: &Path, layer: &[u8]) -> Result<()> {
    let config = json!({
        "architecture": architecture(), "os": "linux",
        "config": { "Env": ["PATH=/bin"], "Cmd": ["/bin/sh"], "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [digest(layer)] },
        "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "the test bed" }],
    })
    .to_string();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(config.as_bytes()), "size": config.len(),
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": digest(layer), "size": layer.len(),
        }],
    });
    fs::write(out.join("config.json"), config)?;
    fs::write(out.join("manifest.json"), manifest.to_string())?;
    Ok(())
}

/// What decides Debian's layer, but for the release and the day.
pub(super) fn debian_pins() -> Vec<&'static str> {
    let user = DEBIAN_USER.iter().flat_map(|(path, line)| [*path, *line]);
    [Product::Debian.version(), DEBIAN_PACKAGES].into_iter().chain(DEBIAN_BALLAST).chain(user).collect()
}

/// This machine's, as images and Debian call it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Debian's smallest system of the release that this machine runs, so that programs built here run there.
pub(super) fn debian(shop: &Workshop<'_>) -> Result<()> {
    let root = shop.scratch.join("root");
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={DEBIAN_PACKAGES}"), &system::codename()?]);
    shop.run(debootstrap.arg(&root))?;
    for folder in DEBIAN_BALLAST {
        fs::remove_dir_all(root.join(folder)).with_context(|| format!("removing {folder}"))?;
    }
    // A container brings its own, and an unprivileged one may not make device nodes.
    for folder in ["dev", "proc", "sys"] {
        fs::remove_dir_all(root.join(folder))?;
        fs::create_dir(root.join(folder))?;
    }
    for (path, line) in DEBIAN_USER {
        let mut file = OpenOptions::new().create(true).append(true).open(root.join(path))?;
        file.write_all(line.as_bytes())?;
    }
    pack(shop, &root, &[])
}

/// What makes a builder of Debian's layer: BuildKit, its helpers, and a user that may map the ids of others.
pub(super) fn builder(cache: &Cache, shop: &Workshop<'_>) -> Result<()> {
    let root = shop.scratch.join("root");
    let bin = root.join("usr/bin");
    fs::create_dir_all(&bin)?;
    let programs = [
        (Product::Buildkit, "buildkitd"),
        (Product::Buildkit, "buildctl"),
        (Product::Rootlesskit, "rootlesskit"),
        (Product::Runc, "runc"),
    ];
    for (product, name) in programs {
        fs::copy(cache.folder(product).join(name), bin.join(name))?;
    }
    // As setuid programs these two fail in a pod ("write to uid_map failed"); capabilities work.
    for (name, capability) in [("newuidmap", "cap_setuid=ep"), ("newgidmap", "cap_setgid=ep")] {
        let program = bin.join(name);
        fs::copy(Path::new("/usr/bin").join(name), &program)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        shop.run(Command::new("setcap").arg(capability).arg(&program))?;
    }
    for path in ["home/user/.local/tmp", "home/user/.local/share/buildkit", "run/user/1000"] {
        fs::create_dir_all(root.join(path))?;
    }
    for path in ["home/user", "run/user/1000"] {
        shop.run(Command::new("chown").args(["-R", "1000:1000"]).arg(root.join(path)))?;
    }
    pack(shop, &root, &[])
}

/// What decides squid's layer, but for the release and the day.
pub(super) fn squid_pins() -> Vec<&'static str> {
    debian_pins().into_iter().chain([Product::Squid.version()]).collect()
}

/// What makes a proxy of Debian's layer: squid, and what it needs and the layer lacks, which `apt-get` finds out by the
/// layer's own list of packages. Nothing of it is configured, and nothing is installed on this machine.
pub(super) fn squid(cache: &Cache, shop: &Workshop<'_>) -> Result<()> {
    let (packages, root) = (shop.scratch.join("packages"), shop.scratch.join("root"));
    fs::create_dir_all(packages.join("partial"))?;
    fs::create_dir(&root)?;
    let mut list = Command::new("tar");
    list.args(["--extract", "--to-stdout", "--file"]).arg(cache.folder(Product::Debian).join(LAYER));
    let status = shop.scratch.join("status");
    fs::write(&status, shop.run(list.arg("./var/lib/dpkg/status"))? + "\n\n")?;
    let mut download = Command::new("apt-get");
    download.args(["install", "--download-only", "--no-install-recommends", "--yes", "--quiet", "--quiet"]);
    // Nobody else's folder: there is nothing to be locked.
    download.args(["--option", "Debug::NoLocking=1", "--option"]);
    download.arg(format!("Dir::State::status={}", status.display())).arg("--option");
    download.arg(format!("Dir::Cache::archives={}", packages.display()));
    shop.run(download.arg("squid"))?;
    for entry in fs::read_dir(&packages)? {
        let package = entry?.path();
        if package.extension().is_some_and(|ending| ending == "deb") {
            shop.run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&root))?;
        }
    }
    // Links to folders of /usr in the layer below, whose place a folder would take.
    for folder in ["bin", "lib", "sbin"].map(|name| root.join(name)).iter().filter(|folder| folder.is_dir()) {
        shop.run(Command::new("cp").arg("--archive").arg(folder).arg(root.join("usr")))?;
        fs::remove_dir_all(folder)?;
    }
    for folder in DEBIAN_BALLAST.map(|name| root.join(name)).iter().filter(|folder| folder.is_dir()) {
        fs::remove_dir_all(folder)?;
    }
    pack(shop, &root, &[])
}

/// A layer with one program in `/usr/bin`, beside the program itself.
pub(super) fn of_program(shop: &Workshop<'_>, name: &str) -> Result<()> {
    let root = shop.scratch.join("root");
    fs::create_dir_all(root.join("usr/bin"))?;
    fs::copy(shop.out.join(name), root.join("usr/bin").join(name))?;
    pack(shop, &root, &[])
}

/// File capabilities are kept, and owners where `owners` names none; times are not.
fn pack(shop: &Workshop<'_>, root: &Path, owners: &[&str]) -> Result<()> {
    let layer = shop.out.join(LAYER);
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--mtime=@0", "--numeric-owner"]);
    tar.args(owners);
    tar.args(["--xattrs", "--xattrs-include=security.capability", "--pax-option=delete=atime,delete=ctime"]);
    shop.run(tar.arg("--create").arg("--file").arg(&layer).arg("--directory").arg(root).arg("."))?;
    let sum = shop.run(Command::new("sha256sum").arg("--binary").arg(&layer))?;
    let sum = sum.split(' ').next().context("sha256sum printed nothing")?;
    fs::write(shop.out.join(LAYER_DIGEST), format!("sha256:{sum}"))?;
    Ok(())
}
