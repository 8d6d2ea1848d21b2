//! One run.

use std::borrow::Cow;
use std::time::Duration;

use fabrique_core::id::AppName;
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use sqlx::migrate::{Migrate as _, MigrateError, Migration, MigrationType};
use sqlx::postgres::{PgConnection, PgDatabaseError, PgErrorPosition};
use sqlx::{AssertSqlSafe, Connection as _, Error, Executor as _, SqlSafeStr as _};
use tokio::time::{Instant, sleep, timeout_at};

use crate::connect::{Connect, short};
use crate::ledger::{Refusal, Report, Row, ahead, pending, table};
use crate::script::statements;
use crate::set::Set;

/// Who holds it migrates the database. Its number means nothing; it is in nobody else's hands by being odd enough.
const LOCK: i64 = 0x6661_6272_6971_7565;
/// How often a lock that another run holds is asked for.
const ASK: Duration = Duration::from_millis(250);
/// The longest run: `statement_timeout` takes no more.
const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);
/// How long saying goodbye may take.
const CLOSING: Duration = Duration::from_secs(2);

/// How long a run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Until the database answers.
    pub wait: Duration,
    /// All of it, with the wait and the lock; more than 24 days are 24 days.
    pub whole: Duration,
}

/// Brings a database to `set`: applies what is not applied yet, in order.
///
/// # Errors
/// When the database does not answer in time or not as it should, when the lock is held for too long, and when the role
/// may not do what a run needs. What a person has to mend in the files is in [`Report::refused`].
pub async fn migrate(connect: &Connect, app: &AppName, set: &Set, limits: Limits) -> PortResult<Report> {
    let limit = limits.whole.min(LONGEST);
    let until = Instant::now() + limit;
    let mut connection = connect.open(limits.wait.min(limit)).await?;
    let mut run = Run { connect, connection: &mut connection, until, limit };
    let report = timeout_at(until, run.whole(app, set)).await;
    let report = report.unwrap_or_else(|_| Err(too_slow(connect, limit)));
    // The lock ends with the session, whatever becomes of these.
    drop(timeout_at(Instant::now() + CLOSING, connection.close()).await);
    report
}

/// The files as sqlx knows them: numbered by their place, with their names for descriptions.
pub(crate) fn migrations(set: &Set) -> Vec<Migration> {
    let migration = |(file, number): (&crate::set::File, i64)| {
        let sql = AssertSqlSafe(file.sql.clone()).into_sql_str();
        let name = Cow::Owned(file.name.clone());
        Migration::new(number, name, MigrationType::Simple, sql, file.no_transaction())
    };
    set.files().iter().zip(1..).map(migration).collect()
}

struct Run<'c> {
    connect: &'c Connect,
    connection: &'c mut PgConnection,
    until: Instant,
    limit: Duration,
}

impl Run<'_> {
    async fn whole(&mut self, app: &AppName, set: &Set) -> PortResult<Report> {
        self.settle().await?;
        self.lock().await?;
        let schema: Option<String> = sqlx::query_scalar("SELECT current_schema()::text")
            .fetch_one(&mut *self.connection)
            .await
            .map_err(|error| self.unexpected(&error))?;
        let Some(schema) = schema else {
            let what = format!("{}: no schema of the role's search_path is there", self.connect);
            let remedy = "make one, or set the role's search_path";
            return Err(PortError::new(Peer::Database, Fault::Denied, what).remedy(remedy));
        };
        let table = table(&schema, app);
        let rows = self.ledger(&table).await?;
        let migrations = migrations(set);
        let mut report = Report { already: rows.len(), ..Report::default() };
        let pending = match pending(&rows, &migrations, set) {
            Ok(pending) => pending,
            Err(refusal) => {
                report.refused = Some(refusal);
                return Ok(report);
            }
        };
        report.ahead = ahead(&rows, set);
        for migration in pending {
            if let Err(refusal) = self.apply(&table, migration).await? {
                report.refused = Some(refusal);
                return Ok(report);
            }
            report.applied.push(migration.description.clone().into_owned());
            tracing::info!(file = %migration.description, "applied");
        }
        Ok(report)
    }

    /// What holds for the session, and again after each file: one may have set anything.
    async fn settle(&mut self) -> PortResult<()> {
        let left = self.until.saturating_duration_since(Instant::now()).as_millis().max(1);
        // So that the server ends by itself what nobody waits for any more.
        let settings = format!("RESET ROLE; RESET ALL; SET statement_timeout = {left}");
        self.connection.execute(AssertSqlSafe(settings)).await.map_err(|error| self.unexpected(&error))?;
        // Where the system cannot tell that a client is gone, a killed run ends with its statement.
        let check = "SET client_connection_check_interval = '2s'";
        drop(self.connection.execute(check).await);
        Ok(())
    }

    async fn lock(&mut self) -> PortResult<()> {
        loop {
            let taken: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
                .bind(LOCK)
                .fetch_one(&mut *self.connection)
                .await
                .map_err(|error| self.unexpected(&error))?;
            if taken {
                return Ok(());
            }
            if Instant::now() + ASK >= self.until {
                let what =
                    format!("{}: another run held the lock for {} s", self.connect, self.limit.as_secs_f32());
                let remedy = "look for it in pg_stat_activity by its application_name, fabrique migrate";
                return Err(PortError::new(Peer::Database, Fault::Transient, what).remedy(remedy));
            }
            sleep(ASK).await;
        }
    }

    async fn ledger(&mut self, table: &str) -> PortResult<Vec<Row>> {
        /// Number, file, when it was applied, checksum.
        type Stored = (i64, String, String, Vec<u8>);
        let made = self.connection.ensure_migrations_table(table).await;
        made.map_err(|error| self.unexpected(&of(error)))?;
        let rows: Result<Vec<Stored>, Error> = sqlx::query_as(AssertSqlSafe(format!(
            "SELECT version, description, to_char(installed_on AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS \"UTC\"'), \
             checksum FROM {table} ORDER BY version"
        )))
        .fetch_all(&mut *self.connection)
        .await;
        let rows = rows.map_err(|error| self.unexpected(&error))?;
        let row = |(number, file, at, checksum)| Row { number, file, at, checksum };
        Ok(rows.into_iter().map(row).collect())
    }

    async fn apply(&mut self, table: &str, migration: &Migration) -> PortResult<Result<(), Refusal>> {
        let outcome = match migration.no_tx {
            false => self.connection.apply(table, migration).await.map(|_| Ok(())).or_else(|error| {
                let left =
                    "nothing of it is left, and the files before it stay applied; correct it".to_owned();
                self.broken(migration, &of(error), 0, left).map(Err)
            }),
            true => match self.invalid().await? {
                Some(index) => {
                    let file = migration.description.clone().into_owned();
                    return Ok(Err(Refusal::InvalidIndex { file, index }));
                }
                None => self.outside(table, migration).await,
            },
        }?;
        self.settle().await?;
        Ok(outcome)
    }

    /// Statement by statement, then the line in the ledger.
    async fn outside(&mut self, table: &str, migration: &Migration) -> PortResult<Result<(), Refusal>> {
        for statement in statements(migration.sql.as_str()) {
            let done = self.connection.execute(AssertSqlSafe(statement.text.to_owned())).await;
            if let Err(error) = done {
                let mut left =
                    "it has no transaction, so that what it did before stays; correct it so that it may run \
                                again"
                        .to_owned();
                if let Ok(Some(index)) = self.invalid().await {
                    left = format!("{left}, and DROP INDEX CONCURRENTLY {index}, which is not valid");
                }
                return self.broken(migration, &error, statement.line - 1, left).map(Err);
            }
        }
        self.connection.skip(table, migration).await.map_err(|error| self.unexpected(&of(error)))?;
        Ok(Ok(()))
    }

    /// An index of the role's that is not valid and that nobody is making.
    async fn invalid(&mut self) -> PortResult<Option<String>> {
        sqlx::query_scalar(
            "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_index i \
             JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE NOT i.indisvalid AND c.relkind = 'i' AND pg_has_role(c.relowner, 'USAGE') \
             AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = i.indexrelid) \
             ORDER BY 1 LIMIT 1",
        )
        .fetch_optional(&mut *self.connection)
        .await
        .map_err(|error| self.unexpected(&error))
    }

    /// What the database said about a file, or an error when it said nothing about it.
    fn broken(
        &self,
        migration: &Migration,
        error: &Error,
        above: usize,
        left: String,
    ) -> PortResult<Refusal> {
        let Some(said) =
            error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
        else {
            return Err(self.unexpected(error));
        };
        if said.code() == "57014" && Instant::now() >= self.until {
            return Err(too_slow(self.connect, self.limit));
        }
        let mut what = format!("{} ({})", said.message(), said.code());
        // Of what is wrong with data, the detail is the data.
        let about_data = said.code().starts_with("22") || said.code().starts_with("23");
        for more in [said.detail().filter(|_| !about_data), said.hint()].into_iter().flatten() {
            what = format!("{what}; {more}");
        }
        let line = match said.position() {
            Some(PgErrorPosition::Original(at)) => {
                let lines = migration.sql.as_str().split('\n').skip(above);
                let mut left = at;
                let within = lines.take_while(|line| {
                    let length = line.chars().count() + 1;
                    let ends = left > length;
                    left = left.saturating_sub(length);
                    ends
                });
                Some(above + within.count() + 1)
            }
            Some(PgErrorPosition::Internal { .. }) | None => (above > 0).then_some(above + 1),
        };
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Refusal::Broken { file: migration.description.clone().into_owned(), line, what, left })
    }

    fn unexpected(&self, error: &Error) -> PortError {
        let code = error.as_database_error().and_then(|error| error.code()).map(Cow::into_owned);
        let what = format!("{}: {}", self.connect, short(error));
        match (error, code.as_deref()) {
            (Error::Io(_), _) | (_, Some("57P01" | "57P02" | "57P03" | "57014")) => {
                let remedy = "a run that is begun again goes on where it stopped";
                PortError::new(Peer::Database, Fault::Transient, what).remedy(remedy)
            }
            (_, Some("42501")) => {
                let remedy =
                    "the role has to be allowed to make tables in its schema, as the database's owner is";
                PortError::new(Peer::Database, Fault::Denied, what).remedy(remedy)
            }
            _ => PortError::new(Peer::Database, Fault::Unexpected, what),
        }
    }
}

fn of(error: MigrateError) -> Error {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error,
        other => Error::Migrate(Box::new(other)),
    }
}

fn too_slow(connect: &Connect, limit: Duration) -> PortError {
    let what = format!("{connect}: not done within {} s", limit.as_secs_f32());
    let remedy = "the file that ran is undone unless it has no transaction; give it more time";
    PortError::new(Peer::Database, Fault::Transient, what).remedy(remedy)
}
