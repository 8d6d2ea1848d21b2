//! Output of builds made fit for logs: whole lines, no terminal control, bounded.

/// Gathers one stream's bytes into lines. Holds at most a little over the line limit.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pending: Vec<u8>,
    /// Bytes of the current line that were dropped.
    cut: usize,
}

impl Lines {
    /// Takes a piece of output and returns the lines that it completed.
    pub(crate) fn push(&mut self, bytes: &[u8], limit: usize) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut pieces = bytes.split(|&byte| byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            self.extend(piece, limit);
            if pieces.peek().is_some() {
                lines.push(self.take());
            }
        }
        lines
    }

    /// What was printed after the last line's end, if anything.
    pub(crate) fn finish(&mut self) -> Option<Line> {
        (!self.pending.is_empty()).then(|| self.take())
    }

    fn extend(&mut self, piece: &[u8], limit: usize) {
        // A progress bar rewrites its line with carriage returns: the last version is the one that counts.
        let returned = piece.iter().rposition(|&byte| byte == b'\r').filter(|&at| at + 1 < piece.len());
        let piece = match returned {
            Some(at) => {
                (self.pending, self.cut) = (Vec::new(), 0);
                &piece[at + 1..]
            }
            None => {
                if self.pending.last() == Some(&b'\r') && !piece.is_empty() && piece != b"\r" {
                    (self.pending, self.cut) = (Vec::new(), 0);
                }
                piece
            }
        };
        // Escapes make a line longer or shorter; three times the limit leaves room for both.
        let room = (limit.saturating_mul(3)).saturating_sub(self.pending.len()).min(piece.len());
        self.pending.extend_from_slice(&piece[..room]);
        self.cut += piece.len() - room;
    }

    fn take(&mut self) -> Line {
        let (bytes, cut) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.cut));
        Line { text: clean(&String::from_utf8_lossy(&bytes)), cut }
    }
}

/// A whole line, clean but perhaps longer than the limit: secrets are masked before it is cut, or a cut could
/// leave half of one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The line without its end.
    pub(crate) text: String,
    /// How many of its bytes were dropped already.
    pub(crate) cut: usize,
}

/// `text` as one line without ANSI sequences, other control characters escaped.
pub(crate) fn clean(text: &str) -> String {
    let text = text.trim_end_matches('\r');
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => skip_ansi(&mut chars),
            '\t' => out.push('\t'),
            c if c.is_control() || is_invisible(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// Cuts `text` to `limit` bytes and says so.
pub(crate) fn bounded(mut text: String, limit: usize, already_cut: usize) -> String {
    if text.len() <= limit && already_cut == 0 {
        return text;
    }
    let end = text.floor_char_boundary(limit);
    let cut = text.len() - end + already_cut;
    text.truncate(end);
    text.push_str(&format!("… ({cut} bytes cut)"));
    text
}

/// Direction overrides and line separators that would let output forge what a terminal shows around it.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Skips what follows an escape character: a CSI sequence, an OSC string, or one character.
fn skip_ansi(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.next() {
        Some('[') => {
            for c in chars.by_ref() {
                if ('@'..='~').contains(&c) {
                    break;
                }
            }
        }
        Some(']' | 'P' | '_' | '^') => {
            while let Some(c) = chars.next() {
                if c == '\x07' || (c == '\x1b' && chars.next_if_eq(&'\\').is_some()) {
                    break;
                }
            }
        }
        Some('(' | ')' | '#') => {
            chars.next();
        }
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 64;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut out: Vec<Line> = pieces.iter().flat_map(|piece| lines.push(piece, LIMIT)).collect();
        out.extend(lines.finish());
        out.into_iter().map(|line| bounded(line.text, LIMIT, line.cut)).collect()
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(lines(&[b"ab", b"c\nd", b"", b"e\n", b"f"]), ["abc", "de", "f"]);
        assert_eq!(lines(&[b"\n\n"]), ["", ""]);
        assert_eq!(lines(&["é".as_bytes().split_at(1).0, "é".as_bytes().split_at(1).1]), ["é"]);
    }

    #[test]
    fn a_carriage_return_rewrites_the_line() {
        assert_eq!(lines(&[b"10%\r50%\r100%\n", b"done\r\n"]), ["100%", "done"]);
        assert_eq!(lines(&[b"10%\r", b"50%", b"\r", b"100%\r\n"]), ["100%"]);
    }

    #[test]
    fn colours_go_and_controls_are_escaped() {
        assert_eq!(clean("\x1b[1;31mred\x1b[0m"), "red");
        assert_eq!(clean("\x1b]0;title\x07x\x1b]8;;u\x1b\\y"), "xy");
        assert_eq!(clean("a\x08b\x00\u{202e}c\td"), "a\\u{8}b\\u{0}\\u{202e}c\td");
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        let out = lines(&[&[b'x'; 50], &[b'y'; 300], b"\nnext\n"]);
        assert_eq!(out[0], format!("{}{}… (286 bytes cut)", "x".repeat(50), "y".repeat(14)));
        assert_eq!(out[1], "next");
    }

    proptest! {
        #[test]
        fn any_bytes_become_bounded_lines_without_controls(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8),
        ) {
            let mut lines = Lines::default();
            let mut all = Vec::new();
            for piece in &pieces {
                all.extend(lines.push(piece, LIMIT));
                prop_assert!(lines.pending.len() <= 3 * LIMIT);
            }
            let ends = pieces.iter().flatten().filter(|&&byte| byte == b'\n').count();
            prop_assert_eq!(all.len(), ends);
            for line in all {
                let line = bounded(line.text, LIMIT, line.cut);
                prop_assert!(line.len() <= LIMIT + 32);
                prop_assert!(line.chars().all(|c| c == '\t' || !c.is_control()));
            }
        }

        #[test]
        fn where_the_pieces_are_cut_does_not_matter(text in "[a-c\n]{0,60}", at in 0usize..60) {
            let bytes = text.as_bytes();
            let (head, tail) = bytes.split_at(at.min(bytes.len()));
            prop_assert_eq!(lines(&[head, tail]), lines(&[bytes]));
        }
    }
}
