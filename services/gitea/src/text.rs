//! Foreign text on its way into messages and logs.

/// At most `limit` characters of `text` with control characters, quotes and direction marks escaped, so that
/// it can neither flood nor forge a log line.
pub(crate) fn escaped(text: &str, limit: usize) -> String {
    let mut shown: String = text.chars().take(limit).flat_map(char::escape_debug).collect();
    if text.chars().nth(limit).is_some() {
        shown.push('…');
    }
    shown
}

/// `text` on one line and within `limit` characters, with an ellipsis where it was cut.
pub(crate) fn one_line(text: &str, limit: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= limit {
        return line;
    }
    let mut cut: String = line.chars().take(limit - 1).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_cut_and_cannot_break_a_line() {
        assert_eq!(escaped("a\nb\u{202e}\"c\"", 100), r#"a\nb\u{202e}\"c\""#);
        assert_eq!(escaped("ééé", 2), "éé…");
    }

    #[test]
    fn a_long_line_is_cut_between_characters_not_bytes() {
        let cut = one_line(&"é".repeat(300), 255);
        assert_eq!(cut.chars().count(), 255);
        assert!(cut.ends_with("é…"));
        assert_eq!(one_line(&"é".repeat(255), 255), "é".repeat(255));
        assert_eq!(one_line("two\n  lines", 255), "two lines");
    }
}
