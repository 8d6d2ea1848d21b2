//! `docs/files.md` tells every key that the readers know, and no other.
//!
//! The readers say themselves what they know: a key that nobody could mean is answered with the list of those that there
//! are. So every mapping of the page's examples is asked, and every key that is known has to stand in an example.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use fabrique_core::id::{AppName, EnvironmentName, RelPath};
use fabrique_gitops::{Entry, Finding, Rules, Tree, composition, placeholder, registration};
use fabrique_yaml::{Kind, Node, Style, Yaml, flow_text};

/// A key that is near to no other.
const NOBODYS: &str = "zzzzzzzzzzzzzzzzzzzzzzzz";

/// A value as it is written, to be changed.
#[derive(Debug, Clone)]
enum Value {
    Scalar(String),
    List(Vec<Value>),
    Mapping(Vec<(String, Value)>),
}

impl Value {
    fn of(node: &Node) -> Self {
        match &node.kind {
            // Without quotes a text is what it was: 3.10, null.
            Kind::Scalar(text, Style::Plain) if !text.contains([',', '[', ']', '{', '}', '#']) => {
                Self::Scalar(text.clone())
            }
            Kind::Scalar(text, _) => Self::Scalar(flow_text(text)),
            Kind::Sequence(items) => Self::List(items.iter().map(Self::of).collect()),
            Kind::Mapping(entries) => Self::Mapping(
                entries
                    .iter()
                    .map(|(key, value)| (key.text().unwrap().to_owned(), Self::of(value)))
                    .collect(),
            ),
            Kind::Alias => panic!("an alias in an example"),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Scalar(text) => text.clone(),
            Self::List(items) => format!("[{}]", items.iter().map(Self::text).collect::<Vec<_>>().join(", ")),
            Self::Mapping(entries) => {
                let entries =
                    entries.iter().map(|(key, value)| format!("{}: {}", flow_text(key), value.text()));
                format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// Every mapping in it by its path, with a way to it: which entry or item to go into, one after the other.
    fn mappings(&self, path: &str, way: &[usize], found: &mut Vec<(String, Vec<usize>)>) {
        let into = |number: usize| [way, &[number]].concat();
        match self {
            Self::Scalar(_) => {}
            Self::List(items) => {
                for (number, item) in items.iter().enumerate() {
                    item.mappings(&format!("{path}[]"), &into(number), found);
                }
            }
            Self::Mapping(entries) => {
                found.push((path.to_owned(), way.to_vec()));
                for (number, (key, value)) in entries.iter().enumerate() {
                    value.mappings(&below(path, key), &into(number), found);
                }
            }
        }
    }

    /// The entries of the mapping at the end of `way`.
    fn entries(&mut self, way: &[usize]) -> &mut Vec<(String, Value)> {
        let (value, rest) = match (self, way) {
            (Self::Mapping(entries), []) => return entries,
            (Self::Mapping(entries), [number, rest @ ..]) => (&mut entries[*number].1, rest),
            (Self::List(items), [number, rest @ ..]) => (&mut items[*number], rest),
            (other, _) => panic!("no mapping in {other:?}"),
        };
        value.entries(rest)
    }
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// What a reader says of a text.
type Read = fn(&str) -> Vec<Finding>;

fn app(text: &str) -> Vec<Finding> {
    let rules = Rules { registries: vec!["registry:80".to_owned()] };
    let path = RelPath::parse("apps/citation/app.yaml").unwrap();
    registration::parse(&path, "citation", text.as_bytes(), &rules).err().unwrap_or_default()
}

fn place() -> (AppName, EnvironmentName) {
    (AppName::parse("citation").unwrap(), EnvironmentName::parse("prod").unwrap())
}

fn composed(text: &str) -> Vec<Finding> {
    let path = RelPath::parse("apps/citation/prod/composition.yaml").unwrap();
    let (app, environment) = place();
    composition::parse(&path, text.as_bytes(), &app, &environment).err().unwrap_or_default()
}

fn placed(text: &str) -> Vec<Finding> {
    let path = RelPath::parse("apps/citation/prod/placeholders.yaml").unwrap();
    let tree: Tree = [(path, Entry::regular(text.to_owned()))].into_iter().collect();
    let (app, environment) = place();
    match placeholder::load(&tree, &app, &environment) {
        Ok(_) => Vec::new(),
        Err(fabrique_gitops::Refusal::BadFile(finding)) => vec![*finding],
        Err(other) => panic!("{other}"),
    }
}

fn section(heading: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/files.md");
    let page = fs::read_to_string(page).unwrap();
    page.split("\n## ").find(|section| section.starts_with(heading)).unwrap().to_owned()
}

fn examples(section: &str) -> Vec<String> {
    let blocks = section.split("```yaml\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The rows of the table: each key, and what is said of whether it is required.
fn rows(section: &str) -> BTreeMap<String, String> {
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(key, rest)| (key.to_owned(), rest.split(" |").next().unwrap().to_owned())).collect()
}

/// The keys that a reader knows of the mapping at `path`, as it lists them; any key where it takes any.
fn known(read: Read, example: &Value, path: &str, way: &[usize]) -> BTreeSet<String> {
    let mut asked = example.clone();
    asked.entries(way).push((NOBODYS.to_owned(), Value::Scalar("x".to_owned())));
    let findings = read(&asked.text());
    let Some(finding) = findings.iter().find(|finding| finding.what.contains(NOBODYS)) else {
        assert!(findings.is_empty(), "{path}: {findings:?}");
        return BTreeSet::from([below(path, "<name>")]);
    };
    let listed = finding.remedy.strip_prefix("remove it, the fields are ");
    let listed = listed.unwrap_or_else(|| panic!("{path}: {finding}"));
    listed.split(", ").map(|key| below(path, key)).collect()
}

fn told(heading: &str, read: Read) {
    let section = section(heading);
    let (mut all, mut shown) = (BTreeSet::new(), BTreeSet::new());
    let examples: Vec<Value> = examples(&section)
        .into_iter()
        .map(|text| {
            assert_eq!(read(&text), [], "{text}");
            let value = Value::of(&Yaml::parse(text.as_bytes()).unwrap().documents()[0]);
            assert_eq!(read(&value.text()), [], "written on one line: {}", value.text());
            value
        })
        .collect();
    for example in &examples {
        let mut mappings = Vec::new();
        example.mappings("", &[], &mut mappings);
        for (path, way) in mappings {
            let known = known(read, example, &path, &way);
            for (key, _) in example.clone().entries(&way).iter() {
                let any = below(&path, "<name>");
                shown.insert(if known.contains(&any) { any } else { below(&path, key) });
            }
            all.extend(known);
        }
    }
    let missing: Vec<&String> = all.difference(&shown).collect();
    assert!(missing.is_empty(), "in no example of docs/files.md: {missing:?}");
    let rows = rows(&section);
    let documented: BTreeSet<String> = rows.keys().cloned().collect();
    assert_eq!(documented, all, "the table of {heading} in docs/files.md against what is read");
    required(read, &examples, &rows);
}

/// A file without a required key is refused, and one without another key is not, in some example.
fn required(read: Read, examples: &[Value], rows: &BTreeMap<String, String>) {
    let mut without: BTreeMap<String, Vec<bool>> = BTreeMap::new();
    for example in examples {
        let mut mappings = Vec::new();
        example.mappings("", &[], &mut mappings);
        for (path, way) in mappings {
            for number in 0..example.clone().entries(&way).len() {
                let mut cut = example.clone();
                let (key, _) = cut.entries(&way).remove(number);
                without.entry(below(&path, &key)).or_default().push(read(&cut.text()).is_empty());
            }
        }
    }
    for (key, taken) in rows.iter().filter_map(|(key, said)| Some((key, (said, without.get(key)?)))) {
        match taken {
            (said, read) if said == "yes" => assert!(read.iter().all(|read| !read), "{key} is not required"),
            (said, read) if said == "no" => assert!(read.iter().any(|read| *read), "{key} is required"),
            (said, _) => assert!(said.starts_with("with `"), "{key}: {said:?}"),
        }
    }
}

#[test]
fn every_key_of_a_registration_is_told_and_no_other() {
    told("app.yaml", app);
}

#[test]
fn every_key_of_a_composition_is_told_and_no_other() {
    told("composition.yaml", composed);
}

#[test]
fn every_key_of_kept_placeholders_is_told_and_no_other() {
    told("placeholders.yaml", placed);
}

#[test]
fn the_page_leads_to_every_file() {
    let page = section("# Every file");
    for (file, reference) in [
        ("contract.yaml", "declarations.md#contractyaml"),
        ("code-location.manifest.yaml", "declarations.md#code-locationmanifestyaml"),
        ("placeholders.yaml", "#placeholdersyaml"),
        ("fabrique.yaml", "configuration.md"),
    ] {
        let row = page.lines().find(|line| line.starts_with("| ") && line.contains(&format!("`{file}`")));
        assert!(row.is_some_and(|row| row.contains(reference)), "{file}: {row:?}");
    }
}
