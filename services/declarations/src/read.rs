//! What reading a declaration and reading a contract share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;

use fabrique_yaml::{Fields, Node, Reader};

use crate::{At, Finding, Quantity};

/// Reads a file of one document. What is returned had no findings.
pub(crate) fn file<T>(
    name: &str,
    bytes: &[u8],
    read: impl FnOnce(&Reader<'_>, &Node) -> Option<T>,
) -> Result<T, Vec<Finding>> {
    let reader = Reader::new(name);
    let value = reader.parse(bytes).and_then(|yaml| read(&reader, yaml.documents().first()?));
    match value {
        Some(value) if !reader.has_findings() => Ok(value),
        Some(_) | None => {
            let mut findings: Vec<Finding> = reader.into_findings().into_iter().map(Finding::from).collect();
            findings.sort();
            Err(findings)
        }
    }
}

/// A value with its place.
pub(crate) fn at<T>(reader: &Reader<'_>, node: &Node, what: &str) -> Option<At<T>>
where
    T: FromStr,
    T::Err: Display,
{
    reader.value(node, what).map(|value| At::node(value, node))
}

/// An optional field with its place. The outer nothing means that it is there and wrong.
pub(crate) fn optional<T>(fields: &Fields<'_>, name: &str, what: &str) -> Option<Option<At<T>>>
where
    T: FromStr,
    T::Err: Display,
{
    match fields.get(name) {
        None => Some(None),
        Some(node) => at(fields.reader, node, what).map(Some),
    }
}

/// What an amount is an amount of, which decides how fine it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Cores,
    Bytes,
}

/// An amount that is more than nothing and not finer than its unit.
pub(crate) fn amount(reader: &Reader<'_>, node: &Node, what: &str, unit: Unit) -> Option<At<Quantity>> {
    let text = reader.text(node, what)?;
    let refuse = |why: &str, remedy: &str| {
        reader.report(node, format!("{what}: {text:?} is {why}"), remedy);
        None
    };
    let amount = match text.parse::<Quantity>() {
        Ok(amount) => amount,
        Err(error) => {
            reader.report(node, format!("{what}: {error}"), "write a Kubernetes quantity");
            return None;
        }
    };
    match unit {
        Unit::Cores | Unit::Bytes if amount.is_zero() => {
            refuse("nothing", "write what is needed, or leave it out")
        }
        Unit::Cores if !amount.is_milli() => refuse("finer than a thousandth of a core", "write at least 1m"),
        Unit::Bytes if !amount.is_whole() => refuse(
            "no whole number of bytes",
            if text.ends_with('m') {
                "m is a thousandth: write Mi for mebibytes"
            } else {
                "write whole bytes"
            },
        ),
        Unit::Cores | Unit::Bytes => Some(At::node(amount, node)),
    }
}

/// An optional amount. The outer nothing means that it is there and wrong.
pub(crate) fn optional_amount(
    fields: &Fields<'_>,
    name: &str,
    what: &str,
    unit: Unit,
) -> Option<Option<At<Quantity>>> {
    match fields.get(name) {
        None => Some(None),
        Some(node) => amount(fields.reader, node, what, unit).map(Some),
    }
}

/// A list of different values; empty where there is none.
pub(crate) fn list<T>(fields: &Fields<'_>, name: &str, what: &str, limit: usize) -> Option<Vec<At<T>>>
where
    T: FromStr + Ord + Clone + Display,
    T::Err: Display,
{
    let Some(node) = fields.get(name) else { return Some(Vec::new()) };
    let reader = fields.reader;
    let (mut values, mut seen, mut right) = (Vec::new(), BTreeSet::new(), true);
    for item in reader.list(node, what, limit) {
        let Some(value) = at::<T>(reader, item, what) else {
            right = false;
            continue;
        };
        if !seen.insert(value.value.clone()) {
            reader.report(item, format!("{what} names {} twice", value.value), "keep one");
        }
        values.push(value);
    }
    right.then_some(values)
}

/// A mapping from names to what `read` makes of each; empty where there is none.
pub(crate) fn named<K, V>(
    fields: &Fields<'_>,
    name: &str,
    what: &str,
    limit: usize,
    read: impl Fn(&Reader<'_>, &Node, &str) -> Option<V>,
) -> Option<BTreeMap<K, At<V>>>
where
    K: FromStr + Ord,
    K::Err: Display,
{
    let Some(node) = fields.get(name) else { return Some(BTreeMap::new()) };
    let reader = fields.reader;
    if node.entries().len() > limit {
        reader.report(node, format!("{what} has more than {limit} entries"), "remove some");
        return None;
    }
    let known: Vec<&str> = node.entries().iter().filter_map(|(key, _)| key.text()).collect();
    reader.mapping(node, what, &known)?;
    let (mut all, mut right) = (BTreeMap::new(), true);
    for (key, value) in node.entries() {
        let Some(text) = key.text() else { continue };
        let name = reader.value::<K>(key, what);
        match (name, read(reader, value, &format!("{what}.{text}"))) {
            (Some(name), Some(value)) => {
                all.insert(name, At::node(value, key));
            }
            _ => right = false,
        }
    }
    right.then_some(all)
}

/// One of several words.
pub(crate) fn word<T: Copy>(reader: &Reader<'_>, node: &Node, what: &str, words: &[(&str, T)]) -> Option<T> {
    let text = reader.text(node, what)?;
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    if found.is_none() {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        reader.report(node, format!("{what} is {text:?}"), format!("write one of {}", known.join(", ")));
    }
    found
}
