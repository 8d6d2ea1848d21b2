//! Any bytes as one file of `cluster/apps`: the first byte says which.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let [which, bytes @ ..] = input {
        fabrique_properties::checkout(usize::from(*which), bytes);
    }
});
