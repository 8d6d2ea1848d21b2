//! The forge and its first database.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::super::go::{self, Pins};
use super::super::{Cache, Workshop, system};
use super::Product;
use crate::gitea::{GiteaOptions, Queues};
use crate::site::Site;
use crate::template::fill;

pub(super) const VERSION: &str = "1.26.0";
pub(super) const TAGS: &str = "sqlite sqlite_unlock_notify";
pub(super) const PINS: Pins = Pins {
    module: include_str!("../../../pins/gitea/go.mod"),
    sums: include_str!("../../../pins/gitea/go.sum"),
    imports: include_str!("../../../pins/gitea/tools.go"),
    link: "",
};
pub(super) const INI: &str = include_str!("../../../config/gitea.ini");

/// Gitea's administrator. The plain name "admin" is reserved there.
pub(crate) const ADMIN: &str = "bed-admin";
/// Of use only against servers that live for seconds on addresses that nobody else reaches.
pub(crate) const ADMIN_PASSWORD: &str = "only-for-the-test-bed";

/// Without the `bindata` tag, which would need the frontend's build: the forge reads its templates from a folder,
/// and the bed does without its styles and scripts.
pub(super) fn server(shop: &Workshop<'_>) -> Result<()> {
    let pins = PINS.build(shop, true, TAGS, &["code.gitea.io/gitea"])?;
    let module = go::module_folder(shop, &pins, "code.gitea.io/gitea")?;
    let assets = shop.out.join("static");
    fs::create_dir(&assets)?;
    for name in ["templates", "options", "public"] {
        shop.run(Command::new("cp").arg("-R").arg(module.join(name)).arg(&assets))?;
    }
    // The module cache is read-only, and the copy could then not be removed by its owner.
    shop.run(Command::new("chmod").args(["-R", "u+w"]).arg(&assets)).map(drop)
}

pub(super) fn data(cache: &Cache, shop: &Workshop<'_>) -> Result<()> {
    let work = shop.scratch.join("work");
    fs::create_dir_all(work.join("data"))?;
    let config = work.join("app.ini");
    // With a write-ahead log the newest rows would stay in a file beside the database.
    let extra_ini = "[database]\nSQLITE_JOURNAL_MODE = DELETE\n".to_owned();
    let options = GiteaOptions { extra_ini, ..GiteaOptions::default() };
    fs::write(&config, gitea_config(cache, &work, &Site::loopback(0), &options)?)?;
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

/// Gitea's configuration for a work folder and a place to listen.
pub(crate) fn gitea_config(
    cache: &Cache,
    work: &Path,
    site: &Site,
    options: &GiteaOptions,
) -> Result<String> {
    let queues = match options.queues {
        Queues::Channel => "[queue.push_update]\nTYPE = channel\n\n[queue.webhook_sender]\nTYPE = channel\n",
        Queues::Default => "",
    };
    let assets = cache.folder(Product::Gitea).join("static");
    let values = [
        ("USER", system::user_name()?),
        ("WORK", work.to_string_lossy().into_owned()),
        ("ADDRESS", site.address().to_string()),
        ("PORT", site.port().to_string()),
        ("STATIC", assets.to_string_lossy().into_owned()),
        ("QUEUES", format!("{queues}\n{}", options.extra_ini)),
    ];
    fill(INI, &values.each_ref().map(|(name, value)| (*name, value.as_str())))
}
