//! YAML as a tree of nodes that know their bytes, and edits that change nothing else.
//!
//! Serialising a parsed document loses comments, quotes, line ends and order. Here the parser
//! (`saphyr-parser`) is used only to *find*: an edit replaces a range of bytes, and the result is parsed
//! again to prove that nothing but the intended value changed. Whatever cannot be proven is refused.

mod node;
mod scalar;
mod splice;

pub use node::{Kind, Node, Style, Yaml};
pub(crate) use scalar::flow_text;
pub(crate) use splice::put_value;
pub use splice::{Replacement, replace_scalars};

/// What stands in the way of reading or editing a YAML text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}; {remedy}")]
pub struct YamlError {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What to do next.
    pub remedy: &'static str,
}

impl YamlError {
    pub(crate) fn at(node: &Node, what: impl Into<String>, remedy: &'static str) -> Self {
        Self { line: node.line, column: node.column, what: what.into(), remedy }
    }
}

#[cfg(test)]
mod tests;
