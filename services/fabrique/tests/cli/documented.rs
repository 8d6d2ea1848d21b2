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

/// The documents that a change of the code has to keep true.
fn documents() -> Vec<PathBuf> {
    let root = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    let mut documents: Vec<PathBuf> = root.iter().map(PathBuf::from).collect();
    for folder in ["docs", "docs/adr"] {
        let files = fs::read_dir(repository().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        let pages = files.filter(|name| name.to_str().is_some_and(|name| name.ends_with(".md")));
        documents.extend(pages.map(|name| Path::new(folder).join(name)));
    }
    documents
}

/// What a text links to inside of the repository, without the place in the page.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let paths = targets.filter_map(|target| target.split('#').next());
    paths.filter(|path| !path.is_empty() && !path.contains("://"))
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let (mut broken, mut seen) = (Vec::new(), 0);
    for document in documents() {
        let text = fs::read_to_string(repository().join(&document)).unwrap();
        let folder = repository().join(document.parent().unwrap());
        for link in links(&text) {
            seen += 1;
            if !folder.join(link).exists() {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(seen > 100, "{seen}");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// `worker/session.rs` or `kubernetes/pool`, as tables and labels of links have it.
fn is_short_for_a_source(name: &str) -> bool {
    let crates = fs::read_dir(repository().join("services")).unwrap();
    let crates: Vec<String> = crates.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let known = name.split_once('/').is_some_and(|(owner, _)| crates.iter().any(|one| one == owner));
    known && name.ends_with(".rs")
}

#[test]
fn every_file_that_the_architecture_names_exists() {
    let text = document("ARCHITECTURE.md");
    let words = text.split(|c: char| c.is_whitespace() || "`[](),;|".contains(c));
    let named: BTreeSet<&str> = words.filter(|word| is_short_for_a_source(word)).collect();
    assert!(named.len() > 30, "{named:?}");
    let missing = named.into_iter().filter(|name| {
        let (owner, file) = name.split_once('/').unwrap();
        !repository().join("services").join(owner).join("src").join(file).exists()
    });
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// The newest Go that a pinned server asks for.
#[test]
fn the_readme_asks_for_the_go_that_the_bed_needs() {
    let pins = fs::read_dir(repository().join("tests/bed/pins")).unwrap();
    let modules = pins.filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("go.mod")).ok());
    let versions = modules.map(|module| {
        let line = module.lines().find_map(|line| line.strip_prefix("go ")).unwrap();
        line.split('.').map(|number| number.parse().unwrap()).collect::<Vec<u32>>()
    });
    let newest = versions.max().unwrap().iter().map(u32::to_string).collect::<Vec<_>>().join(".");
    assert!(document("README.md").contains(&format!(" {newest} or newer")), "Go {newest}");
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

/// The tests in a file, whatever they are made with; none in a file that is gone.
fn tests_of(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let (mut tests, mut attributed) = (BTreeSet::new(), false);
    for line in text.lines().map(str::trim_start) {
        attributed |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let Some(function) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") else {
            continue;
        };
        if std::mem::take(&mut attributed) {
            tests.extend(function.split(['(', '<']).next().map(str::to_owned));
        }
    }
    tests
}

/// The files that a row of a table links to, each with the tests that are named after it.
fn proofs(row: &str) -> impl Iterator<Item = (&str, BTreeSet<&str>)> {
    row.split("](").skip(1).filter_map(|rest| {
        let (file, after) = rest.split_once(')')?;
        let named = after.split('`').skip(1).step_by(2).filter(|name| is_a_test(name)).collect();
        file.ends_with(".rs").then_some((file, named))
    })
}

#[test]
fn every_invariant_names_tests_and_each_is_in_the_file_that_is_named_with_it() {
    let text = document("docs/invariants.md");
    let mut wrong = Vec::new();
    let (mut numbers, mut named_rows) = (Vec::new(), Vec::new());
    for row in text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| | ")) {
        let name = row.split('|').nth(1).unwrap().trim();
        if name == "---" {
            continue;
        }
        match name.parse::<u32>() {
            Ok(number) => numbers.push(number),
            Err(_) => named_rows.push(name),
        }
        let proofs: Vec<_> = proofs(row).collect();
        assert!(!proofs.is_empty(), "nothing proves {row}");
        for (file, named) in proofs {
            assert!(!named.is_empty(), "no test of {file} is named in {row}");
            let tests = tests_of(&repository().join("docs").join(file));
            let missing = named.into_iter().filter(|name| !tests.contains(*name));
            wrong.extend(missing.map(|name| format!("{name} in {file}")));
        }
    }
    let expected: Vec<u32> = (1..=6).chain(1..=11).chain([13, 15, 16]).collect();
    assert_eq!(numbers, expected);
    let named = [
        "migrations",
        "before the sync",
        "derived secrets",
        "setting up",
        "bringing up",
        "Gitea's way to GitHub",
        "checks on GitHub",
        "no secret is told",
        "a wrong registration",
        "a pushed image",
        "commit statuses",
        "a worker that stops",
        "a task that ends by itself",
    ];
    assert_eq!(named_rows, named);
    assert!(wrong.is_empty(), "not to be found: {wrong:#?}");
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
