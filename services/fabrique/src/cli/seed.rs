//! What `seed` takes.

use std::time::Duration;

use clap::Args;
use fabrique_core::id::{AppName, EnvironmentName};

use super::parse_duration;

#[derive(Debug, Args)]
pub(crate) struct Seed {
    /// The apps, as they are registered in cluster/apps.
    #[arg(required = true, value_name = "APP")]
    pub(crate) apps: Vec<AppName>,
    /// Where. Needed where they have several environments in common, and for production.
    #[arg(long, value_name = "ENVIRONMENT")]
    pub(crate) environment: Option<EnvironmentName>,
    /// Print the plan and change nothing.
    #[arg(long, conflicts_with_all = ["yes", "confirm"])]
    pub(crate) dry_run: bool,
    /// Do not ask. For production, --confirm has to say its name as well.
    #[arg(long)]
    pub(crate) yes: bool,
    /// The name of the environment for the second time.
    #[arg(long, value_name = "ENVIRONMENT")]
    pub(crate) confirm: Option<EnvironmentName>,
    /// Refuse where an image would have to be built first.
    #[arg(long)]
    pub(crate) no_build: bool,
    /// The context of KUBECONFIG, instead of its current one. It has to be the environment's all the same.
    #[arg(long, value_name = "CONTEXT")]
    pub(crate) context: Option<String>,
    /// How long all of it may take, but for a last look. What was begun goes on without it.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION", default_value = "1h")]
    pub(crate) limit: Duration,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};

    #[test]
    fn several_apps_are_named_and_a_dry_run_is_not_agreed_to() {
        let parsed = |more: &[&str]| Cli::try_parse_from([&["fabrique", "seed"], more].concat());
        let Command::Seed(seed) = parsed(&["base", "citation", "--yes"]).unwrap().command else { panic!() };
        assert_eq!((seed.apps.len(), seed.yes, seed.no_build), (2, true, false));
        parsed(&[]).unwrap_err();
        parsed(&["citation", "--dry-run", "--yes"]).unwrap_err();
    }
}
