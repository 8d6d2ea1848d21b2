//! Every key there is, read off the sections' own types: the reference, the check of bounds and the handling of
//! secrets are made from this list, so that none of them can miss a key.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::sections::Config;

/// One key.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    /// Its parts; a placeholder stands for a name that is free, or for a place in a list.
    pub(crate) parts: Vec<Part>,
    /// What it holds.
    pub(crate) kind: Kind,
    /// Its value when nobody says anything, as it would be written; nothing for none.
    pub(crate) default: Option<Value>,
    /// Whether an installation has to set it.
    pub(crate) required: bool,
    /// What it does.
    pub(crate) text: String,
}

/// One part of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// A name.
    Name(String),
    /// One of these names, like the roles.
    OneOf {
        /// What they are.
        what: String,
        /// All of them.
        names: Vec<String>,
    },
    /// Any place in a list.
    Each,
}

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A duration in milliseconds.
    Wait { least: u64, most: u64 },
    /// A number.
    Count { least: u64, most: u64 },
    /// A size in bytes.
    Bytes { least: u64, most: u64 },
    /// Something that is never printed.
    Secret,
    /// `true` or `false`.
    Switch,
    /// Several texts.
    List,
    /// Several sections, whose keys follow.
    Sections,
    /// The path of a file.
    File,
    /// The path of a folder.
    Folder,
    /// Anything else.
    Text,
}

impl Key {
    /// The key as it is written with dots.
    pub(crate) fn path(&self) -> String {
        let mut path = String::new();
        for part in &self.parts {
            match part {
                Part::Each => path.push_str("[]"),
                Part::Name(name) if path.is_empty() => path.push_str(name),
                Part::Name(name) => path.extend([".", name]),
                Part::OneOf { what, .. } => path.extend([".<", what, ">"]),
            }
        }
        path
    }

    /// The environment variable that sets it. A place in a list has none: the list is set as a whole.
    pub(crate) fn variable(&self) -> Option<String> {
        let parts = self.parts.iter().map(|part| match part {
            Part::Name(name) => Some(name.to_uppercase()),
            Part::OneOf { what, .. } => Some(format!("<{}>", what.to_uppercase())),
            Part::Each => None,
        });
        let parts: Vec<String> = parts.collect::<Option<_>>()?;
        Some(format!("FABRIQUE_{}", parts.join("__")))
    }

    /// The keys that it stands for, as they are written with dots. Lists, which cannot be written so, stand for none.
    pub(crate) fn written(&self) -> Vec<String> {
        let mut written = vec![String::new()];
        for part in &self.parts {
            let names = match part {
                Part::Name(name) => std::slice::from_ref(name),
                Part::OneOf { names, .. } => names,
                Part::Each => return Vec::new(),
            };
            let longer = |path: &String| -> Vec<String> {
                let dot = if path.is_empty() { "" } else { "." };
                names.iter().map(|name| format!("{path}{dot}{name}")).collect()
            };
            written = written.iter().flat_map(longer).collect();
        }
        written
    }

    /// Its values in a configuration, each with the key that it stands at.
    pub(crate) fn values<'v>(&self, config: &'v Value) -> Vec<(String, &'v Value)> {
        let mut found = vec![(String::new(), config)];
        for part in &self.parts {
            found = found.into_iter().flat_map(|(path, value)| below(&path, value, part)).collect();
        }
        found.retain(|(_, value)| !value.is_null());
        found
    }
}

fn below<'v>(path: &str, value: &'v Value, part: &Part) -> Vec<(String, &'v Value)> {
    let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match (part, value) {
        (Part::Each, Value::Array(values)) => {
            values.iter().enumerate().map(|(index, value)| (at(&index.to_string()), value)).collect()
        }
        (Part::Name(name), _) => value.get(name).map(|value| (at(name), value)).into_iter().collect(),
        (Part::OneOf { .. }, Value::Object(values)) => {
            values.iter().map(|(name, value)| (at(name), value)).collect()
        }
        (Part::Each | Part::OneOf { .. }, _) => Vec::new(),
    }
}

/// All keys, in the order of their names.
pub(crate) fn all() -> Vec<Key> {
    let mut keys = Vec::new();
    collect(&schema(), &[], &mut keys);
    keys
}

fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<Config>().to_value()
}

fn collect(schema: &Value, parts: &[Part], keys: &mut Vec<Key>) {
    let longer = |part: Part| [parts, &[part]].concat();
    if let Some(fields) = schema["properties"].as_object() {
        // A map: the same under every one of its names.
        if let (Some(what), Some(same)) = (schema["x-name"].as_str(), fields.values().next()) {
            let one = Part::OneOf { what: what.to_owned(), names: fields.keys().cloned().collect() };
            return collect(same, &longer(one), keys);
        }
        for (name, field) in fields {
            collect(field, &longer(Part::Name(name.clone())), keys);
        }
        return;
    }
    let key = Key {
        kind: kind(schema, parts.last()),
        default: Some(schema["default"].clone()).filter(|default| !default.is_null()),
        required: schema["x-required"] == Value::Bool(true),
        text: text(schema, "description").split_whitespace().collect::<Vec<_>>().join(" "),
        parts: parts.to_vec(),
    };
    keys.push(key);
    let items = &schema["items"];
    if items["properties"].is_object() {
        collect(items, &longer(Part::Each), keys);
    }
}

fn text(schema: &Value, field: &str) -> String {
    schema[field].as_str().unwrap_or_default().to_owned()
}

fn kind(schema: &Value, last: Option<&Part>) -> Kind {
    let bound = |field: &str| schema[field].as_u64().unwrap_or_default();
    let (least, most) = (bound("minimum"), bound("maximum"));
    let is = |kind: &str| {
        let types = &schema["type"];
        types == kind || types.as_array().is_some_and(|types| types.iter().any(|one| one == kind))
    };
    match (schema["x-kind"].as_str(), last) {
        (Some("wait"), _) => Kind::Wait { least, most },
        (Some("count"), _) => Kind::Count { least, most },
        (Some("bytes"), _) => Kind::Bytes { least, most },
        (Some("secret"), _) => Kind::Secret,
        _ if is("boolean") => Kind::Switch,
        _ if is("array") && schema["items"]["properties"].is_object() => Kind::Sections,
        _ if is("array") => Kind::List,
        (_, Some(Part::Name(name))) if name.ends_with("_file") => Kind::File,
        (_, Some(Part::Name(name))) if name == "dir" || name.ends_with("_dir") => Kind::Folder,
        _ => Kind::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_says_what_it_does_and_only_strings_are_left_without_bounds() {
        for key in all() {
            assert!(key.text.ends_with('.'), "{} says nothing: {:?}", key.path(), key.text);
            let bounded = matches!(key.kind, Kind::Wait { .. } | Kind::Count { .. } | Kind::Bytes { .. });
            let number = key.default.as_ref().is_some_and(Value::is_number);
            assert!(bounded || !number, "{} has no bounds", key.path());
        }
    }

    #[test]
    fn every_secret_can_be_read_from_a_file_beside_it() {
        let keys = all();
        let paths: Vec<String> = keys.iter().map(Key::path).collect();
        let secrets: Vec<&Key> = keys.iter().filter(|key| key.kind == Kind::Secret).collect();
        assert!(secrets.len() >= 8, "{secrets:?}");
        for secret in secrets {
            assert!(paths.contains(&format!("{}_file", secret.path())), "{}", secret.path());
        }
    }

    #[test]
    fn a_key_is_written_for_every_name_that_it_stands_for() {
        let keys = all();
        let user = keys.iter().find(|key| key.path() == "nats.users.<role>.user").unwrap();
        assert_eq!(user.written().len(), 7);
        assert!(user.written().contains(&"nats.users.worker.user".to_owned()));
        assert_eq!(user.variable().as_deref(), Some("FABRIQUE_NATS__USERS__<ROLE>__USER"));
    }
}
