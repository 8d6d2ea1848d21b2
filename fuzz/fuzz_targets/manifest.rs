//! Any bytes as `code-location.manifest.yaml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fabrique_properties::declaration(bytes));
