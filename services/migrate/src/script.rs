//! The statements of a file, as PostgreSQL's own `psql` tells them apart.

/// How a file begins that runs outside of a transaction.
pub const NO_TRANSACTION: &str = "-- no-transaction";

/// One statement of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement<'s> {
    /// Its text, from its first word, without the semicolon.
    pub text: &'s str,
    /// The line on which it begins, from 1.
    pub line: usize,
}

/// A statement that begins or ends a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control<'s> {
    /// Its first word.
    pub word: &'s str,
    /// Its line, from 1.
    pub line: usize,
}

/// The statements of `sql`. Semicolons in strings, quoted names, comments, parentheses and the bodies of functions end
/// none. What is never closed reaches to the end: the server will say so.
#[must_use]
pub fn statements(sql: &str) -> Vec<Statement<'_>> {
    let mut scanner = Scanner { sql, at: 0 };
    let mut found = Vec::new();
    let mut current = Current::default();
    while let Some((token, from)) = scanner.next() {
        if token == Token::Semicolon && current.ends() {
            current.finish(sql, from, &mut found);
            continue;
        }
        current.take(token, from, scanner.at);
    }
    current.finish(sql, sql.len(), &mut found);
    found
}

/// The statements of `sql` that begin or end a transaction. Those that return to a savepoint do neither.
pub fn controls(sql: &str) -> impl Iterator<Item = Control<'_>> {
    statements(sql).into_iter().filter_map(|statement| {
        let mut scanner = Scanner { sql: statement.text, at: 0 };
        let mut words = std::iter::from_fn(move || {
            loop {
                if let (Token::Word(word), _) = scanner.next()? {
                    return Some(word);
                }
            }
        });
        let word = words.next().filter(|word| statement.text.starts_with(word))?;
        let is = |what: &str| word.eq_ignore_ascii_case(what);
        let follows = |word: Option<&str>, what: &[&str]| {
            word.is_some_and(|word| what.iter().any(|what| word.eq_ignore_ascii_case(what)))
        };
        let controls = match word {
            _ if ["begin", "start", "commit", "end", "abort"].iter().any(|what| is(what)) => true,
            _ if is("rollback") => {
                let mut next = words.next();
                if follows(next, &["work", "transaction"]) {
                    next = words.next();
                }
                !follows(next, &["to"])
            }
            _ if is("prepare") => follows(words.next(), &["transaction"]),
            _ => false,
        };
        controls.then_some(Control { word, line: statement.line })
    })
}

/// The statement that is being read.
#[derive(Default)]
struct Current {
    /// Where its first token begins, and where its last one ends.
    span: Option<(usize, usize)>,
    words: usize,
    /// Whether it makes a function, whose body may hold statements.
    creates: bool,
    routine: bool,
    parentheses: usize,
    /// How many `BEGIN` and `CASE` of a body are open.
    blocks: usize,
}

impl Current {
    fn ends(&self) -> bool {
        self.parentheses == 0 && self.blocks == 0
    }

    fn take(&mut self, token: Token<'_>, from: usize, to: usize) {
        let begins = self.span.map_or(from, |(begins, _)| begins);
        self.span = Some((begins, to));
        match token {
            Token::Open => self.parentheses += 1,
            Token::Close => self.parentheses = self.parentheses.saturating_sub(1),
            Token::Word(word) => self.word(word),
            Token::Semicolon | Token::Other => {}
        }
    }

    fn word(&mut self, word: &str) {
        let is = |what: &str| word.eq_ignore_ascii_case(what);
        self.creates |= self.words == 0 && is("create");
        // CREATE [OR REPLACE] FUNCTION
        self.routine |= self.creates && self.words <= 3 && (is("function") || is("procedure"));
        self.words += 1;
        if !self.routine || self.parentheses > 0 {
            return;
        }
        if is("begin") || (is("case") && self.blocks > 0) {
            self.blocks += 1;
        } else if is("end") {
            self.blocks = self.blocks.saturating_sub(1);
        }
    }

    fn finish<'s>(&mut self, sql: &'s str, end: usize, found: &mut Vec<Statement<'s>>) {
        if let Some((from, to)) = std::mem::take(self).span {
            let line = 1 + sql[..from].matches('\n').count();
            found.push(Statement { text: &sql[from..to.min(end)], line });
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'s> {
    Word(&'s str),
    Semicolon,
    Open,
    Close,
    Other,
}

/// Tokens without spaces and comments.
struct Scanner<'s> {
    sql: &'s str,
    at: usize,
}

impl<'s> Scanner<'s> {
    /// The next token, and where it begins. `at` is then behind it.
    fn next(&mut self) -> Option<(Token<'s>, usize)> {
        loop {
            let from = self.at;
            let rest = &self.sql[from..];
            let first = rest.chars().next()?;
            if first.is_whitespace() || first == '\u{feff}' {
                self.at += first.len_utf8();
            } else if rest.starts_with("--") {
                // As PostgreSQL has it, which takes a lone \r for the end of a line as well.
                self.at = self.behind(rest.find(['\n', '\r']).map(|at| at + 1));
            } else if rest.starts_with("/*") {
                self.at += comment(rest);
            } else {
                return Some((self.token(first), from));
            }
        }
    }

    fn token(&mut self, first: char) -> Token<'s> {
        let rest = &self.sql[self.at..];
        let (token, length) = match first {
            ';' => (Token::Semicolon, 1),
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '\'' => (Token::Other, quoted(rest, '\'', false)),
            '"' => (Token::Other, quoted(rest, '"', false)),
            '$' => (Token::Other, dollar(rest).unwrap_or(1)),
            _ if starts_word(first) => {
                let end = rest.find(|c| !is_in_word(c)).unwrap_or(rest.len());
                let word = &rest[..end];
                // E'…' is the one kind of string in which a backslash means something.
                match word.eq_ignore_ascii_case("e") && rest[end..].starts_with('\'') {
                    true => (Token::Other, end + escaped(&rest[end..])),
                    false => (Token::Word(word), end),
                }
            }
            // So that 1$a$ is no quotation.
            _ if first.is_ascii_digit() => {
                (Token::Other, rest.find(|c| !is_in_word(c)).unwrap_or(rest.len()))
            }
            other => (Token::Other, other.len_utf8()),
        };
        self.at += length;
        token
    }

    fn behind(&self, length: Option<usize>) -> usize {
        length.map_or(self.sql.len(), |length| self.at + length)
    }
}

fn starts_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

fn is_in_word(c: char) -> bool {
    starts_word(c) || c.is_ascii_digit() || c == '$'
}

/// The length of the comment at the beginning of `text`. They nest.
fn comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest.starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of the quotation at the beginning of `text`, whose quotes are doubled inside of it.
fn quoted(text: &str, quote: char, escapes: bool) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if escapes && c == '\\' {
            chars.next();
        } else if c == quote {
            match chars.peek() {
                Some((_, next)) if *next == quote => drop(chars.next()),
                _ => return at + quote.len_utf8(),
            }
        }
    }
    text.len()
}

/// The length of the quotation of an `E'…'` at the beginning of `text`, with those on later lines that continue it: a
/// backslash means something in them as well.
fn escaped(text: &str) -> usize {
    let mut length = quoted(text, '\'', true);
    while let Some(gap) = continued(&text[length..]) {
        length += gap + quoted(&text[length + gap..], '\'', true);
    }
    length
}

/// How far it is to the quote that continues a string: spaces, comments to the end of a line, and at least one such end.
fn continued(text: &str) -> Option<usize> {
    let (mut at, mut line_ends) = (0, false);
    loop {
        let rest = &text[at..];
        match rest.chars().next()? {
            '\'' => return line_ends.then_some(at),
            '-' if rest.starts_with("--") => at += rest.find(['\n', '\r'])?,
            c if c.is_ascii_whitespace() || c == '\u{b}' => {
                line_ends |= matches!(c, '\n' | '\r');
                at += 1;
            }
            _ => return None,
        }
    }
}

/// The length of the `$tag$…$tag$` at the beginning of `text`, if it is one.
fn dollar(text: &str) -> Option<usize> {
    let inside = &text[1..];
    let tag = &inside[..inside.find('$')?];
    let is_tag = tag.chars().next().is_none_or(starts_word)
        && tag.chars().all(|c| starts_word(c) || c.is_ascii_digit());
    if !is_tag {
        return None;
    }
    let mark = &text[..tag.len() + 2];
    let body = &text[mark.len()..];
    Some(body.find(mark).map_or(text.len(), |at| mark.len() + at + mark.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(sql: &str) -> Vec<&str> {
        statements(sql).iter().map(|statement| statement.text).collect()
    }

    fn words(sql: &str) -> Vec<&str> {
        controls(sql).map(|control| control.word).collect()
    }

    #[test]
    fn statements_end_where_psql_ends_them() {
        assert_eq!(texts("a; b ;;\n c"), ["a", "b", "c"]);
        assert_eq!(texts("-- one; two\n/* three; /* four; */ */ five"), ["five"]);
        assert_eq!(texts("select ';', 'it''s;' ; b"), ["select ';', 'it''s;'", "b"]);
        assert_eq!(texts(r"select E'\';' ; b"), [r"select E'\';'", "b"]);
        assert_eq!(texts(r"select '\' ; b"), [r"select '\'", "b"]);
        assert_eq!(texts("select E'a' -- x\n '\\'; b' ; c"), ["select E'a' -- x\n '\\'; b'", "c"]);
        assert_eq!(texts("select E'a' '\\' ; b"), ["select E'a' '\\'", "b"]);
        assert_eq!(texts("select E'a'\n, '\\' ; b"), ["select E'a'\n, '\\'", "b"]);
        assert_eq!(texts("create table \"a;\"\"b\" (); b"), ["create table \"a;\"\"b\" ()", "b"]);
        assert_eq!(
            texts("do $$ begin; end; $$; do $a$ $$; $b$; $a$; c"),
            ["do $$ begin; end; $$", "do $a$ $$; $b$; $a$", "c"]
        );
        assert_eq!(texts("select $1; a$b$; c"), ["select $1", "a$b$", "c"]);
        assert_eq!(
            texts("create rule r as on insert to t do (a; b); c"),
            ["create rule r as on insert to t do (a; b)", "c"]
        );
        let body = "CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END";
        assert_eq!(texts(&format!("{body}; c")), [body, "c"]);
        assert_eq!(texts(""), [""; 0]);
        assert_eq!(texts("  -- nothing\n"), [""; 0]);
        assert_eq!(texts("select 'open; b"), ["select 'open; b"]);
    }

    #[test]
    fn a_statement_knows_its_line() {
        let lines: Vec<usize> =
            statements("a;\n\n-- x\nb;\nc").iter().map(|statement| statement.line).collect();
        assert_eq!(lines, [1, 4, 5]);
    }

    #[test]
    fn what_begins_or_ends_a_transaction_is_found_and_nothing_else() {
        assert_eq!(
            words("BEGIN; a; Commit; END; start transaction; abort; rollback"),
            ["BEGIN", "Commit", "END", "start", "abort", "rollback"]
        );
        assert_eq!(
            words("rollback work; ROLLBACK TO SAVEPOINT s; rollback work to s; savepoint s; release s"),
            ["rollback"]
        );
        assert_eq!(words("prepare transaction 'x'; prepare x as select 1"), ["prepare"]);
        assert_eq!(
            words("do $$ begin commit; end $$; create procedure p() as 'begin; commit; end'; -- commit;\n"),
            [""; 0]
        );
        assert_eq!(words("create function f() returns int begin atomic select 1; end; a"), [""; 0]);
        assert_eq!(words("(begin); beginning; 'commit'"), [""; 0]);
    }

    #[test]
    fn a_carriage_return_ends_a_comment_as_it_does_for_the_server() {
        assert_eq!(texts("-- x\rCOMMIT;\nb"), ["COMMIT", "b"]);
        assert_eq!(words("-- x\rCOMMIT;"), ["COMMIT"]);
        assert_eq!(texts("-- one; two\r\nthree"), ["three"]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_input_is_too_odd(sql in r#"([a-z ]|;|\(|\)|'|"|\$|\$\$|\$a\$|--|/\*|\*/|\\|\n|\r|E'|begin|end|é){0,40}"#) {
            let found = statements(&sql);
            let mut from = 0;
            for Statement { text, line } in &found {
                // In order, apart, and with nothing but spaces, comments and semicolons between them.
                let at = text.as_ptr() as usize - sql.as_ptr() as usize;
                prop_assert!(at >= from && !text.is_empty());
                prop_assert_eq!(*line, 1 + sql[..at].matches('\n').count());
                from = at + text.len();
            }
            let _ = controls(&sql).count();
        }

        #[test]
        fn plain_statements_are_what_is_between_semicolons(parts in prop::collection::vec("[a-z]{1,5}( [a-z]{1,5}){0,3}", 0..6)) {
            prop_assume!(!parts.iter().any(|part| part.split(' ').any(|word| word == "e")));
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let sql = parts.join(";\n");
            prop_assert_eq!(texts(&sql), parts);
        }
    }
}
