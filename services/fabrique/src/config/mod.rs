//! Configuration: from a file, `FABRIQUE_…` and flags, checked as a whole before anything starts.
//!
//! Later sources win: built-in defaults, then the file, then the environment (`FABRIQUE_GITEA__URL` is
//! `gitea.url`), then `--set KEY=VALUE`. Secrets come from files named in the configuration (`…_file`) or from the
//! environment, never from the file itself, which is copied, committed and pasted into tickets.

mod check;
mod secret;
mod sections;

use std::path::Path;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Yaml};
use figment::value::Value;

pub(crate) use check::Problem;
pub(crate) use sections::{Config, DaemonSection, Role};

/// The configuration, or everything that is wrong with it.
///
/// # Errors
/// A list of problems, each naming the key and the remedy.
pub(crate) fn load(file: Option<&Path>, set: &[(String, String)]) -> Result<Config, Vec<Problem>> {
    let mut figment = Figment::new();
    if let Some(file) = file {
        if !file.is_file() {
            return Err(vec![Problem::new(
                "--config",
                format!("{} is not a file", file.display()),
                "name the configuration file, or leave the flag out to use FABRIQUE_… alone",
            )]);
        }
        figment = figment.merge(Yaml::file_exact(file));
    }
    // Every key is below a section. What else begins so is not ours: Kubernetes sets FABRIQUE_PORT and its like for
    // a Service of that name.
    let ours = Env::prefixed("FABRIQUE_").filter(|name| name.as_str().contains("__")).split("__");
    let mut figment = figment.merge(ours);
    for (key, value) in set {
        let value = value.parse::<Value>().unwrap_or_else(|never| match never {});
        figment = figment.merge(Serialized::default(key, value));
    }
    let exposed = secret::exposed(&figment);
    if !exposed.is_empty() {
        return Err(exposed);
    }
    let mut config: Config = figment
        .extract()
        .map_err(|errors| errors.into_iter().map(|e| Problem::of_figment(&e)).collect::<Vec<_>>())?;
    let problems: Vec<Problem> =
        config.read_secret_files().into_iter().chain(check::check(&config)).collect();
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}
