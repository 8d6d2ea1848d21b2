//! `migrate`: an app's migrations, as a Job runs them before a sync. No configuration is read.

use std::path::{Path, PathBuf};

use fabrique_migrate::{Connect, Limits, Report, Set, SetError, TlsMode, migrate};
use fabrique_operator::Exit;
use secrecy::SecretString;

use crate::cli::Migrate;
use crate::people::console::{Console, remark};
use crate::people::trouble::Complaint;
use crate::people::words::count;

/// The largest file with a user name or a password.
const LARGEST: u64 = 64 * 1024;

/// Applies what is not applied yet.
pub(crate) async fn run(console: Console, wanted: &Migrate) -> anyhow::Result<Exit> {
    let set = match Set::read(&wanted.from) {
        Ok(set) => set,
        // A file is wrong, and not the question.
        Err(error @ SetError::Controls { .. }) => {
            remark(&error.to_string());
            return Ok(Exit::Findings);
        }
        Err(error) => return Err(Complaint::usage(error.to_string()).into()),
    };
    let connect = connect(wanted, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
    let limits = Limits { wait: wanted.wait, whole: wanted.limit };
    let report = migrate(&connect, &wanted.app, &set, limits).await?;
    if console.is_json() {
        console.json(&report)?;
    } else {
        print(console, &report)?;
    }
    Ok(Exit::ok_if(report.refused.is_none()))
}

fn print(console: Console, report: &Report) -> anyhow::Result<()> {
    for file in &report.applied {
        console.line(&format!("applied {file}"))?;
    }
    let (applied, already) = (count(report.applied.len(), "file"), report.already);
    console.line(&format!("{applied} applied, {already} before"))?;
    if !report.ahead.is_empty() {
        let ahead = report.ahead.join(", ");
        console.line(&format!("behind this set, of a newer one, and still applied: {ahead}"))?;
    }
    if let Some(refusal) = &report.refused {
        remark(&refusal.to_string());
    }
    Ok(())
}

/// How the database is reached, in the words of PostgreSQL's own programs.
fn connect(wanted: &Migrate, variable: &dyn Fn(&str) -> Option<String>) -> Result<Connect, Complaint> {
    let required = |name: &str, what: &str| {
        variable(name).ok_or_else(|| Complaint::usage(format!("{name}: not set; set it to {what}")))
    };
    let port = variable("PGPORT").unwrap_or_else(|| "5432".to_owned());
    let port = port.parse().map_err(|_| Complaint::usage("PGPORT: not a port; write 5432"))?;
    let tls = match variable("PGSSLMODE") {
        None => TlsMode::Prefer,
        Some(mode) => mode.parse().map_err(|_| {
            Complaint::usage(
                "PGSSLMODE: no such mode; write disable, prefer, require, verify-ca or verify-full",
            )
        })?,
    };
    let (user, password) = match &wanted.credentials {
        Some(folder) => (credential(folder, "username")?, Some(credential(folder, "password")?)),
        None => {
            let user = required("PGUSER", "the role, or name a folder with --credentials")?;
            (user.into(), variable("PGPASSWORD").map(SecretString::from))
        }
    };
    Ok(Connect {
        host: required("PGHOST", "the server of the database")?,
        port,
        database: required("PGDATABASE", "the database")?,
        user,
        password,
        tls,
        authority: variable("PGSSLROOTCERT").map(PathBuf::from),
    })
}

/// One file of a mounted secret. A line end behind it is not part of it.
fn credential(folder: &Path, name: &str) -> Result<SecretString, Complaint> {
    let file = folder.join(name);
    let refused = |why: &str| {
        let remedy = "mount the secret with the database's username and password there";
        Complaint::usage(format!("{}: {why}; {remedy}", file.display()))
    };
    let size = std::fs::metadata(&file).map_err(|error| refused(&error.to_string()))?.len();
    if size > LARGEST {
        return Err(refused("too long"));
    }
    let text = std::fs::read_to_string(&file).map_err(|error| refused(&error.to_string()))?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() { Err(refused("it is empty")) } else { Ok(text.to_owned().into()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use fabrique_core::id::AppName;
    use secrecy::ExposeSecret as _;

    use super::*;

    fn wanted(credentials: Option<PathBuf>) -> Migrate {
        Migrate {
            app: AppName::parse("citation").unwrap(),
            from: PathBuf::new(),
            credentials,
            wait: Duration::ZERO,
            limit: Duration::ZERO,
        }
    }

    fn reached(wanted: &Migrate, variables: &[(&str, &str)]) -> Result<Connect, String> {
        let find =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        connect(wanted, &find).map_err(|complaint| complaint.to_string())
    }

    #[test]
    fn the_database_is_named_by_the_environment_and_credentials_by_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("username"), "role\n").unwrap();
        fs::write(folder.path().join("password"), "pass word\r\n").unwrap();
        let there = [("PGHOST", "pg"), ("PGDATABASE", "pgvector"), ("PGUSER", "another")];
        let connect = reached(&wanted(Some(folder.path().to_owned())), &there).unwrap();
        assert_eq!(connect.to_string(), "pg:5432/pgvector");
        assert_eq!(connect.user.expose_secret(), "role");
        assert_eq!(connect.password.unwrap().expose_secret(), "pass word");
        assert_eq!(reached(&wanted(None), &there).unwrap().user.expose_secret(), "another");
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("username"), "\n").unwrap();
        let there = [("PGHOST", "pg"), ("PGDATABASE", "pgvector"), ("PGUSER", "role")];
        let told = reached(&wanted(Some(folder.path().to_owned())), &there).unwrap_err();
        assert!(told.contains("username: it is empty; mount the secret"), "{told}");
        assert!(reached(&wanted(None), &there[1..]).unwrap_err().starts_with("PGHOST: not set"));
        let odd = [&there[..], &[("PGSSLMODE", "yes")]].concat();
        assert!(reached(&wanted(None), &odd).unwrap_err().starts_with("PGSSLMODE: no such mode"));
    }
}
