//! An app's migrations, applied to its PostgreSQL database once and in order.
//!
//! [`migrate`] brings a database to a [`Set`] of files: those that are not applied yet are, each in a transaction of its
//! own with its line in the ledger, so that a file that fails leaves nothing behind. A second run finds nothing to do.
//! What was applied is never applied again and never undone: a file that was edited, moved or removed since is refused
//! by its name, before anything is changed.
//!
//! * [`Set`] reads a folder: a mounted ConfigMap, with the file [`ORDER`] beside the migrations.
//! * A file that begins with `-- no-transaction` runs statement by statement outside of one, for what PostgreSQL allows
//!   only there (`CREATE INDEX CONCURRENTLY`). It cannot be undone, and what it leaves is told.
//! * One ledger for each app, one run at a time in a database. The lock is asked for and never waited for inside of
//!   PostgreSQL: a session that waits there would be waited for by `CREATE INDEX CONCURRENTLY`.
//!
//! The ledger and the transactions are sqlx's. This crate must not know where the files come from, what an app is
//! beyond its name, or any other adapter; it reads no environment.

mod connect;
mod ledger;
mod run;
mod script;
mod set;

pub use connect::{Connect, PgSslMode as TlsMode};
pub use ledger::{Refusal, Report};
pub use run::{Limits, migrate};
pub use script::{Control, NO_TRANSACTION, Statement, controls, statements};
pub use set::{File, ORDER, Set, SetError};
