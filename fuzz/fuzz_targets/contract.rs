//! Any bytes as `contract.yaml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fabrique_properties::contract(bytes));
