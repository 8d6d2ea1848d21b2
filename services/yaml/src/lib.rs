//! YAML that people write: read with places, edited byte by byte, judged in findings.
//!
//! * **Nodes** ([`Yaml`], [`Node`]) know their line, and their bytes where these are certain.
//! * **Edits** ([`replace_scalars`]). Serialising a parsed document loses comments, quotes, line ends and
//!   order. Here the parser (`saphyr-parser`) is used only to *find*: an edit replaces a range of bytes,
//!   and the result is parsed again to prove that nothing but the intended value changed. Whatever cannot
//!   be proven is refused.
//! * **Paths** ([`path`]) lead to one scalar of a file.
//! * **Typed reading** ([`Reader`]) of fabrique's own files reports every [`Finding`] of a file at once.
//!
//! It must not know what any file is for, nor where it came from.

mod finding;
mod node;
pub mod path;
mod reader;
mod scalar;
mod splice;
mod suggest;

pub use finding::{Finding, escaped};
pub use node::{Kind, Node, Style, Yaml};
pub use reader::{Fields, Reader};
pub use scalar::flow_text;
pub use splice::{Replacement, put_value, replace_scalars};
pub use suggest::did_you_mean;

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
