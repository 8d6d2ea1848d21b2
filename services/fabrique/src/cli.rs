//! The command line: what can be said, and the help that teaches it.

mod forge;
mod provide;
mod render;
mod seed;
mod setup;
mod timeline;
mod validate;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fabrique_core::id::{AppName, BuildId};
use fabrique_core::time::Timestamp;

pub(crate) use forge::{Hooks, Mirror};
pub(crate) use provide::{Migrate, Secrets};
pub(crate) use render::Render;
pub(crate) use seed::Seed;
pub(crate) use setup::Init;
pub(crate) use timeline::Timeline;
pub(crate) use validate::Validate;

/// Examples and exit codes under a command's help. Every help ends with them.
macro_rules! taught {
    ($($example:literal),+; $codes:literal) => {
        concat!("Examples:\n", $("  ", $example, "\n",)+ "\nExit codes: ", $codes)
    };
}

use taught;

/// From a push on Gitea to a digest that Argo CD deploys.
///
/// Roles run as services (receiver, worker, reconcile, all); the other commands are for people. Every
/// command reads one configuration: a file, FABRIQUE_… in the environment, then flags.
#[derive(Debug, Parser)]
#[command(
    name = "fabrique",
    version,
    after_help = "\
Examples:
  fabrique status                        every app at a glance
  fabrique why citation                  what it needs next, and why
  fabrique tail citation --since 10m     what happens, as it happens
  fabrique doctor                        what is wrong, and what to do about it
  fabrique status -o json | jq '.apps[] | select(.needs_person) | .app'

Results are on standard output, everything else is on standard error. -o json prints one document, `logs` \
and `tail` one object a line; moments are milliseconds since 1970 in UTC, durations milliseconds in keys that \
end in _ms. Colours only on a terminal, and not with NO_COLOR.

Exit codes:
  0  done, and nothing to complain about
  1  it ran, and the answer is no: findings, a failed check, a refused command, a failed build
  2  asked wrongly: arguments, configuration, an app or build that does not exist
  3  something it needs did not answer; the same command may work later
  4  credentials were refused or rights are missing
  5  an answer that makes no sense: a defect, or an incompatible server"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The configuration file.
    #[arg(long, short, global = true, env = "FABRIQUE_CONFIG", hide_env_values = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// One key of the configuration, over file and environment: `worker.looks=16`. May be repeated; not for secrets.
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,
    /// How results are printed.
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table, hide_possible_values = true, value_name = "table|json")]
    pub(crate) output: Output,
    /// What services log: a level, or directives like `fabrique_worker=debug`.
    #[arg(
        long,
        global = true,
        env = "FABRIQUE_LOG",
        hide_env_values = true,
        default_value = "info",
        value_name = "FILTER"
    )]
    pub(crate) log: String,
    /// How services log.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, hide_possible_values = true, value_name = "text|json")]
    pub(crate) log_format: LogFormat,
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("write KEY=VALUE, like worker.looks=16".to_owned()),
    }
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
    #[command(after_help = taught!(
        "fabrique receiver --config /etc/fabrique.yaml";
        "0 stopped by a signal, 2 configuration, 3 or 4 a peer at the start"
    ))]
    Receiver,
    /// Claim due apps, build them and write their digests back.
    #[command(after_help = taught!(
        "fabrique worker --log info,fabrique_worker=debug";
        "0 stopped by a signal, 2 configuration, 3 or 4 a peer at the start"
    ))]
    Worker,
    /// Compare every app's head with what is deployed and wake what differs.
    #[command(after_help = taught!(
        "fabrique reconcile --every 5m      as a service",
        "fabrique reconcile --once          one sweep, from a timer",
        "fabrique reconcile --once -o json | jq '.woken'";
        "with --once: 0 every app was looked at, whatever was woken; 1 some could not be, or something \
         needs a person; 3 the bus or cluster/apps cannot be read"
    ))]
    Reconcile(Reconcile),
    /// Receiver, worker and reconciler in one process.
    #[command(after_help = taught!(
        "fabrique all --config /etc/fabrique.yaml";
        "0 stopped by a signal, 2 configuration, 3 or 4 a peer at the start"
    ))]
    All,
    /// What an installation needs before its first app, gate by gate. What exists is kept.
    ///
    /// Always the streams and buckets of the bus. With an administrator under `init` also, on Gitea: the organisation and
    /// repository of cluster/apps with their first files, an account and a token for each purpose, and webhook #2; with
    /// `init.argocd_url` webhook #1, with the proof that Argo CD takes its deliveries. Tokens and secrets are written to the
    /// files that the configuration names for them. Interrupted anywhere, it goes on when it is run again.
    #[command(after_help = taught!(
        "fabrique init --dry-run",
        "fabrique init",
        "fabrique init -o json | jq '.gates[] | select(.result == \"failed\")'";
        "0 everything is there, 1 something is in the way (with --dry-run: would be made), 2 configuration, 3 a peer is \
         away, 4 not permitted"
    ))]
    Init(Init),

    /// Every app at a glance.
    #[command(after_help = taught!(
        "fabrique status",
        "fabrique status -o json | jq '.apps[] | select(.needs_person)'";
        "0 every app could be looked at, 1 an app could not or a registration is wrong, 3 a peer is away"
    ))]
    Status,
    /// What an app needs next, and why.
    #[command(after_help = taught!(
        "fabrique why citation",
        "fabrique why citation -o json | jq -r .reason";
        "0 told, 2 no such app, 3 a peer is away"
    ))]
    Why {
        /// The app.
        app: AppName,
    },
    /// The builds of an app, or of all, newest first.
    #[command(after_help = taught!(
        "fabrique builds",
        "fabrique builds citation -n 5",
        "fabrique builds citation --egress            what the newest build fetched";
        "0 told, 2 no such app or build, 3 the bus is away"
    ))]
    Builds {
        /// The app, or one build.
        #[arg(value_parser = BuildOrApp::parse, value_name = "NAME")]
        build: Option<BuildOrApp>,
        /// How many.
        #[arg(long, short = 'n', default_value_t = 20)]
        limit: usize,
        /// What the build fetched, from where, with what answer; of an app, the newest build.
        #[arg(long, requires = "build")]
        egress: bool,
    },
    /// What a build printed.
    #[command(after_help = taught!(
        "fabrique logs citation -f          the newest build, until it ends",
        "fabrique logs citation-01kb8t3f7v2m5q9x4c6d8e0g1h";
        "0 told, 1 with -f: no image came out, 2 no such build or app, 3 the bus is away"
    ))]
    Logs {
        /// The build, or an app for its newest build.
        #[arg(value_parser = BuildOrApp::parse)]
        build: BuildOrApp,
        /// Go on until the build ends.
        #[arg(long, short)]
        follow: bool,
    },
    /// What happens, as it happens.
    #[command(after_help = taught!(
        "fabrique tail",
        "fabrique tail citation --since 1h";
        "0 ended by Ctrl-C, 2 no such app, 3 the bus is away"
    ))]
    Tail {
        /// Only this app.
        app: Option<AppName>,
        /// Begin this long ago.
        #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
        since: Option<Duration>,
    },
    /// One push, from its delivery to its commit, with how long everything took.
    #[command(after_help = taught!(
        "fabrique timeline citation                   the newest build's push",
        "fabrique timeline citation --wait 5m         wait for its end";
        "0 committed, 1 not committed or still under way, 2 no such app or nothing built yet, 3 the bus is away"
    ))]
    Timeline(Timeline),
    /// Forget an app's last failure and try again.
    #[command(after_help = taught!(
        "fabrique retry citation";
        "0 done, 1 refused, 2 no such app, 3 no worker answered"
    ))]
    Retry {
        /// The app.
        app: AppName,
    },
    /// Build an app's target anew although it is built.
    #[command(after_help = taught!(
        "fabrique rebuild citation --no-cache";
        "0 done, 1 refused, 2 no such app, 3 no worker answered"
    ))]
    Rebuild {
        /// The app.
        app: AppName,
        /// Ignore the build cache.
        #[arg(long)]
        no_cache: bool,
    },
    /// Stop an app's running build. It starts again at a newer revision or on `retry`.
    #[command(after_help = taught!(
        "fabrique cancel citation";
        "0 done, 1 refused, 2 no such app, 3 no worker answered"
    ))]
    Cancel {
        /// The app.
        app: AppName,
    },
    /// Lift what holds an app back: a hold, `rewound`, `taken back`.
    #[command(after_help = taught!(
        "fabrique release citation";
        "0 done, 1 refused, 2 no such app, 3 no worker answered"
    ))]
    Release {
        /// The app.
        app: AppName,
    },
    /// Rewrite an app's bindings from its composition.
    #[command(after_help = taught!(
        "fabrique repair citation";
        "0 done, 1 refused, 2 no such app, 3 no worker answered"
    ))]
    Repair {
        /// The app.
        app: AppName,
    },
    /// Dead letters: apps whose attempts are used up.
    #[command(after_help = taught!(
        "fabrique dlq                       list them",
        "fabrique dlq show citation",
        "fabrique dlq replay citation";
        "0 told or done, 1 refused, 2 no such app, 3 a peer is away or no worker answered"
    ))]
    Dlq {
        #[command(subcommand)]
        command: Option<Dlq>,
    },
    /// Webhook #2 on every registered repository and on cluster/apps.
    #[command(after_help = taught!(
        "fabrique hooks ensure --dry-run",
        "fabrique hooks ensure";
        "0 they are as they should be, 1 some are not, 2 configuration, 3 Gitea is away"
    ))]
    Hooks {
        #[command(subcommand)]
        command: Hooks,
    },
    /// Pull mirrors of GitHub, and what its checks say: for apps with `source.github`.
    #[command(after_help = taught!(
        "fabrique mirror ensure",
        "fabrique mirror sync";
        "0 as it should be, 1 it is not, 2 configuration, 3 a peer is away or GitHub takes no more requests, 4 denied"
    ))]
    Mirror {
        #[command(subcommand)]
        command: Mirror,
    },
    /// Check the configuration, the files it names, every registration and declaration, and network policies.
    #[command(after_help = taught!(
        "fabrique validate                                      all apps against the contract",
        "fabrique validate citation                             what keeps one app from being deployed",
        "fabrique validate --live --environment prod            and against what the cluster really has",
        "fabrique validate --path .                             an app's own repository, without a server",
        "fabrique validate --path .                             the same in a checkout of cluster/apps",
        "fabrique validate --path . --registry registry:80      the latter without any configuration",
        "fabrique validate --path . --policies apps             the network policies in it as well",
        "kubectl kustomize k8s/overlays/ha | fabrique validate --policies -";
        "0 nothing is wrong, 1 a registration, a declaration, an overlay or a policy is, 2 the configuration is, or there is \
         no such app, 3 cluster/apps, a source or the cluster cannot be read, 4 the cluster refuses who asks"
    ))]
    Validate(Validate),
    /// The files that Argo CD reads: an Application for each deployed environment, the root Application, its projects.
    ///
    /// They are a function of registrations, compositions and declarations at the heads of their branches, and of the
    /// settings under `render`. What people wrote is never overwritten. An app whose dependency is absent or not ready
    /// is not created. Without --path nothing is written: what would change is told.
    #[command(after_help = taught!(
        "fabrique render                                what would change",
        "fabrique render --check                        the same for a pipeline: fails when anything would",
        "fabrique render --path .                       write it into a checkout of cluster/apps",
        "fabrique render --path . --remove              also remove what is not registered any more; asks",
        "fabrique render --path . --remove --yes        the same where nobody can be asked",
        "fabrique render -o json | jq '.withheld'       what is not created, and why";
        "0 rendered, 1 a registration or declaration is wrong, or something is stale, or with --check anything \
         differs, or nobody agreed to remove, 2 configuration, no such directory, one from which nobody can tell what is \
         gone, or nobody to ask, 3 cluster/apps or a source cannot be read"
    ))]
    Render(Render),
    /// Apply an app's migrations to its PostgreSQL database: each once, in order, in a transaction of its own.
    ///
    /// The server is named by PGHOST, PGPORT, PGDATABASE, PGSSLMODE and PGSSLROOTCERT. What was applied and was edited,
    /// moved or taken out from between others since is refused before anything is changed; a set that is only shorter than
    /// what was applied changes nothing. A file that begins with `-- no-transaction` runs
    /// outside of one. No configuration is read.
    #[command(after_help = taught!(
        "fabrique migrate --app citation --from /migrations --credentials /run/secrets/database",
        "fabrique migrate --app citation --from sql -o json | jq .refused";
        "0 applied, or nothing to do; 1 a file is broken, edited, moved or missing; 2 the folder or the environment is \
         wrong; 3 the database did not answer in time; 4 it let nobody in"
    ))]
    Migrate(Migrate),
    /// Bring the derived secrets of contract.yaml in line with what they are derived from.
    ///
    /// Each has exactly the keys of the contract. A source without one of them, or with an empty one, changes nothing.
    #[command(after_help = taught!(
        "fabrique secrets --dry-run",
        "fabrique secrets --only pgvector-pg-auth",
        "fabrique secrets --rbac fabrique/secrets > rbac.yaml     the rights that this takes";
        "0 they are as they should be, 1 some are not (with --dry-run: would be written), 2 configuration, or no such \
         secret, 3 Gitea or the API server is away, 4 rights are missing"
    ))]
    Secrets(Secrets),
    /// Bring apps up: everything that they need, in order, to an Application that is synced and healthy.
    ///
    /// What is there is looked at and the plan is printed: the image by its digest, the declaration, derived secrets,
    /// migrations, webhooks, the composition, the Application. Where anything stands in the way, nothing at all is changed.
    /// After `yes` or `oui`, secrets and webhooks are made from here, and a worker is asked to build and to commit; the
    /// command waits for it. Interrupted anywhere, it goes on when it is run again; a second run says `0 changed`.
    ///
    /// It works in the context of KUBECONFIG that `seed.environments` of the configuration names for the environment and
    /// refuses to in any other. Gitea, NATS and the registry are reached as the configuration says: from a workstation by
    /// port-forwards.
    #[command(after_help = taught!(
        "fabrique seed citation --dry-run            the plan, and nothing else",
        "fabrique seed base citation                 both, the one that the other needs first",
        "fabrique seed citation --no-build --yes     only what is built, without a question",
        "fabrique seed citation --environment prod   production is named, and asked for its name",
        "fabrique seed citation --environment prod --yes --confirm prod",
        "fabrique seed citation --yes -o json | jq '.steps[] | select(.result == \"failed\")'";
        "0 they are up, 1 something is in the way, or failed (with --dry-run: would be changed or waited for), 2 \
         configuration, no such app, another cluster, or nobody to ask, 3 a peer is away, or it takes longer than --limit, \
         4 rights are missing"
    ))]
    Seed(Seed),
    /// The JSON Schema of a file that people write, for editors and programs.
    #[command(after_help = taught!(
        "fabrique schema > code-location.manifest.json",
        "fabrique schema contract > contract.json";
        "0 printed, 2 there is no such file"
    ))]
    Schema {
        /// Which file: an app's `declaration`, or the cluster's `contract`.
        #[arg(value_enum, default_value_t = SchemaOf::Declaration, hide_possible_values = true)]
        of: SchemaOf,
    },
    /// Check every peer: reachable, permitted, recent enough, set up well.
    ///
    /// Sends a test delivery through the webhook of up to two repositories to measure its delay. Changes nothing.
    #[command(after_help = taught!(
        "fabrique doctor",
        "fabrique doctor -o json | jq '.checks[] | select(.level == \"fail\")'";
        "0 nothing failed (warnings are no failure), 1 a check failed, 2 configuration"
    ))]
    Doctor,
    /// Every key of the configuration, with its value here and who says so.
    #[command(after_help = taught!(
        "fabrique config",
        "fabrique config -o json | jq '.[] | select(.from != \"default\")'",
        "fabrique config --reference         every key there is, with its default and its bounds";
        "0 told, 2 the configuration is wrong"
    ))]
    Config {
        /// Print the page of all keys instead. No configuration is read.
        #[arg(long)]
        reference: bool,
    },
    /// Print a completion script for a shell.
    #[command(after_help = taught!(
        "fabrique completion bash > /etc/bash_completion.d/fabrique",
        "fabrique completion zsh > \"${fpath[1]}/_fabrique\"";
        "0 printed, 2 no such shell"
    ))]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Reconcile {
    /// One sweep, then exit. Of an app with several images it asks the registry about one, chosen by chance, and about the
    /// others only where that one is lost or its tag is missing: a service goes through all of them in turn.
    #[arg(long, conflicts_with = "every")]
    pub(crate) once: bool,
    /// The time between two sweeps.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    pub(crate) every: Option<Duration>,
}

/// A file that has a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaOf {
    /// code-location.manifest.yaml
    Declaration,
    /// contract.yaml
    Contract,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dlq {
    /// List them.
    #[command(after_help = taught!("fabrique dlq list -o json"; "0 told, 3 a peer is away"))]
    List,
    /// One, with the end of its log.
    #[command(after_help = taught!("fabrique dlq show citation"; "0 told, 2 no such app, 3 a peer is away"))]
    Show {
        /// The app.
        app: AppName,
    },
    /// Try again.
    #[command(after_help = taught!(
        "fabrique dlq replay citation";
        "0 done, 1 refused, 2 no such app, 3 no worker answered"
    ))]
    Replay {
        /// The app.
        app: AppName,
    },
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    text.parse::<jiff::SignedDuration>()
        .map_err(|e| e.to_string())
        .and_then(|d| Duration::try_from(d).map_err(|_| "must not be negative".to_owned()))
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    let time: jiff::Timestamp = text.parse().map_err(|e: jiff::Error| e.to_string())?;
    u64::try_from(time.as_millisecond()).map(Timestamp).map_err(|_| "must not be before 1970".to_owned())
}

/// A build named outright, or an app whose newest build is meant.
#[derive(Debug, Clone)]
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// The help of a command and of everything below it, with the name of each snapshot.
    fn helps(command: &clap::Command, path: &str, found: &mut Vec<(String, String)>) {
        let command = command.clone().term_width(100).bin_name(path.replace('-', " "));
        found.push((path.to_owned(), command.clone().render_long_help().to_string()));
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            helps(below, &format!("{path}-{}", below.get_name()), found);
        }
    }

    fn all_helps() -> Vec<(String, String)> {
        let mut command = Cli::command().term_width(100);
        command.build();
        let mut found = Vec::new();
        helps(&command, "fabrique", &mut found);
        found
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_help_is_as_it_was_reviewed() {
        for (path, help) in all_helps() {
            insta::assert_snapshot!(format!("help-{path}"), help);
        }
    }

    #[test]
    fn every_help_teaches_with_an_example_and_says_how_it_exits() {
        for (path, help) in all_helps() {
            assert!(help.contains("Examples:\n  fabrique "), "{path} has no example");
            assert!(help.contains("Exit codes:"), "{path} says nothing of its exit codes");
        }
    }

    #[test]
    fn a_log_is_named_by_its_build_or_by_its_app() {
        let build = BuildOrApp::parse("citation-01kb8t3f7v2m5q9x4c6d8e0g1h");
        assert!(matches!(build, Ok(BuildOrApp::Build(_))), "{build:?}");
        assert!(matches!(BuildOrApp::parse("citation"), Ok(BuildOrApp::App(_))));
        assert!(BuildOrApp::parse("../x").is_err());
    }

    #[test]
    fn times_are_rfc_3339_and_durations_are_not_negative() {
        assert_eq!(parse_time("1970-01-01T00:00:01.5Z"), Ok(Timestamp(1_500)));
        assert!(parse_time("yesterday").is_err());
        assert_eq!(parse_duration("10m"), Ok(Duration::from_mins(10)));
        assert!(parse_duration("-10m").is_err());
    }
}
