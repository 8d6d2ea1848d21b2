//! The JSON Schemas of the files that people write, generated from their types.
//!
//! A schema serves editors and programs. It does not replace reading: what it cannot say (amounts that are too
//! fine, a default class that is none of the classes) is told by [`Declaration::parse`] and [`Contract::parse`].

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use crate::{Contract, Declaration};

/// The schema of `code-location.manifest.yaml`.
#[must_use]
pub fn declaration() -> Value {
    of::<Declaration>()
}

/// The schema of `contract.yaml`.
#[must_use]
pub fn contract() -> Value {
    of::<Contract>()
}

fn of<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>().to_value()
}

/// Adds what every file of `cluster/apps` begins with and no type keeps.
pub(crate) fn with_head(schema: &mut Schema) {
    let head = [("apiVersion", "fabrique/v1", "Always."), ("kind", "Contract", "Always.")];
    for (key, value, description) in head {
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.insert(key.to_owned(), json!({ "const": value, "description": description }));
        }
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            required.push(key.into());
        }
    }
}
