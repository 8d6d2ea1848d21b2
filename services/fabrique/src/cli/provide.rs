//! What commands take that bring to apps what they depend on.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fabrique_core::id::AppName;

use super::parse_duration;

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Whose migrations they are: each app has a ledger of its own.
    #[arg(long, value_name = "APP")]
    pub(crate) app: AppName,
    /// The folder with the migrations: `*.sql`, in the order that its file `order` names, or by name without one.
    #[arg(long, value_name = "DIR")]
    pub(crate) from: PathBuf,
    /// A folder with the files `username` and `password`, as a mounted secret has them. Without it, PGUSER and
    /// PGPASSWORD of the environment.
    #[arg(long, value_name = "DIR")]
    pub(crate) credentials: Option<PathBuf>,
    /// How long the database is waited for.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION", default_value = "1m")]
    pub(crate) wait: Duration,
    /// How long all of it may take.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION", default_value = "15m")]
    pub(crate) limit: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Secrets {
    /// Only this one.
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
    /// Say what would be done and write nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The context of KUBECONFIG, instead of its current one.
    #[arg(long, value_name = "CONTEXT")]
    pub(crate) context: Option<String>,
    /// Print the Roles and RoleBindings that this takes instead, for the service account that is named.
    #[arg(long, value_name = "NAMESPACE/ACCOUNT", conflicts_with_all = ["only", "dry_run", "context"])]
    pub(crate) rbac: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};

    #[test]
    fn secrets_are_derived_in_the_cluster_of_a_context_and_rights_are_of_none() {
        let parsed = |more: &[&str]| Cli::try_parse_from([&["fabrique", "secrets"], more].concat());
        let Command::Secrets(secrets) = parsed(&["--context", "bench"]).unwrap().command else { panic!() };
        assert_eq!(secrets.context.as_deref(), Some("bench"));
        parsed(&["--rbac", "fabrique/secrets"]).unwrap();
        parsed(&["--rbac", "fabrique/secrets", "--context", "bench"]).unwrap_err();
    }
}
