//! `schema`: the JSON Schema of a file that people write.

use fabrique_declarations::schema;
use fabrique_operator::Exit;

use crate::cli::SchemaOf;
use crate::people::console::Console;

/// Prints it; it is JSON whatever output is asked for.
pub(crate) fn schema(console: Console, of: SchemaOf) -> anyhow::Result<Exit> {
    let schema = match of {
        SchemaOf::Declaration => schema::declaration(),
        SchemaOf::Contract => schema::contract(),
    };
    console.json(&schema)?;
    Ok(Exit::Ok)
}
