//! How the database is reached, and the wait for it.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use fabrique_ports::{Fault, Peer, PortError, PortResult};
use secrecy::{ExposeSecret as _, SecretString};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Error};
use tokio::time::{Instant, sleep, timeout};

pub use sqlx::postgres::PgSslMode;

/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Where the database is and who asks.
#[derive(Clone)]
pub struct Connect {
    /// The server's name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The database.
    pub database: String,
    /// The role.
    pub user: SecretString,
    /// Its password; none where the server trusts it.
    pub password: Option<SecretString>,
    /// Whether the connection is encrypted, and the server asked who it is.
    pub tls: PgSslMode,
    /// Whom certificates are believed of, beside the system's own.
    pub authority: Option<PathBuf>,
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connect({self})")
    }
}

impl fmt::Display for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.host, self.port, self.database)
    }
}

impl Connect {
    fn options(&self) -> PgConnectOptions {
        // Nothing of a file in somebody's home, and no statement in a log: a migration may set a password.
        let mut options = PgConnectOptions::new_without_pgpass()
            .host(&self.host)
            .port(self.port)
            .database(&self.database)
            .username(self.user.expose_secret())
            .password(self.password.as_ref().map_or("", |password| password.expose_secret()))
            .ssl_mode(self.tls)
            .application_name("fabrique migrate")
            .disable_statement_logging();
        if let Some(authority) = &self.authority {
            options = options.ssl_root_cert(authority);
        }
        options
    }

    /// A connection, waited for while the server or the database is not there yet.
    pub(crate) async fn open(&self, limit: Duration) -> PortResult<PgConnection> {
        let options = self.options();
        let until = Instant::now() + limit;
        let pauses = ExponentialBuilder::default()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(LONGEST_PAUSE)
            .with_jitter();
        let mut pauses = pauses.without_max_times().build();
        let mut told = false;
        loop {
            let left = until.saturating_duration_since(Instant::now()).min(ATTEMPT);
            let why = match timeout(left, options.connect()).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) if is_early(&error) => short(&error),
                Ok(Err(error)) => return Err(self.refused(&error)),
                Err(_) => "no answer".to_owned(),
            };
            let pause = pauses.next().unwrap_or(LONGEST_PAUSE);
            if Instant::now() + pause >= until {
                let what = format!("{self} was waited for for {} s: {why}", limit.as_secs_f32());
                let remedy = "is the database there, and may this pod reach it?";
                return Err(PortError::new(Peer::Database, Fault::Transient, what).remedy(remedy));
            }
            if !std::mem::replace(&mut told, true) {
                tracing::info!(database = %self, %why, "waiting for the database");
            }
            sleep(pause).await;
        }
    }

    fn refused(&self, error: &Error) -> PortError {
        let code = error.as_database_error().and_then(|error| error.code());
        let denied = matches!(code.as_deref(), Some(code) if code.starts_with("28"));
        let (fault, remedy) = match error {
            _ if denied => (Fault::Denied, "compare the secret's username and password with the role"),
            Error::Tls(_) | Error::Io(_) => (Fault::Denied, "correct PGSSLMODE or PGSSLROOTCERT"),
            Error::Configuration(_) => (Fault::Denied, "correct how the database is reached"),
            _ => (Fault::Unexpected, "is it a PostgreSQL server of version 13 or later?"),
        };
        PortError::new(Peer::Database, fault, format!("{self}: {}", short(error))).remedy(remedy)
    }
}

/// Whether the server is on its way: not there yet, starting, full, or without the database, which the same sync makes.
fn is_early(error: &Error) -> bool {
    match error {
        // So a handshake fails that found another server than it was told to believe.
        Error::Io(error) => error.kind() != ErrorKind::InvalidData,
        Error::Database(error) => {
            matches!(error.code().as_deref(), Some("57P01" | "57P02" | "57P03" | "53300" | "3D000"))
        }
        _ => false,
    }
}

/// What went wrong, without the words around it.
pub(crate) fn short(error: &Error) -> String {
    match error {
        Error::Database(error) => error.message().to_owned(),
        Error::Io(error) => error.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_printed_tells_who_asks() {
        let connect = Connect {
            host: "pg-rw.postgres".to_owned(),
            port: 5432,
            database: "pgvector".to_owned(),
            user: "secret-user".to_owned().into(),
            password: Some("secret-password".to_owned().into()),
            tls: PgSslMode::VerifyFull,
            authority: None,
        };
        assert_eq!(
            format!("{connect:?} {connect}"),
            "Connect(pg-rw.postgres:5432/pgvector) pg-rw.postgres:5432/pgvector"
        );
    }
}
