//! The command line: what can be said, and the help that teaches it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fabrique_core::id::{AppName, BuildId};

/// From a push on Gitea to a digest that Argo CD deploys.
///
/// Roles run as services (receiver, worker, reconcile, all); the other commands are for people. Every
/// command reads one configuration: a file, FABRIQUE_… in the environment, then flags.
#[derive(Debug, Parser)]
#[command(
    name = "fabrique",
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 done, 1 found or failed, 2 wrong usage or configuration, 3 a peer cannot be reached."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The configuration file.
    #[arg(long, short, global = true, env = "FABRIQUE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How results are printed.
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    /// What services log: a level, or directives like `fabrique_worker=debug`.
    #[arg(long, global = true, env = "FABRIQUE_LOG", default_value = "info", value_name = "FILTER")]
    pub(crate) log: String,
    /// How services log.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Aligned columns for people.
    Table,
    /// JSON for programs.
    Json,
}

/// How services log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Receive Gitea's webhooks and wake the apps they concern.
    Receiver,
    /// Claim due apps, build them and write their digests back.
    Worker,
    /// Compare every app's head with what is deployed and wake what differs.
    Reconcile(Reconcile),
    /// Receiver, worker and reconciler in one process.
    All,
    /// Make what is missing on the bus: streams and buckets. What exists is reported, never changed.
    Init,

    /// Every app at a glance.
    Status,
    /// What an app needs next, and why.
    Why {
        /// The app.
        app: AppName,
    },
    /// The builds of an app, or of all, newest first.
    Builds {
        /// The app.
        app: Option<AppName>,
        /// How many.
        #[arg(long, short = 'n', default_value_t = 20)]
        limit: usize,
    },
    /// What a build printed.
    Logs {
        /// The build, or an app for its newest build.
        build: String,
        /// Go on until the build ends.
        #[arg(long, short)]
        follow: bool,
    },
    /// What happens, as it happens.
    Tail {
        /// Only this app.
        app: Option<AppName>,
        /// Begin this long ago.
        #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
        since: Option<Duration>,
    },
    /// Forget an app's last failure and try again.
    Retry {
        /// The app.
        app: AppName,
    },
    /// Build an app's target anew although it is built.
    Rebuild {
        /// The app.
        app: AppName,
        /// Ignore the build cache.
        #[arg(long)]
        no_cache: bool,
    },
    /// Stop an app's running build. It starts again at a newer revision or on `retry`.
    Cancel {
        /// The app.
        app: AppName,
    },
    /// Lift what holds an app back: a hold, `rewound`, `taken back`.
    Release {
        /// The app.
        app: AppName,
    },
    /// Rewrite an app's bindings from its composition.
    Repair {
        /// The app.
        app: AppName,
    },
    /// Dead letters: apps whose attempts are used up.
    Dlq {
        #[command(subcommand)]
        command: Option<Dlq>,
    },
    /// Webhook #2 on every registered repository and on cluster/apps.
    Hooks {
        #[command(subcommand)]
        command: Hooks,
    },
    /// Check the configuration and every registration.
    Validate {
        /// A checkout of cluster/apps to check instead of the live one; no server is asked.
        #[arg(long, value_name = "DIR")]
        path: Option<PathBuf>,
    },
    /// Check every peer: reachable, permitted, recent enough, set up well.
    Doctor,
    /// Print a completion script for a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Reconcile {
    /// One sweep, then exit: 0 when nothing had to be woken.
    #[arg(long, conflicts_with = "every")]
    pub(crate) once: bool,
    /// The time between two sweeps.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    pub(crate) every: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dlq {
    /// List them.
    List,
    /// One, with the end of its log.
    Show {
        /// The app.
        app: AppName,
    },
    /// Try again.
    Replay {
        /// The app.
        app: AppName,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Hooks {
    /// Create what is missing, repair what differs.
    Ensure {
        /// Say what would be done and do nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    text.parse::<jiff::SignedDuration>()
        .map_err(|e| e.to_string())
        .and_then(|d| Duration::try_from(d).map_err(|_| "must not be negative".to_owned()))
}

/// A build named outright, or an app whose newest build is meant.
pub(crate) enum BuildOrApp {
    Build(BuildId),
    App(AppName),
}

impl BuildOrApp {
    /// Reads either.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        BuildId::parse(text)
            .map(Self::Build)
            .or_else(|_| AppName::parse(text).map(Self::App))
            .map_err(|_| format!("{text:?} is neither a build nor an app"))
    }
}
