//! Secrets: given by the environment, or read from a file that the configuration names.

use std::fmt;
use std::path::{Path, PathBuf};

use figment::{Figment, Source};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::check::Problem;

/// The largest secret file.
const LARGEST: u64 = 64 * 1024;

/// A value that is never printed.
#[derive(Clone, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(Option<SecretString>);

impl Secret {
    pub(crate) fn get(&self) -> Option<SecretString> {
        self.0.clone().filter(|secret| !secret.expose_secret().is_empty())
    }

    pub(crate) fn is_set(&self) -> bool {
        self.get().is_some()
    }

    /// Reads the secret from `file`, when there is one; trailing line ends are not part of it.
    pub(crate) fn read(&mut self, key: &str, file: Option<&PathBuf>) -> Option<Problem> {
        let file = file?;
        match read(file) {
            Ok(secret) => {
                self.0 = Some(secret);
                None
            }
            Err(why) => Some(Problem::new(
                format!("{key}_file"),
                format!("{}: {why}", file.display()),
                "name a readable file that holds the secret and nothing else",
            )),
        }
    }
}

fn read(file: &Path) -> Result<SecretString, String> {
    let size = std::fs::metadata(file).map_err(|e| e.to_string())?.len();
    if size > LARGEST {
        return Err(format!("{size} bytes are too many for a secret"));
    }
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string())?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() {
        Err("the file is empty".to_owned())
    } else {
        Ok(SecretString::from(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { "set" } else { "not set" })
    }
}

/// Where secrets may stand in the configuration.
const KEYS: [&str; 7] = [
    "gitea.read_token",
    "gitea.status_token",
    "gitea.hooks_token",
    "gitea.apps_token",
    "receiver.secret",
    "receiver.next_secret",
    "registry.password",
];

/// Secrets that stand where they are read by others: in the configuration file, or on the command line.
pub(super) fn exposed(figment: &Figment) -> Vec<Problem> {
    let users = ["receiver", "worker", "reconciler", "operator", "observer", "admin"];
    let passwords = users.iter().map(|user| format!("nats.users.{user}.password"));
    KEYS.iter()
        .map(ToString::to_string)
        .chain(passwords)
        .filter_map(|key| exposed_at(figment, &key))
        .collect()
}

fn exposed_at(figment: &Figment, key: &str) -> Option<Problem> {
    let place = match figment.find_metadata(key)?.source {
        Some(Source::File(_)) => "in the configuration file",
        Some(Source::Code(_)) => "on the command line",
        Some(_) | None => return None,
    };
    let given = figment.find_value(key).is_ok_and(|value| value.into_string().is_some());
    given.then(|| {
        Problem::new(
            key,
            format!("a secret stands {place}"),
            format!("put it in a file of its own and name that in {key}_file, or set it in the environment"),
        )
    })
}
