//! The files of a folder, in the order in which they are applied.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use crate::script::{NO_TRANSACTION, controls};

/// The file that names the migrations in their order, one a line. Without it they are applied by name.
pub const ORDER: &str = "order";
/// The most bytes of a folder: a ConfigMap has 1 MiB.
const MOST_BYTES: u64 = 1 << 20;
/// The most files of an app.
const MOST_FILES: usize = 500;

/// One migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its text.
    pub sql: String,
}

impl File {
    /// Whether it runs outside of a transaction.
    #[must_use]
    pub fn no_transaction(&self) -> bool {
        self.sql.trim_start_matches('\u{feff}').starts_with(NO_TRANSACTION)
    }
}

/// All migrations of an app, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Set {
    files: Vec<File>,
}

/// A folder that is no set of migrations.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// It cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file or folder.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It is not UTF-8.
    #[error("{0} is not UTF-8; PostgreSQL reads nothing else here")]
    NotUtf8(String),
    /// It is too big for a ConfigMap.
    #[error("{0}")]
    TooBig(String),
    /// [`ORDER`] and the files differ.
    #[error("{file} is named in {ORDER} {}", if *.there { "twice" } else { "and is not there" })]
    Order {
        /// The name.
        file: String,
        /// Whether it is there.
        there: bool,
    },
    /// A migration that [`ORDER`] does not name.
    #[error("{0} is not named in {ORDER}, so that nobody knows when to apply it")]
    Unnamed(String),
    /// A file that begins or ends a transaction by itself.
    #[error(
        "{file}:{line}: {word} begins or ends a transaction, and the file is in one with its line of the ledger; take it \
         out, or write a file for each part"
    )]
    Controls {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The word.
        word: String,
    },
}

impl Set {
    /// Files in the order in which they are applied.
    ///
    /// # Errors
    /// [`SetError::Controls`].
    pub fn new(files: Vec<File>) -> Result<Self, SetError> {
        for file in &files {
            if let Some(control) = controls(&file.sql).next() {
                let word = control.word.to_ascii_uppercase();
                return Err(SetError::Controls { file: file.name.clone(), line: control.line, word });
            }
        }
        Ok(Self { files })
    }

    /// Reads a folder: the `*.sql` in it, in the order that the file [`ORDER`] says. What begins with a dot is none, as
    /// in every mounted ConfigMap.
    ///
    /// # Errors
    /// Whatever makes it no set of migrations.
    pub fn read(folder: &Path) -> Result<Self, SetError> {
        let mut there = BTreeSet::new();
        let (mut bytes, mut ordered) = (0, false);
        for entry in fs::read_dir(folder).map_err(|source| unreadable(folder, source))? {
            let entry = entry.map_err(|source| unreadable(folder, source))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            ordered |= name == ORDER;
            if name.starts_with('.') || !name.ends_with(".sql") {
                continue;
            }
            // The files of a mounted ConfigMap are links.
            let metadata = fs::metadata(entry.path()).map_err(|source| unreadable(&entry.path(), source))?;
            bytes += metadata.len();
            there.insert(name);
            if bytes > MOST_BYTES || there.len() > MOST_FILES {
                let what =
                    format!("{} holds more than {MOST_FILES} files or 1 MiB of migrations", folder.display());
                return Err(SetError::TooBig(what));
            }
        }
        let names = if ordered {
            in_order(&read(&folder.join(ORDER))?, &there)?
        } else {
            there.into_iter().collect()
        };
        let files = names.into_iter().map(|name| {
            let sql = read(&folder.join(&name))?;
            Ok(File { name, sql })
        });
        Self::new(files.collect::<Result<_, SetError>>()?)
    }

    /// The files in order.
    #[must_use]
    pub fn files(&self) -> &[File] {
        &self.files
    }
}

fn in_order(order: &str, there: &BTreeSet<String>) -> Result<Vec<String>, SetError> {
    let names: Vec<String> =
        order.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let mut named = BTreeSet::new();
    for name in &names {
        let is_there = there.contains(name);
        if !is_there || !named.insert(name) {
            return Err(SetError::Order { file: name.clone(), there: is_there });
        }
    }
    match there.iter().find(|name| !named.contains(name)) {
        Some(unnamed) => Err(SetError::Unnamed(unnamed.clone())),
        None => Ok(names),
    }
}

fn read(path: &Path) -> Result<String, SetError> {
    let bytes = fs::read(path).map_err(|source| unreadable(path, source))?;
    String::from_utf8(bytes).map_err(|_| SetError::NotUtf8(path.display().to_string()))
}

fn unreadable(path: &Path, source: io::Error) -> SetError {
    SetError::Unreadable { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
        folder
    }

    fn names(files: &[(&str, &[u8])]) -> Result<Vec<String>, String> {
        let set = Set::read(folder(files).path()).map_err(|error| error.to_string())?;
        Ok(set.files().iter().map(|file| file.name.clone()).collect())
    }

    #[test]
    fn files_come_in_the_order_that_is_named_and_by_name_without_one() {
        assert_eq!(
            names(&[("b.sql", b""), ("a.sql", b""), ("..data", b""), ("README", b"")]).unwrap(),
            ["a.sql", "b.sql"]
        );
        assert_eq!(
            names(&[("b.sql", b""), ("a.sql", b""), ("order", b"b.sql\na.sql\n")]).unwrap(),
            ["b.sql", "a.sql"]
        );
        assert_eq!(names(&[("order", b"")]).unwrap(), [""; 0]);
    }

    #[test]
    fn an_order_that_does_not_fit_its_files_is_refused_with_the_file() {
        assert_eq!(names(&[("order", b"a.sql\n")]).unwrap_err(), "a.sql is named in order and is not there");
        assert_eq!(
            names(&[("a.sql", b""), ("order", b"a.sql\na.sql")]).unwrap_err(),
            "a.sql is named in order twice"
        );
        let unnamed = names(&[("a.sql", b""), ("order", b"")]).unwrap_err();
        assert_eq!(unnamed, "a.sql is not named in order, so that nobody knows when to apply it");
    }

    #[test]
    fn what_is_too_big_not_text_or_ends_its_own_transaction_is_refused() {
        assert!(names(&[("a.sql", &vec![b' '; 1 << 20])]).is_ok());
        assert!(
            names(&[("a.sql", &vec![b' '; (1 << 20) + 1])]).unwrap_err().ends_with("1 MiB of migrations")
        );
        assert!(
            names(&[("a.sql", &[0xff])])
                .unwrap_err()
                .ends_with("a.sql is not UTF-8; PostgreSQL reads nothing else here")
        );
        let refused = names(&[("a.sql", b"create table a ();\ncommit;\n")]).unwrap_err();
        assert!(refused.starts_with("a.sql:2: COMMIT begins or ends a transaction"), "{refused}");
    }

    #[test]
    fn only_the_first_line_takes_a_file_out_of_its_transaction() {
        let file = |sql: &str| File { name: "a.sql".to_owned(), sql: sql.to_owned() };
        assert!(file("-- no-transaction\ncreate index concurrently").no_transaction());
        assert!(!file("\n-- no-transaction\n").no_transaction());
    }
}
