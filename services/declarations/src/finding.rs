//! What is wrong, said so that whoever wrote it can mend it.

use std::fmt;

use fabrique_core::id::AppName;
use serde::Serialize;

use crate::At;

/// Something wrong, with its place, what is declared, what was found instead, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// The file, as whoever passed it in calls it.
    pub file: String,
    /// The line, from 1; 0 when the finding is about the file as a whole.
    pub line: usize,
    /// The column in characters, from 1; 0 when the finding is about the file as a whole.
    pub column: usize,
    /// What is wrong, in one sentence.
    pub what: String,
    /// What the file says, where it is right by itself and disagrees with something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared: Option<String>,
    /// What it disagrees with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// What to do next.
    pub remedy: String,
    /// The apps that cannot be deployed because of it, where it is not only about the one whose file this is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub apps: Vec<AppName>,
}

impl Finding {
    /// What is declared at a place of `file`, and what was found instead.
    #[must_use]
    pub fn between(
        file: &str,
        place: At<()>,
        declared: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (declared, found) = (declared.into(), found.into());
        Self {
            file: file.to_owned(),
            line: place.line,
            column: place.column,
            what: format!("{declared} is declared, {found}"),
            declared: Some(declared),
            found: Some(found),
            remedy: remedy.into(),
            apps: Vec::new(),
        }
    }

    /// A finding about a file by itself.
    #[must_use]
    pub fn of_file(file: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        fabrique_yaml::Finding::of_file(file, what, remedy).into()
    }

    /// The same, which concerns these apps.
    #[must_use]
    pub fn concerning(mut self, apps: impl IntoIterator<Item = AppName>) -> Self {
        self.apps = apps.into_iter().collect();
        self
    }
}

impl From<fabrique_yaml::Finding> for Finding {
    fn from(finding: fabrique_yaml::Finding) -> Self {
        let fabrique_yaml::Finding { file, line, column, what, remedy } = finding;
        Self { file, line, column, what, declared: None, found: None, remedy, apps: Vec::new() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, what, remedy) = (self.file.clone(), self.what.clone(), self.remedy.clone());
        fabrique_yaml::Finding { file, line: self.line, column: self.column, what, remedy }.fmt(f)
    }
}
