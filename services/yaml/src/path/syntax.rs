//! Parsing and printing paths.

use std::fmt;
use std::str::FromStr;

/// The longest path, in bytes.
const MAX_BYTES: usize = 1024;

/// Why a text is not a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} at character {at} of the path")]
pub struct PathSyntaxError {
    /// In characters, from 1.
    pub at: usize,
    /// What is wrong.
    pub what: &'static str,
}

/// A parsed path: see the [module](super) for the language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    pub(crate) document: DocumentSelector,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DocumentSelector {
    Any,
    Index(usize),
    Having(Vec<(String, String)>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
    Having(String, String),
    Image(String),
}

impl FromStr for Path {
    type Err = PathSyntaxError;

    fn from_str(text: &str) -> Result<Self, PathSyntaxError> {
        if text.len() > MAX_BYTES {
            return Err(PathSyntaxError { at: 1, what: "more than 1024 bytes" });
        }
        let mut cursor = Cursor { chars: text.chars().collect(), at: 0 };
        let document = if cursor.eat('(') { cursor.document()? } else { DocumentSelector::Any };
        let mut steps = Vec::new();
        while let Some(c) = cursor.peek() {
            steps.push(match c {
                '[' => {
                    cursor.at += 1;
                    cursor.bracket()?
                }
                '.' if !steps.is_empty() => {
                    cursor.at += 1;
                    Step::Key(cursor.word("a key is expected")?)
                }
                _ if steps.is_empty() => Step::Key(cursor.word("a key is expected")?),
                _ => return Err(cursor.error("'.' or '[' is expected")),
            });
        }
        if steps.is_empty() {
            return Err(cursor.error("a key is expected"));
        }
        Ok(Self { document, steps })
    }
}

struct Cursor {
    chars: Vec<char>,
    at: usize,
}

impl Cursor {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, c: char, what: &'static str) -> Result<(), PathSyntaxError> {
        if self.eat(c) { Ok(()) } else { Err(self.error(what)) }
    }

    fn error(&self, what: &'static str) -> PathSyntaxError {
        PathSyntaxError { at: self.at + 1, what }
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let from = self.at;
        while self.peek().is_some_and(&wanted) {
            self.at += 1;
        }
        self.chars[from..self.at].iter().collect()
    }

    fn word(&mut self, what: &'static str) -> Result<String, PathSyntaxError> {
        let word = self.take_while(is_word);
        if word.is_empty() { Err(self.error(what)) } else { Ok(word) }
    }

    fn number(&mut self) -> Result<Option<usize>, PathSyntaxError> {
        if !self.peek().is_some_and(|c| c.is_ascii_digit()) {
            return Ok(None);
        }
        let digits = self.take_while(|c| c.is_ascii_digit());
        digits.parse().map(Some).map_err(|_| self.error("the index is too large"))
    }

    fn quoted(&mut self) -> Result<String, PathSyntaxError> {
        let mut text = String::new();
        while let Some(c) = self.peek() {
            self.at += 1;
            match c {
                '"' => return Ok(text),
                '\\' => match self.peek() {
                    Some(escaped @ ('"' | '\\')) => {
                        text.push(escaped);
                        self.at += 1;
                    }
                    Some(_) | None => return Err(self.error("only \\\" and \\\\ are escapes")),
                },
                _ => text.push(c),
            }
        }
        Err(self.error("the quotes are not closed"))
    }

    /// A value up to one of `ends`, or in quotes.
    fn value(&mut self, ends: &[char]) -> Result<String, PathSyntaxError> {
        if self.eat('"') {
            return self.quoted();
        }
        let value = self.take_while(|c| !ends.contains(&c) && c != '"');
        if value.is_empty() { Err(self.error("a value is expected")) } else { Ok(value) }
    }

    fn bracket(&mut self) -> Result<Step, PathSyntaxError> {
        let step = if self.eat('"') {
            Step::Key(self.quoted()?)
        } else if self.eat('~') {
            Step::Image(self.value(&[']'])?)
        } else {
            let from = self.at;
            match self.number()? {
                Some(index) if self.peek() == Some(']') => Step::Index(index),
                Some(_) | None => {
                    self.at = from;
                    let key = self.take_while(|c| is_word(c) || c == '.');
                    self.expect('=', "an index, a quoted key, key=value or ~image is expected")?;
                    Step::Having(key, self.value(&[']'])?)
                }
            }
        };
        self.expect(']', "']' is expected")?;
        match &step {
            Step::Having(key, _) if key.is_empty() => Err(self.error("a key is expected before '='")),
            Step::Having(..) | Step::Key(_) | Step::Index(_) | Step::Image(_) => Ok(step),
        }
    }

    fn document(&mut self) -> Result<DocumentSelector, PathSyntaxError> {
        let from = self.at;
        if let Some(index) = self.number()?
            && self.eat(')')
        {
            return Ok(DocumentSelector::Index(index));
        }
        self.at = from;
        let mut pairs = Vec::new();
        loop {
            let key = self.take_while(|c| is_word(c) || c == '.');
            if key.is_empty() {
                return Err(self.error("a document index or key=value is expected"));
            }
            self.expect('=', "'=' is expected")?;
            pairs.push((key, self.value(&[',', ')'])?));
            if self.eat(')') {
                return Ok(DocumentSelector::Having(pairs));
            }
            self.expect(',', "',' or ')' is expected")?;
        }
    }
}

fn is_word(c: char) -> bool {
    !c.is_control() && !matches!(c, '.' | '[' | ']' | '(' | ')' | '=' | '"' | '~' | ',' | ' ')
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Key(key) if !key.is_empty() && key.chars().all(is_word) => write!(f, ".{key}"),
            Step::Key(key) => write!(f, "[{}]", quoted(key)),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Having(key, value) => write!(f, "[{key}={}]", bare_or_quoted(value)),
            Step::Image(image) => write!(f, "[~{}]", bare_or_quoted(image)),
        }
    }
}

/// The steps as a path, without the leading dot.
pub(crate) fn print_steps(steps: &[Step]) -> String {
    let text: String = steps.iter().map(Step::to_string).collect();
    text.strip_prefix('.').map_or_else(|| text.clone(), str::to_owned)
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.document {
            DocumentSelector::Any => {}
            DocumentSelector::Index(index) => write!(f, "({index})")?,
            DocumentSelector::Having(pairs) => {
                let pairs: Vec<String> =
                    pairs.iter().map(|(k, v)| format!("{k}={}", bare_or_quoted(v))).collect();
                write!(f, "({})", pairs.join(","))?;
            }
        }
        f.write_str(&print_steps(&self.steps))
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn bare_or_quoted(text: &str) -> String {
    let bare = !text.is_empty() && !text.contains([']', ')', ',', '"', '\\']);
    if bare { text.to_owned() } else { quoted(text) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_documented_form_parses_and_prints_back() {
        for text in [
            "images[name=registry:80/citation-dagster].digest",
            "spec.template.spec.containers[0].env[name=DAGSTER_CURRENT_IMAGE].value",
            "metadata.annotations[\"argocd.argoproj.io/sync-wave\"]",
            "spec.source.kustomize.images[~registry:80/citation-dagster]",
            "(kind=Deployment,metadata.name=citation)spec.template.spec.containers[name=grpc].image",
            "(1)spec.replicas",
            "[0].x",
            "a[b.c=\"x]y\"]",
        ] {
            assert_eq!(text.parse::<Path>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_wrong_path_names_the_character() {
        let error = |text: &str| text.parse::<Path>().unwrap_err().to_string();
        insta::assert_snapshot!(
            ["", ".a", "a.", "a..b", "a[", "a[0", "a[x]", "a[=x]", "a[\"x]", "(", "(a)b", "(a=b", "a b", "a[99999999999999999999]", "a[~]"]
                .map(|text| format!("{text:?}: {}", error(text)))
                .join("\n"),
            @r#"
"": a key is expected at character 1 of the path
".a": a key is expected at character 1 of the path
"a.": a key is expected at character 3 of the path
"a..b": a key is expected at character 3 of the path
"a[": an index, a quoted key, key=value or ~image is expected at character 3 of the path
"a[0": an index, a quoted key, key=value or ~image is expected at character 4 of the path
"a[x]": an index, a quoted key, key=value or ~image is expected at character 4 of the path
"a[=x]": a key is expected before '=' at character 6 of the path
"a[\"x]": the quotes are not closed at character 6 of the path
"(": a document index or key=value is expected at character 2 of the path
"(a)b": '=' is expected at character 3 of the path
"(a=b": ',' or ')' is expected at character 5 of the path
"a b": '.' or '[' is expected at character 2 of the path
"a[99999999999999999999]": the index is too large at character 23 of the path
"a[~]": a value is expected at character 4 of the path
"#
        );
    }

    proptest! {
        #[test]
        fn printing_a_path_and_parsing_it_gives_it_back(
            steps in prop::collection::vec(
                prop_oneof![
                    "[ -~é]{1,8}".prop_map(Step::Key),
                    (0usize..100).prop_map(Step::Index),
                    ("[a-z]{1,3}(\\.[a-z]{1,3})?", "[ -~é]{1,8}").prop_map(|(k, v)| Step::Having(k, v)),
                    "[ -~é]{1,8}".prop_map(Step::Image),
                ],
                1..5,
            ),
        ) {
            let path = Path { document: DocumentSelector::Any, steps };
            prop_assert_eq!(path.to_string().parse::<Path>().unwrap(), path);
        }

        #[test]
        fn parsing_never_panics(text in "[a-c.\\[\\]()=\"~\\\\0-9,]{0,16}") {
            let _ = text.parse::<Path>();
        }
    }
}
