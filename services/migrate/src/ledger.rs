//! What was applied, against what there is now.

use fabrique_core::id::AppName;
use serde::Serialize;
use sqlx::migrate::Migration;

use crate::set::Set;

/// What a run did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// The files that it applied, in order.
    pub applied: Vec<String>,
    /// How many were applied before.
    pub already: usize,
    /// Those of them that are behind the set, in order: a newer set brought them, and they stay applied.
    pub ahead: Vec<String>,
    /// Why it went no further, where it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
}

/// Why a database is not brought to a set. Nothing of the file that it names is left behind, unless it says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Refusal {
    /// A file is not what was applied.
    #[error(
        "{file} was applied at {at} and has been edited since; put it back as it was (git log -p -- {file}), and write what \
         it should do now into a new file behind the others"
    )]
    Edited {
        /// The file.
        file: String,
        /// When it was applied.
        at: String,
    },
    /// A file that was applied is not there, and one behind it is.
    #[error(
        "{file} was applied at {at} as number {number} and is not among the migrations any more; put it back: to undo it, \
         write a new file behind the others"
    )]
    Missing {
        /// The file.
        file: String,
        /// When it was applied.
        at: String,
        /// Its place in the order, from 1.
        number: i64,
    },
    /// Another file stands where one was applied.
    #[error(
        "number {number} is {found} now, and {file} was applied there at {at}; new files come behind those that are \
         applied: put dependsOn.migrations back into the order that it had, and add to its end"
    )]
    Moved {
        /// The file that was applied.
        file: String,
        /// The file that stands there now.
        found: String,
        /// When it was applied.
        at: String,
        /// The place, from 1.
        number: i64,
    },
    /// The database did not accept a file.
    #[error("{file}{}: {what}; {left}", line.map(|line| format!(":{line}")).unwrap_or_default())]
    Broken {
        /// The file.
        file: String,
        /// The line, where the database says one.
        line: Option<usize>,
        /// What it said.
        what: String,
        /// What is left of the file, and what to do.
        left: String,
    },
    /// A file outside of a transaction would pass over what an earlier one left half done.
    #[error(
        "{file} was not begun: the index {index} is not valid, left by a CREATE INDEX CONCURRENTLY that failed; DROP INDEX \
         CONCURRENTLY {index}, since IF NOT EXISTS would pass over it"
    )]
    InvalidIndex {
        /// The file.
        file: String,
        /// The index with its schema.
        index: String,
    },
}

/// One line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) number: i64,
    pub(crate) file: String,
    pub(crate) at: String,
    pub(crate) checksum: Vec<u8>,
}

/// The table of an app's ledger, in the schema that its role makes tables in.
pub(crate) fn table(schema: &str, app: &AppName) -> String {
    let schema = schema.replace('"', "\"\"");
    format!("\"{schema}\".\"fabrique_migrations_{}\"", app.as_str().replace('-', "_"))
}

/// What is left to apply, or why nothing may be. What was applied has to be the beginning of what there is, or the other way
/// around: then nothing is left.
pub(crate) fn pending<'m>(
    rows: &[Row],
    migrations: &'m [Migration],
    set: &Set,
) -> Result<&'m [Migration], Refusal> {
    for (row, number) in rows.iter().zip(1..) {
        let at = row.at.clone();
        let missing = || Refusal::Missing { file: row.file.clone(), at: row.at.clone(), number: row.number };
        let place = usize::try_from(number - 1).ok().filter(|_| row.number == number);
        let Some(place) = place else { return Err(missing()) };
        let Some(migration) = migrations.get(place) else { break };
        if *migration.description != *row.file {
            return Err(match set.files().iter().any(|file| file.name == row.file) {
                true => {
                    let found = migration.description.clone().into_owned();
                    Refusal::Moved { file: row.file.clone(), found, at, number }
                }
                false => missing(),
            });
        }
        if *migration.checksum != *row.checksum {
            return Err(Refusal::Edited { file: row.file.clone(), at });
        }
    }
    Ok(migrations.get(rows.len()..).unwrap_or_default())
}

/// What was applied and is behind `set`, once [`pending`] found the two to begin alike.
pub(crate) fn ahead(rows: &[Row], set: &Set) -> Vec<String> {
    rows.iter().skip(set.files().len()).map(|row| row.file.clone()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::run::migrations;
    use crate::set::File;

    fn set(files: &[(&str, &str)]) -> Set {
        let file = |(name, sql): &(&str, &str)| File { name: (*name).to_owned(), sql: (*sql).to_owned() };
        Set::new(files.iter().map(file).collect()).unwrap()
    }

    fn rows(set: &Set) -> Vec<Row> {
        let row = |migration: &Migration| Row {
            number: migration.version,
            file: migration.description.clone().into_owned(),
            at: "2026-11-30 09:00:00 UTC".to_owned(),
            checksum: migration.checksum.to_vec(),
        };
        migrations(set).iter().map(row).collect()
    }

    fn judged(before: &[(&str, &str)], now: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let now = set(now);
        let migrations = migrations(&now);
        let pending =
            pending(&rows(&set(before)), &migrations, &now).map_err(|refusal| refusal.to_string())?;
        Ok(pending.iter().map(|migration| migration.description.clone().into_owned()).collect())
    }

    #[test]
    fn new_files_come_behind_those_that_are_applied() {
        let (a, b, c) = (("a.sql", "1"), ("b.sql", "2"), ("c.sql", "3"));
        assert_eq!(judged(&[], &[a, b]).unwrap(), ["a.sql", "b.sql"]);
        assert_eq!(judged(&[a], &[a, b, c]).unwrap(), ["b.sql", "c.sql"]);
        assert_eq!(judged(&[a, b], &[a, b]).unwrap(), [""; 0]);
    }

    #[test]
    fn what_was_applied_and_is_something_else_now_is_named() {
        let (a, b) = (("a.sql", "1"), ("b.sql", "2"));
        let starts = |told: Result<Vec<String>, String>, with: &str| {
            let told = told.unwrap_err();
            assert!(told.starts_with(with), "{told}");
        };
        let at = "at 2026-11-30 09:00:00 UTC";
        starts(
            judged(&[a, b], &[a, ("b.sql", "3")]),
            &format!("b.sql was applied {at} and has been edited since"),
        );
        starts(judged(&[a, b], &[b]), &format!("a.sql was applied {at} as number 1 and is not among"));
        starts(judged(&[a], &[b, a]), &format!("number 1 is b.sql now, and a.sql was applied there {at}"));
    }

    #[test]
    fn a_set_that_the_ledger_begins_with_has_nothing_left_and_what_is_behind_it_is_named() {
        let (a, b, c) = (("a.sql", "1"), ("b.sql", "2"), ("c.sql", "3"));
        let behind = |now: &[(&str, &str)]| {
            assert_eq!(judged(&[a, b, c], now).unwrap(), [""; 0]);
            ahead(&rows(&set(&[a, b, c])), &set(now))
        };
        assert_eq!(behind(&[a]), ["b.sql", "c.sql"]);
        assert_eq!(behind(&[]), ["a.sql", "b.sql", "c.sql"]);
        assert_eq!(behind(&[a, b, c]), [""; 0]);
        assert!(judged(&[a, b, c], &[a, ("b.sql", "3")]).unwrap_err().contains("has been edited since"));
        assert!(judged(&[a, b, c], &[a, c]).unwrap_err().starts_with("b.sql was applied"));
    }

    #[test]
    fn each_app_has_a_ledger_and_a_schema_is_only_a_name() {
        let app = |name: &str| AppName::parse(name).unwrap();
        assert_eq!(table("public", &app("citation-eu")), r#""public"."fabrique_migrations_citation_eu""#);
        assert_eq!(table(r#"a"; drop"#, &app("x")), r#""a""; drop"."fabrique_migrations_x""#);
        // PostgreSQL cuts longer names, and two apps would share a ledger.
        let name = table("", &app(&"a".repeat(40)));
        assert!(name.len() - 5 <= 63, "{name}");
    }

    proptest! {
        /// One of the two is a beginning of the other, or nothing is applied.
        #[test]
        fn only_a_beginning_goes_on(before in prop::collection::vec(("[ab]{1,2}", "[12]"), 0..4), now in prop::collection::vec(("[ab]{1,2}", "[12]"), 0..5)) {
            let named = |files: &[(String, String)]| set(&files.iter().map(|(name, sql)| (name.as_str(), sql.as_str())).collect::<Vec<_>>());
            let (before, now) = (named(&before), named(&now));
            let migrations = migrations(&now);
            let outcome = pending(&rows(&before), &migrations, &now);
            let (before, now) = (before.files(), now.files());
            prop_assert_eq!(outcome.is_ok(), now.starts_with(before) || before.starts_with(now));
            if let Ok(pending) = outcome {
                prop_assert_eq!(pending.len(), now.len().saturating_sub(before.len()));
            }
        }
    }
}
