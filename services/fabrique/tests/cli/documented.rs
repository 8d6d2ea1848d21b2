//! What the documents promise is there: the tests that they name, and configuration that can be copied from them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fabrique_kubernetes::config::Settings;
use serde_json::Value;

use crate::usage::{GOOD, configured, say};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document(name: &str) -> String {
    fs::read_to_string(repository().join(name)).unwrap()
}

/// The Rust sources below a folder.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    text
}

/// Names of tests are sentences; nothing else that is quoted has so many words.
fn is_a_test(name: &str) -> bool {
    let word =
        |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    name.matches('_').count() >= 2 && name.split('_').all(word)
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let text = document("docs/threat-model.md");
    let named: BTreeSet<&str> = text.split('`').skip(1).step_by(2).filter(|name| is_a_test(name)).collect();
    assert!(named.len() > 40, "{named:?}");
    let code: String =
        ["services", "tests", "bench"].iter().map(|folder| sources(&repository().join(folder))).collect();
    // A function of its own, or a row of a macro: `a_port_of_the_node(Rootless, "…")`.
    let exists = |name: &&str| {
        code.contains(&format!("fn {name}()"))
            || code.contains(&format!("\n    {name}(Rootless, "))
            || code.contains(&format!("\n    {name}(Userns, "))
    };
    let missing: Vec<_> = named.into_iter().filter(|name| !exists(name)).collect();
    assert!(missing.is_empty(), "not to be found: {missing:#?}");
}

/// The YAML of a document that begins with `start`.
fn yaml(text: &str, start: &str) -> String {
    let block = text.split("```").find(|block| block.starts_with(&format!("yaml\n{start}"))).unwrap();
    block["yaml\n".len()..].to_owned()
}

#[tokio::test]
async fn the_configuration_in_the_operators_guide_is_right() {
    let guide = document("docs/kubernetes.md");
    let folder = tempfile::tempdir().unwrap();
    let (pods, hosts) = (folder.path().join("builders.yaml"), folder.path().join("allow-list.yaml"));
    fs::write(&pods, yaml(&guide, "namespace:")).unwrap();
    fs::write(&hosts, yaml(&guide, "version:")).unwrap();
    let text = format!(
        "{GOOD}kubernetes: {{ builders_file: {} }}\nbuildkit: {{ allow_list_file: {} }}\n",
        pods.display(),
        hosts.display()
    );
    let config = configured(folder.path(), &text);
    // Nothing is left to complain about but that nobody listens there.
    say(&["--config", config.to_str().unwrap(), "validate"]).await.refused(3, "127.0.0.1:9");
}

/// The keys that `known` has and `told` has not.
fn untold(known: &Value, told: &Value, place: &str) -> Vec<String> {
    let Value::Object(known) = known else { return Vec::new() };
    let missing = |(key, value): (&String, &Value)| match told.get(key) {
        Some(below) => untold(value, below, &format!("{place}.{key}")),
        None => vec![format!("{place}.{key}")],
    };
    known.iter().flat_map(missing).collect()
}

#[test]
fn the_operators_guide_tells_every_setting_of_builders_with_its_default() {
    let text = yaml(&document("docs/kubernetes.md"), "namespace:");
    let settings: Settings = serde_saphyr::from_str(&text).unwrap();
    let needed = ["namespace", "images", "gate"];
    let mut least = serde_json::to_value(&settings).unwrap();
    let told: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(untold(&least, &told, "builders"), Vec::<String>::new());
    least.as_object_mut().unwrap().retain(|key, _| needed.contains(&key.as_str()));
    assert_eq!(serde_json::from_value::<Settings>(least).unwrap(), settings);
}
