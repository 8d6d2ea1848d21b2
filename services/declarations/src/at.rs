//! Values that know where they were written.

use std::borrow::Cow;

use fabrique_yaml::Node;
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// A value and its place in the file that it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Its line, from 1.
    pub line: usize,
    /// Its column in characters, from 1.
    pub column: usize,
}

impl<T> At<T> {
    pub(crate) fn node(value: T, node: &Node) -> Self {
        Self { value, line: node.line, column: node.column }
    }

    /// The place without the value.
    #[must_use]
    pub fn place(&self) -> At<()> {
        At { value: (), line: self.line, column: self.column }
    }
}

/// The place is not written, so the schema is that of the value.
impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}
