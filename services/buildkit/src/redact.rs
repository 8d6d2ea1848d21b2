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
/// The shortest piece of a value's base64 that is masked by itself: it encodes a little more than the shortest value, and
/// words that long are in no base64 by chance.
const SHORTEST_PIECE: usize = 8;

/// The values to mask. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Redactor(Arc<RwLock<Known>>);

#[derive(Default)]
struct Known {
    /// Values, their lines, and their base64.
    values: Vec<SecretString>,
    /// The base64 of each, of which programs print pieces: `base64` breaks it into lines of 76, `openssl` of 64.
    encoded: Vec<SecretString>,
}

impl Redactor {
    /// Remembers a value, each line of it, and its base64, whole and in lines.
    pub(crate) fn remember(&self, value: &[u8]) {
        let text = String::from_utf8_lossy(value);
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut add = |text: &str| {
            if text.len() >= SHORTEST && !is_known(&known.values, text) {
                known.values.push(SecretString::from(text));
            }
        };
        text.lines().map(str::trim).for_each(&mut add);
        let encoded = STANDARD.encode(value);
        let encoded = encoded.trim_end_matches('=');
        add(encoded);
        if encoded.len() >= SHORTEST_PIECE && !is_known(&known.encoded, encoded) {
            known.encoded.push(SecretString::from(encoded));
        }
        // The longest first: a value within another must not leave the rest of that one readable.
        known.values.sort_by_key(|value| std::cmp::Reverse(value.expose_secret().len()));
    }

    /// `text` with every remembered value masked.
    pub(crate) fn mask(&self, text: String) -> String {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let text = known.values.iter().fold(text, |text, value| {
            let value = value.expose_secret();
            if text.contains(value) { text.replace(value, MASK) } else { text }
        });
        known.mask_pieces(&text)
    }
}

impl Known {
    /// Masks what is a piece of a value's base64.
    fn mask_pieces(&self, text: &str) -> String {
        let is_piece = |run: &str| {
            run.len() >= SHORTEST_PIECE
                && self.encoded.iter().any(|encoded| encoded.expose_secret().contains(run))
        };
        let mut masked = String::new();
        let mut rest = text;
        while let Some(start) = rest.find(is_base64) {
            let (before, from) = rest.split_at(start);
            let (run, after) = from.split_at(from.find(|c| !is_base64(c)).unwrap_or(from.len()));
            masked.push_str(before);
            masked.push_str(if is_piece(run) { MASK } else { run });
            rest = after;
        }
        masked.push_str(rest);
        masked
    }
}

fn is_known(values: &[SecretString], text: &str) -> bool {
    values.iter().any(|value| value.expose_secret() == text)
}

fn is_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '+' || c == '/'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    #[test]
    fn ordinary_words_are_left_alone() {
        let redactor = Redactor::default();
        redactor.remember(&[7; 4000]);
        redactor.remember("a key of many words, of which each is found in what people print".as_bytes());
        let line = "Installing dependencies/python3 from lock file sha256:0123456789abcdef é done=100%";
        assert_eq!(redactor.mask(line.into()), line);
    }

    proptest! {
        /// As `base64`, `openssl` and `fold` print it.
        #[test]
        fn no_line_of_a_wrapped_base64_is_readable(
            value in prop::collection::vec(any::<u8>(), 40..400), width in 16usize..120, prompt in "[a-z]{0,5}",
        ) {
            let redactor = Redactor::default();
            redactor.remember(&value);
            let encoded = STANDARD.encode(&value);
            for width in [76, 64, width] {
                for (at, piece) in encoded.as_bytes().chunks(width).enumerate() {
                    let piece = std::str::from_utf8(piece).unwrap();
                    let prompt = if at == 0 { format!("{prompt}: ") } else { String::new() };
                    let masked = redactor.mask(format!("{prompt}{piece}"));
                    let rest = masked.strip_prefix(&prompt).unwrap().trim_end_matches('=');
                    let short = piece.trim_end_matches('=').len() < SHORTEST_PIECE;
                    prop_assert!(rest == MASK || short, "{} of {}", masked, piece);
                }
            }
        }
    }
}
