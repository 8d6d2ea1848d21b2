//! Writing a text as a scalar that every YAML reader gives back as the same text.

use crate::Style;

/// Whether `text`, written without quotes, is a string to YAML 1.1 and 1.2 readers alike.
///
/// Conservative: quotes never change the meaning of a string, and their absence may. An all-digit
/// revision becomes an integer, `1234e567` a float, `0x…` a number, `no` a boolean, `12:30` sixty times
/// something.
pub(crate) fn plain_stays_text(text: &str) -> bool {
    const WORDS: [&str; 13] =
        ["", "null", "true", "false", "yes", "no", "on", "off", "y", "n", ".nan", ".inf", "nil"];
    let lower = text.to_ascii_lowercase();
    let allowed =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '/' | '@' | ':' | '+' | '=' | '-');
    let numeric = |c: char| c.is_ascii_digit() || matches!(c, '.' | '_' | 'e' | '+' | '-' | ':' | 't' | 'z');
    let number = ["0x", "0o", "0b"].iter().any(|prefix| lower.starts_with(prefix))
        || text.starts_with(|c: char| c.is_ascii_digit()) && lower.chars().all(numeric);
    text.chars().all(allowed)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && !text.ends_with(':')
        && !WORDS.contains(&lower.as_str())
        && !number
}

/// `text` as a scalar for a flow mapping: without quotes where that is safe.
#[must_use]
pub fn flow_text(text: &str) -> String {
    if plain_stays_text(text) { text.to_owned() } else { double_quoted(text) }
}

/// `text` in the style that the replaced scalar had, or nothing when that style cannot hold it. A plain
/// scalar whose new text would not stay a string is quoted.
pub(crate) fn written(text: &str, style: Style) -> Option<(String, Style)> {
    let one_line = !text.chars().any(char::is_control);
    match style {
        Style::Plain if plain_stays_text(text) => Some((text.to_owned(), Style::Plain)),
        Style::Plain | Style::Double => Some((double_quoted(text), Style::Double)),
        Style::Single if one_line => Some((format!("'{}'", text.replace('\'', "''")), Style::Single)),
        Style::Single | Style::Block => None,
    }
}

fn double_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // Line separators and the byte order mark end or vanish from lines in some readers.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_not_stay_a_string_is_quoted() {
        for bad in [
            "",
            "1",
            "0123",
            "1234567890123456789012345678901234567890",
            "1e5",
            "12345678e9012345678901234567890123456789",
            "0x1f",
            "0b11",
            "0o7",
            "true",
            "Yes",
            "NO",
            "on",
            "y",
            "null",
            "~",
            "12:30",
            "2001-12-14",
            "1.5",
            "1_000",
            "-1",
            "+1",
            ".5",
            ".inf",
            "a: b",
            "a #b",
            "a:",
            "- a",
            "{a}",
            "[a]",
            "&a",
            "*a",
            "!a",
            "|",
            ">",
            "%",
            "@a",
            "`a",
            "'a",
            "\"a",
            "a b",
            "?",
            "=",
            "<<",
        ] {
            assert!(!plain_stays_text(bad), "{bad:?}");
        }
    }

    #[test]
    fn what_stays_a_string_is_left_plain() {
        for good in [
            "1b1ddb30aa2f",
            "sha256:00ff",
            "registry:80/a@sha256:00ff",
            "citation-01k",
            "atlas/atlas",
            "v1.2.3",
            "1.2.3-rc",
        ] {
            assert!(plain_stays_text(good), "{good:?}");
        }
    }
}
