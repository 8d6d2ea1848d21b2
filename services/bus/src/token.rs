//! Any text as one token of a NATS subject, and back.
//!
//! A token must not hold `.`, `*`, `>` or white space, and other tools are happier with less. Letters, digits and `-`
//! stay; every other byte, `_` included, becomes `_` and two uppercase hexadecimal digits. The empty text is `_`.

use std::fmt::Write as _;

/// `text` as one token.
///
/// ```
/// assert_eq!(fabrique_bus::token::encode("citation.api"), "citation_2Eapi");
/// ```
#[must_use]
pub fn encode(text: &str) -> String {
    if text.is_empty() {
        return "_".to_owned();
    }
    let mut token = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            token.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(token, "_{byte:02X}");
        }
    }
    token
}

/// The text that [`encode`] made `token` of; `None` when it cannot have made it.
#[must_use]
pub fn decode(token: &str) -> Option<String> {
    if token == "_" {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'_' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = std::str::from_utf8(&digits).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
            }
            byte if byte.is_ascii_alphanumeric() || byte == b'-' => bytes.push(byte),
            _ => return None,
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    (encode(&text) == token).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_repositories_stay_readable() {
        assert_eq!(encode("atlas"), "atlas");
        assert_eq!(encode("citation.api_v2"), "citation_2Eapi_5Fv2");
        assert_eq!(encode(""), "_");
    }

    #[test]
    fn text_that_no_encoder_wrote_is_refused() {
        for bad in ["", "a.b", "_2", "_zz", "_2e", "_41", "a b", "_FF", "_+1"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_text_comes_back_and_makes_one_harmless_token(text in any::<String>()) {
            let token = encode(&text);
            prop_assert!(!token.is_empty());
            prop_assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
            prop_assert_eq!(decode(&token), Some(text));
        }

        #[test]
        fn decoding_never_panics(token in any::<String>()) {
            let _ = decode(&token);
        }
    }
}
