//! What is wrong in a file, said to whoever wrote it.

use std::fmt;

/// Something wrong in a file, with its place and what a person does about it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, from the root of the repository that is looked at (or of the overlay that is being copied).
    pub file: String,
    /// The line, from 1; 0 when the finding is about the file as a whole.
    pub line: usize,
    /// The column in characters, from 1; 0 when the finding is about the file as a whole.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What to do next.
    pub remedy: String,
}

impl Finding {
    /// A finding about a file as a whole.
    #[must_use]
    pub fn of_file(file: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { file: file.into(), line: 0, column: 0, what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", escaped(&self.file))?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ": {}; {}", escaped(&self.what), escaped(&self.remedy))
    }
}

/// Keeps control characters of a hostile file out of logs and terminals.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}
