//! What holds for any bytes that people may write into the files that fabrique reads and edits.
//!
//! Each property is a function of bytes that panics where it does not hold. The tests beside this crate run all of
//! them on real files with random changes, with every other test; `fuzz/` runs the same functions under libFuzzer, for
//! as long as somebody lets it. The crates' own tests have the properties of their own types; here are those that
//! take a whole file, or a whole checkout.

#![expect(clippy::panic, clippy::expect_used, reason = "a property that does not hold is a panic")]

mod checkout;
mod declared;
mod edit;

pub use checkout::{FILES, checkout};
pub use declared::{CONTRACT, DECLARATION, contract, declaration};
pub use edit::edit;

/// What every finding has, whatever was wrong: a sentence, a remedy, and a place that is in the file.
fn is_told_well(bytes: &[u8], file: &str, (line, column): (usize, usize), what: &str, remedy: &str) {
    assert!(!file.is_empty() && !what.is_empty() && !remedy.is_empty(), "{file}: {what}; {remedy}");
    // Any of the three may end a line, so there are no more lines than that; the last one ends nowhere.
    let most = bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() + 1;
    assert!(line <= most + 1, "line {line} of {most}: {what}");
    assert_eq!(line == 0, column == 0, "line {line}, column {column}: {what}");
    assert!(!what.chars().any(|c| c.is_control() && c != '\n'), "control characters in {what:?}");
}
