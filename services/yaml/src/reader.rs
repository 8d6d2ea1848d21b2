//! A typed reader of fabrique's own YAML files that reports everything it finds at once.
//!
//! `serde` stops at the first error and knows its line only sometimes. Here each value is read with its
//! place, unknown fields are errors with a suggestion, and the rest of the file is read on.

use std::cell::RefCell;
use std::str::FromStr;

use crate::{Finding, Kind, Node, Yaml, YamlError, did_you_mean};

/// The largest file of ours, in bytes.
const MAX_BYTES: usize = 256 * 1024;

/// Reads one file and keeps what is wrong with it.
pub struct Reader<'f> {
    file: &'f str,
    findings: RefCell<Vec<Finding>>,
}

impl<'f> Reader<'f> {
    /// A reader of the file that findings call `file`.
    #[must_use]
    pub fn new(file: &'f str) -> Self {
        Self { file, findings: RefCell::new(Vec::new()) }
    }

    /// Everything that was wrong, in the order in which it was read.
    #[must_use]
    pub fn into_findings(self) -> Vec<Finding> {
        self.findings.into_inner()
    }

    /// Whether anything was wrong so far.
    #[must_use]
    pub fn has_findings(&self) -> bool {
        !self.findings.borrow().is_empty()
    }

    /// Keeps a finding at a node.
    pub fn report(&self, node: &Node, what: impl Into<String>, remedy: impl Into<String>) {
        self.findings.borrow_mut().push(Finding {
            file: self.file.to_owned(),
            line: node.line,
            column: node.column,
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    fn report_file(&self, what: String, remedy: &str) {
        let file = self.file.to_owned();
        self.findings.borrow_mut().push(Finding {
            file,
            line: 0,
            column: 0,
            what,
            remedy: remedy.to_owned(),
        });
    }

    /// Parses one document of at most 256 KiB without anchors, aliases and tags.
    pub fn parse(&self, bytes: &[u8]) -> Option<Yaml> {
        if bytes.len() > MAX_BYTES {
            self.report_file(format!("{} bytes, the limit is {MAX_BYTES}", bytes.len()), "shorten it");
            return None;
        }
        let yaml = match Yaml::parse(bytes) {
            Ok(yaml) => yaml,
            Err(error) => {
                let YamlError { line, column, what, remedy } = error;
                let (file, remedy) = (self.file.to_owned(), remedy.to_owned());
                self.findings.borrow_mut().push(Finding { file, line, column, what, remedy });
                return None;
            }
        };
        let [document] = yaml.documents() else {
            let count = yaml.documents().len();
            self.report_file(format!("{count} YAML documents, exactly one is expected"), "keep one document");
            return None;
        };
        let before = self.findings.borrow().len();
        document.walk(&mut |node| {
            if node.anchored || node.kind == Kind::Alias {
                self.report(node, "anchors and aliases are not accepted here", "write the value out");
            }
            if let Some(tag) = &node.tag {
                self.report(node, format!("the tag {tag} is not accepted here"), "remove the tag");
            }
        });
        (self.findings.borrow().len() == before).then_some(yaml)
    }

    /// The fields of a mapping; those not in `known` are reported.
    pub fn mapping<'n>(&'n self, node: &'n Node, what: &str, known: &[&str]) -> Option<Fields<'n>> {
        let Kind::Mapping(entries) = &node.kind else {
            self.report(
                node,
                format!("{what} is {}, a mapping is expected", node.describe()),
                "write key: value pairs",
            );
            return None;
        };
        for (key, _) in entries {
            let Some(name) = key.text() else {
                self.report(key, format!("a key of {what} is {}", key.describe()), "write a plain key");
                continue;
            };
            if !known.contains(&name) {
                let remedy = did_you_mean(name, known).map_or_else(
                    || format!("remove it, the fields are {}", known.join(", ")),
                    |near| format!("did you mean {near}?"),
                );
                self.report(key, format!("{what} has no field {name:?}"), remedy);
            }
        }
        Some(Fields { reader: self, node })
    }

    /// The items of a list of at most `limit`.
    pub fn list<'n>(&self, node: &'n Node, what: &str, limit: usize) -> &'n [Node] {
        match &node.kind {
            Kind::Sequence(items) if items.len() <= limit => items,
            Kind::Sequence(items) => {
                self.report(
                    node,
                    format!("{what} has {} items, the limit is {limit}", items.len()),
                    "shorten the list",
                );
                &[]
            }
            Kind::Scalar(..) | Kind::Mapping(_) | Kind::Alias => {
                self.report(
                    node,
                    format!("{what} is {}, a list is expected", node.describe()),
                    "write [a, b]",
                );
                &[]
            }
        }
    }

    /// The text of a scalar, as written.
    pub fn text<'n>(&self, node: &'n Node, what: &str) -> Option<&'n str> {
        let text = node.text();
        if text.is_none() {
            self.report(node, format!("{what} is {}, a text is expected", node.describe()), "write a text");
        }
        text
    }

    /// A scalar that follows the rule of `T`.
    pub fn value<T>(&self, node: &Node, what: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        match self.text(node, what)?.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.report(node, format!("{what}: {error}"), "correct the value");
                None
            }
        }
    }

    /// A text of one line and at most `limit` characters.
    pub fn line(&self, node: &Node, what: &str, limit: usize) -> Option<String> {
        let text = self.text(node, what)?;
        if text.chars().count() > limit || text.chars().any(char::is_control) {
            self.report(node, format!("{what} is not one line of at most {limit} characters"), "shorten it");
            return None;
        }
        Some(text.to_owned())
    }
}

/// The fields of a mapping.
#[derive(Clone, Copy)]
pub struct Fields<'n> {
    /// Who reads.
    pub reader: &'n Reader<'n>,
    /// The mapping.
    pub node: &'n Node,
}

impl<'n> Fields<'n> {
    /// The value of a field; an explicit null counts as absent.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'n Node> {
        self.node.entry(name).map(|(_, value)| value).filter(|value| !value.is_null())
    }

    /// The value of a field that must be there.
    pub fn required(&self, name: &str) -> Option<&'n Node> {
        let value = self.get(name);
        if value.is_none() {
            self.reader.report(self.node, format!("the field {name} is missing"), format!("add {name}"));
        }
        value
    }

    /// A required field that follows the rule of `T`.
    pub fn parsed<T>(&self, name: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        self.required(name).and_then(|node| self.reader.value(node, name))
    }

    /// An optional field that follows the rule of `T`. The outer nothing means that it is there and wrong.
    pub fn optional<T>(&self, name: &str) -> Option<Option<T>>
    where
        T: FromStr,
        T::Err: std::fmt::Display,
    {
        match self.get(name) {
            None => Some(None),
            Some(node) => self.reader.value(node, name).map(Some),
        }
    }

    /// A field that must hold exactly `expected`.
    pub fn constant(&self, name: &str, expected: &str) {
        if let Some(node) = self.required(name)
            && node.text() != Some(expected)
        {
            let found = node.text().unwrap_or_else(|| node.describe());
            self.reader.report(node, format!("{name} is {found:?}"), format!("write {name}: {expected}"));
        }
    }
}
