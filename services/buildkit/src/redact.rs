//! Keeps secrets out of what a build prints.
//!
//! A RUN step may mount a secret and print it; the daemon passes its output on. Every value that a session
//! answered is remembered here and masked in each line that leaves this crate.

use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};

const MASK: &str = "***";
/// Shorter values would mask half the output, and are no secrets.
const SHORTEST: usize = 5;

/// The values to mask. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Redactor(Arc<RwLock<Vec<SecretString>>>);

impl Redactor {
    /// Remembers a value, each line of it, and its base64.
    pub(crate) fn remember(&self, value: &[u8]) {
        let text = String::from_utf8_lossy(value);
        let mut values = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut add = |text: &str| {
            let known = values.iter().any(|value| value.expose_secret() == text);
            if text.len() >= SHORTEST && !known {
                values.push(SecretString::from(text));
            }
        };
        text.lines().map(str::trim).for_each(&mut add);
        add(STANDARD.encode(value).trim_end_matches('='));
        // The longest first: a value within another must not leave the rest of that one readable.
        values.sort_by_key(|value| std::cmp::Reverse(value.expose_secret().len()));
    }

    /// `text` with every remembered value masked.
    pub(crate) fn mask(&self, text: String) -> String {
        let values = self.0.read().unwrap_or_else(PoisonError::into_inner);
        values.iter().fold(text, |text, value| {
            let value = value.expose_secret();
            if text.contains(value) { text.replace(value, MASK) } else { text }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_values_their_lines_and_their_base64() {
        let redactor = Redactor::default();
        redactor.remember(b"hunter2!\nsecond line");
        let line = format!("a hunter2! b second line c {}", STANDARD.encode("hunter2!\nsecond line"));
        let masked = redactor.mask(line);
        assert!(!masked.contains("hunter2") && !masked.contains("second"), "{masked}");
        assert!(masked.starts_with("a *** b *** c ***"), "{masked}");
    }

    #[test]
    fn a_value_within_another_is_masked_whole() {
        let redactor = Redactor::default();
        redactor.remember(b"token");
        redactor.remember(b"token-and-more");
        assert_eq!(redactor.mask("x token-and-more".into()), "x ***");
    }

    #[test]
    fn short_values_are_left_alone() {
        let redactor = Redactor::default();
        redactor.remember(b"yes");
        assert_eq!(redactor.mask("yes, of course".into()), "yes, of course");
    }
}
