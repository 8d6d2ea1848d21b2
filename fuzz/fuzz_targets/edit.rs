//! Any YAML, any of its scalars, any new text: `<8 bytes that choose><new text>\0<YAML>`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((chosen, rest)) = input.split_at_checked(8) else { return };
    let Some(end) = rest.iter().position(|byte| *byte == 0) else { return };
    let Ok(new) = std::str::from_utf8(&rest[..end]) else { return };
    fabrique_properties::edit(&rest[end + 1..], chosen, new);
});
