//! What is wrong with something a person wrote, and where.

use std::fmt;

/// One reason to refuse a configuration or a manifest. All of them are told at once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Where: a key (`pool.total`), or a manifest and a path in it.
    pub place: String,
    /// What is wrong, and what would be right.
    pub problem: String,
}

impl Finding {
    /// A finding.
    pub fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}
