//! Compiles the messages in pure Rust, so that a build needs no `protoc`.

use std::error::Error;

use prost::Message as _;

const FILES: [&str; 1] = ["fabrique/v1/events.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["."])?;
    let encoded = descriptors.encode_to_vec();
    prost_build::Config::new().compile_fds(descriptors)?;
    pbjson_build::Builder::new()
        .register_descriptors(&encoded)?
        .ignore_unknown_fields()
        .ignore_unknown_enum_variants()
        .build(&[".fabrique.v1"])?;
    Ok(())
}
