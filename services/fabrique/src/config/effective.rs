//! The configuration as it is here: every key with its value and whoever says so.

use figment::{Figment, Source};
use serde::Serialize;
use serde_json::Value;

use super::keys::{self, Key, Kind};
use super::sections::Config;

/// A key as it is here.
#[derive(Debug, Serialize)]
pub(crate) struct Setting {
    /// The key.
    pub(crate) key: String,
    /// Its value as it would be written; `set` for a secret.
    pub(crate) value: String,
    /// `default`, the file, the environment, or `--set`.
    pub(crate) from: String,
}

/// Every key that has a value. `said` is what was said of the configuration, before secrets were put in their places.
pub(super) fn settings(config: &Config, said: &Figment) -> Vec<Setting> {
    let Ok(values) = serde_json::to_value(config) else { return Vec::new() };
    let mut settings = Vec::new();
    for key in keys::all() {
        match key.kind {
            Kind::Secret => settings.extend(secrets(&key, said)),
            _ => settings.extend(plain(&key, &values, said)),
        }
    }
    settings
}

fn plain(key: &Key, values: &Value, said: &Figment) -> Vec<Setting> {
    let setting = |(place, value): (String, &Value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let from = from(said, &place);
        Setting { key: place, value, from }
    };
    let is_empty = |value: &Value| value == "" || value.as_array().is_some_and(Vec::is_empty);
    // The keys of its sections follow a list.
    let values = key.values(values).into_iter().filter(|_| key.kind != Kind::Sections);
    values.filter(|(_, value)| !is_empty(value)).map(setting).collect()
}

/// Those that the environment has. One that is in a file shows by its `…_file` key.
fn secrets(key: &Key, said: &Figment) -> Vec<Setting> {
    let given = key.written().into_iter().filter(|place| said.find_value(place).is_ok());
    given.map(|place| Setting { value: "set".to_owned(), from: from(said, &place), key: place }).collect()
}

fn from(said: &Figment, key: &str) -> String {
    // What is below a list was said with the list.
    let parts: Vec<&str> = key.split('.').take_while(|part| part.parse::<usize>().is_err()).collect();
    let Some(said) = said.find_metadata(&parts.join(".")) else { return "default".to_owned() };
    match &said.source {
        Some(Source::File(file)) => file.display().to_string(),
        Some(Source::Code(_)) => "--set".to_owned(),
        Some(_) | None => "environment".to_owned(),
    }
}
