//! Configuration: from a file, `FABRIQUE_…` and flags, checked as a whole before anything starts.
//!
//! Later sources win: built-in defaults, then the file, then the environment (`FABRIQUE_GITEA__URL` is
//! `gitea.url`), then `--set KEY=VALUE`. Secrets come from files named in the configuration (`…_file`) or from the
//! environment, never from the file itself, which is copied, committed and pasted into tickets.

mod adapters;
mod bounded;
mod check;
mod effective;
mod github;
mod init;
mod keys;
mod reference;
mod render;
mod secret;
mod sections;
mod seed;

use std::path::Path;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Yaml};
use figment::value::Value;

pub(crate) use check::Problem;
pub(crate) use effective::Setting;
pub(crate) use reference::page as reference;
pub(crate) use secret::Secret;
#[cfg(test)]
pub(crate) use sections::AddressSection;
pub(crate) use sections::{BuildkitSection, Config, Role};

/// Keys with the text that the environment has for them, as it stands there.
type Words = Vec<(String, String)>;

/// The configuration, or everything that is wrong with it.
///
/// # Errors
/// A list of problems, each naming the key and the remedy.
pub(crate) fn load(file: Option<&Path>, set: &[(String, String)]) -> Result<Config, Vec<Problem>> {
    read(file, set, &[]).map(|(config, _)| config)
}

/// The same for whoever makes secrets: the files of [`init::MADE`] need not be there yet.
///
/// # Errors
/// Those of [`load`].
pub(crate) fn load_before_init(
    file: Option<&Path>,
    set: &[(String, String)],
) -> Result<Config, Vec<Problem>> {
    read(file, set, &init::MADE).map(|(config, _)| config)
}

/// Every key with its value and who says so.
///
/// # Errors
/// Those of [`load`].
pub(crate) fn explain(file: Option<&Path>, set: &[(String, String)]) -> Result<Vec<Setting>, Vec<Problem>> {
    read(file, set, &[]).map(|(config, said)| effective::settings(&config, &said))
}

/// The configuration, and what was said of it.
fn read(
    file: Option<&Path>,
    set: &[(String, String)],
    made_later: &[&str],
) -> Result<(Config, Figment), Vec<Problem>> {
    let (said, environment) = gather(file, set)?;
    let exposed = secret::exposed(&said);
    if !exposed.is_empty() {
        return Err(exposed);
    }
    let (complete, mut problems) = secret::collect(said.clone(), &environment, made_later);
    let config: Config = complete
        .extract()
        .map_err(|errors| errors.into_iter().map(|e| Problem::of_figment(&e)).collect::<Vec<_>>())?;
    problems.extend(check::check(&config));
    if problems.is_empty() { Ok((config, said)) } else { Err(problems) }
}

/// What file, environment and flags say, later ones over earlier ones; and the environment's own words.
fn gather(file: Option<&Path>, set: &[(String, String)]) -> Result<(Figment, Words), Vec<Problem>> {
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
    let environment = ours.iter().map(|(name, text)| (name.as_str().to_owned(), text)).collect();
    figment = figment.merge(ours);
    for (key, value) in set {
        let value = value.parse::<Value>().unwrap_or_else(|never| match never {});
        figment = figment.merge(Serialized::default(key, value));
    }
    Ok((figment, environment))
}

#[cfg(test)]
mod tests;
