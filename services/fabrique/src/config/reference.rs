//! The page of all keys, for `docs/configuration.md` and `fabrique config --reference`.

use std::time::Duration;

use serde_json::Value;

use super::bounded::{GIB, KIB, MIB, TIB, written};
use super::keys::{self, Key, Kind, Part};

const INTRODUCTION: &str = "\
# Configuration: every key

Made from the program's own description by `fabrique config --reference`; `UPDATE_REFERENCE=1 cargo test -p fabrique
reference` writes it anew. What the sections are for, and an example, is in the [README](../README.md#configuration).

A key has three places: the YAML file of `--config`, where dots are nesting; the environment variable beside it, which wins
over the file; and `--set KEY=VALUE`, which wins over both. Lists and their sections are set as a whole in the environment:
`FABRIQUE_REGISTRY__ALLOWED='[\"registry:80\"]'`. A secret is read from the file that its `…_file` key names, or else from its
environment variable; it is refused in the file and on the command line.

Durations are written like `500ms`, `30s`, `5m`, `1h 30m` or `30d`, sizes as plain numbers of bytes. Everything is checked at
the start, before any server is asked, and all that is wrong is told at once; `fabrique validate` checks without starting.
Names that are nearly right are told with the right one. The settings of builder pods are in a file of their own,
`kubernetes.builders_file`, with its reference in [kubernetes.md](kubernetes.md).
";

/// The page.
pub(crate) fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut section = None;
    for key in keys::all() {
        let Some(Part::Name(name)) = key.parts.first() else { continue };
        if section.as_ref() != Some(name) {
            section = Some(name.clone());
            let head = format!("\n## {name}\n\n| key | environment | default | values | what it does |\n");
            page.push_str(&head);
            page.push_str("| --- | --- | --- | --- | --- |\n");
        }
        page.push_str(&row(&key));
    }
    page
}

fn row(key: &Key) -> String {
    let default = match default(key) {
        Some(default) => format!("`{default}`"),
        None if key.required => "**required**".to_owned(),
        None => "none".to_owned(),
    };
    let variable = key.variable().map_or_else(|| "with its list".to_owned(), |name| format!("`{name}`"));
    let (path, values, text) = (key.path(), values(&key.kind), escaped(&key.text));
    format!("| `{path}` | {variable} | {default} | {values} | {text} |\n")
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}

/// A key's default as it would be written; nothing for none, and for what an installation has to say.
pub(super) fn default(key: &Key) -> Option<String> {
    let default = key.default.as_ref().filter(|_| !key.required)?;
    match default {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(values) if values.is_empty() => None,
        Value::Number(number) if matches!(key.kind, Kind::Bytes { .. }) => number.as_u64().map(bytes),
        other => Some(other.to_string()),
    }
}

/// What may be written for a key of this kind.
pub(super) fn values(kind: &Kind) -> String {
    match kind {
        Kind::Wait { least, most } => format!("duration, {} to {}", wait(*least), wait(*most)),
        Kind::Count { least, most } => format!("{least} to {most}"),
        Kind::Bytes { least, most } => format!("bytes, {} to {}", bytes(*least), bytes(*most)),
        Kind::Secret => "secret".to_owned(),
        Kind::Switch => "true, false".to_owned(),
        Kind::List => "list".to_owned(),
        Kind::Sections => "list of sections".to_owned(),
        Kind::File => "file".to_owned(),
        Kind::Folder => "folder".to_owned(),
        Kind::Text => "text".to_owned(),
    }
}

fn wait(milliseconds: u64) -> String {
    written(Duration::from_millis(milliseconds))
}

/// `4194304 (4 MiB)`: the number is what is written, the rest is for people.
fn bytes(number: u64) -> String {
    let units = [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    let unit = units.into_iter().find(|(unit, _)| number >= *unit && number.is_multiple_of(*unit));
    match unit {
        Some((unit, name)) => format!("{number} ({} {name})", number / unit),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_reference_of_all_keys_is_as_the_program_has_them() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(&file, page()).unwrap();
        }
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(written == page(), "write it anew with UPDATE_REFERENCE=1, and review the change");
    }

    #[test]
    fn sizes_are_written_with_a_unit_for_people() {
        assert_eq!(bytes(0), "0");
        assert_eq!(bytes(4 << 20), "4194304 (4 MiB)");
        assert_eq!(bytes(1_000_000), "1000000");
    }
}
