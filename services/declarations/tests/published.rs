//! What is published about the files: their schemas, and the reference that tells every key.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fabrique_declarations::{Contract, Declaration, schema};
use serde_json::{Value, json};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn reference() -> String {
    fs::read_to_string(docs().join("declarations.md")).unwrap()
}

/// Compares a committed schema with what is generated, or writes it with `UPDATE_SCHEMAS=1`.
fn committed(name: &str, schema: &Value) {
    let path = docs().join("schemas").join(name);
    let text = format!("{}\n", serde_json::to_string_pretty(schema).unwrap());
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(there == text, "{name} differs: UPDATE_SCHEMAS=1 cargo test -p fabrique-declarations published");
}

#[test]
fn the_committed_schemas_are_those_of_the_types() {
    committed("code-location.manifest.json", &schema::declaration());
    committed("contract.json", &schema::contract());
}

/// A key of a schema: whether it is required, and what is said of it.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    required: bool,
    description: String,
}

/// Every key below `schema`, by its path: `.` before a key, `[]` after a list, `<name>` for any key.
fn keys(schema: &Value, place: &str, found: &mut BTreeMap<String, Key>) {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (key, below) in schema["properties"].as_object().into_iter().flatten() {
        let path = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
        let description = below["description"].as_str().unwrap_or_default().to_owned();
        let told = Key { required: required.contains(&json!(key)), description };
        found.insert(path.clone(), told);
        keys(below, &path, found);
    }
    let alternatives = ["anyOf", "oneOf"].iter().flat_map(|of| schema[of].as_array().into_iter().flatten());
    let alternatives: Vec<&Value> = alternatives.filter(|one| one["properties"].is_object()).collect();
    for alternative in &alternatives {
        let mut below = BTreeMap::new();
        keys(alternative, place, &mut below);
        for key in below.values_mut() {
            // What only one of several ways needs, the file does not. A way of one key is described as a whole.
            key.required &= alternatives.len() == 1;
            if key.description.is_empty() {
                key.description = alternative["description"].as_str().unwrap_or_default().to_owned();
            }
        }
        found.extend(below);
    }
    if schema["items"].is_object() {
        keys(&schema["items"], &format!("{place}[]"), found);
    }
    for any in [&schema["additionalProperties"]]
        .into_iter()
        .chain(schema["patternProperties"].as_object().into_iter().flat_map(|all| all.values()))
    {
        if any.is_object() {
            keys(any, &format!("{place}.<name>"), found);
        }
    }
}

/// The rows of the tables below a heading: ``| `key` | required | … |``.
fn rows(document: &str, heading: &str) -> BTreeMap<String, bool> {
    let section = document.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(key, rest)| (key.to_owned(), rest.split('|').next().unwrap().trim() == "yes")).collect()
}

#[test]
fn the_reference_tells_every_key_of_both_files_and_no_other() {
    for (heading, schema) in
        [("code-location.manifest.yaml", schema::declaration()), ("contract.yaml", schema::contract())]
    {
        let mut known = BTreeMap::new();
        keys(&schema, "", &mut known);
        assert!(known.len() > 15, "{known:?}");
        let undescribed: Vec<_> = known.iter().filter(|(_, key)| key.description.is_empty()).collect();
        assert!(undescribed.is_empty(), "{undescribed:?}");
        let known: BTreeMap<_, _> = known.into_iter().map(|(path, key)| (path, key.required)).collect();
        assert_eq!(rows(&reference(), heading), known, "{heading}");
    }
}

/// The YAML blocks of the reference, by their first line without `# `.
fn examples() -> Vec<(String, String)> {
    let text = reference();
    let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    blocks.map(|block| (block.lines().next().unwrap().trim_start_matches("# ").to_owned(), block)).collect()
}

fn valid(schema: &Value, yaml: &str) -> bool {
    let value: Value = serde_saphyr::from_str(yaml).unwrap();
    jsonschema::validator_for(schema).unwrap().is_valid(&value)
}

#[test]
fn the_examples_are_right_by_the_reader_and_by_the_schema() {
    let mut told = 0;
    for (first, example) in examples() {
        if first.ends_with("code-location.manifest.yaml") {
            assert_eq!(Declaration::parse("example", example.as_bytes()).map(|_| ()), Ok(()), "{example}");
            assert!(valid(&schema::declaration(), &example), "{example}");
            told += 1;
        }
    }
    assert!(told >= 2);
    let contract = fs::read_to_string(docs().join("contract.yaml.example")).unwrap();
    assert!(Contract::parse("contract.yaml.example", contract.as_bytes()).is_ok());
    assert!(valid(&schema::contract(), &contract));
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    let least = "codeLocation: a\nready: true\ncontractVersion: 1\n";
    assert!(valid(&schema::declaration(), least));
    for more in [
        "owner: me\n",
        "resources: { gpu: 1 }\n",
        "resources: { cpu: lots }\n",
        "resources: { memory: -1Gi }\n",
        "revision: HEAD\n",
        "dependsOn: { codeLocations: [A] }\n",
        "dependsOn: { buckets: [{ size: 1Gi }] }\n",
        "dependsOn: { buckets: [{ name: abc, class: x }] }\n",
        "dependsOn: { migrations: [../a.sql] }\n",
        "dependsOn: { secrets: [a, a] }\n",
    ] {
        let text = format!("{least}{more}");
        assert!(Declaration::parse("f", text.as_bytes()).is_err(), "{more}");
        assert!(!valid(&schema::declaration(), &text), "{more}");
    }
    for missing in ["codeLocation: a\n", "ready: true\n", "contractVersion: 1\n"] {
        let text = least.replace(missing, "");
        assert!(
            Declaration::parse("f", text.as_bytes()).is_err() && !valid(&schema::declaration(), &text),
            "{missing}"
        );
    }
}
