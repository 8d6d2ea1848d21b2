//! Secrets: given by the environment, or read from a file that the configuration names.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use figment::providers::Serialized;
use figment::value::Value;
use figment::{Figment, Source};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

use super::check::Problem;
use super::keys::{self, Kind};

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
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { "set" } else { "not set" })
    }
}

/// Nothing, whatever it is.
impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_none()
    }
}

impl JsonSchema for Secret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-kind": "secret" })
    }
}

/// Every key that holds a secret.
fn secrets() -> impl Iterator<Item = String> {
    keys::all().into_iter().filter(|key| key.kind == Kind::Secret).flat_map(|key| key.written())
}

/// Secrets that stand where they are read by others: in the configuration file, or on the command line.
pub(super) fn exposed(figment: &Figment) -> Vec<Problem> {
    secrets().filter_map(|key| exposed_at(figment, &key)).collect()
}

fn exposed_at(figment: &Figment, key: &str) -> Option<Problem> {
    let place = match figment.find_metadata(key)?.source {
        Some(Source::File(_)) => "in the configuration file",
        Some(Source::Code(_)) => "on the command line",
        Some(_) | None => return None,
    };
    // A section is no secret yet, and told as a wrong type later.
    let is_given = |value| !matches!(value, Value::Dict(..) | Value::Empty(..));
    let given = figment.find_value(key).is_ok_and(is_given);
    given.then(|| {
        Problem::new(
            key,
            format!("a secret stands {place}"),
            format!("put it in a file of its own and name that in {key}_file, or set it in the environment"),
        )
    })
}

/// Puts every secret in its place: the content of the file that its `…_file` key names, or its text in the
/// `environment`, letter for letter, whatever it looks like: `007` is not a number here. The file wins. One of
/// `made_later` that is not there is no problem.
pub(super) fn collect(
    mut figment: Figment,
    environment: &[(String, String)],
    made_later: &[&str],
) -> (Figment, Vec<Problem>) {
    let mut problems = Vec::new();
    for key in secrets() {
        let file = format!("{key}_file");
        let named = figment.extract_inner::<String>(&file).ok();
        let given = environment.iter().find(|(name, _)| *name == key).map(|(_, text)| text.clone());
        let secret = match named.map(|name| read(Path::new(&name)).map_err(|why| (name, why))) {
            Some(Ok(secret)) => Some(secret),
            Some(Err((name, _))) if made_later.contains(&key.as_str()) && !Path::new(&name).exists() => given,
            Some(Err((name, why))) => {
                let remedy = "name a readable file that holds the secret and nothing else";
                problems.push(Problem::new(file, format!("{name}: {why}"), remedy));
                given
            }
            None => given,
        };
        if let Some(secret) = secret {
            figment = figment.merge(Serialized::default(&key, secret));
        }
    }
    (figment, problems)
}

/// Trailing line ends are not part of a secret.
fn read(file: &Path) -> Result<String, String> {
    let size = std::fs::metadata(file).map_err(|e| e.to_string())?.len();
    if size > LARGEST {
        return Err(format!("{size} bytes are too many for a secret"));
    }
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string())?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() { Err("the file is empty".to_owned()) } else { Ok(text.to_owned()) }
}
