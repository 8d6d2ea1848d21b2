//! The commands about the cluster that stays.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Subcommand;
use fabrique_bed::install::{Cache, Product, ensure as build};
use fabrique_bed::{Cluster, ClusterOptions, wait_until};

/// From the first namespace to the last pod, on a machine that is busy with other things.
const START: Duration = Duration::from_secs(180);

#[derive(Subcommand)]
pub(crate) enum ClusterAction {
    /// Start it in the background, unless it runs already, and return once it can be used
    Up,
    /// End it and remove all that it used
    Down,
    /// Run a command that shares it, and end it with the command; where one runs already, or none can, the command alone
    During {
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Be the process in the background
    #[command(hide = true)]
    Serve,
}

pub(crate) async fn act(action: ClusterAction) -> Result<()> {
    match action {
        ClusterAction::Up => up().await,
        ClusterAction::Down => {
            let text = if Cluster::end_served().await? { "the cluster has ended" } else { "no cluster runs" };
            writeln!(std::io::stdout(), "{text}")?;
            Ok(())
        }
        ClusterAction::During { command } => during(&command).await,
        ClusterAction::Serve => Cluster::start(options()).await?.serve().await,
    }
}

fn options() -> ClusterOptions {
    ClusterOptions { argocd: true, ..ClusterOptions::default() }
}

/// Ends as the command ends.
async fn during(command: &[String]) -> Result<()> {
    let (program, args) = command.split_first().context("no command")?;
    let cluster = match Cluster::attach()? {
        None if Cluster::possible().is_ok() => Some(Box::pin(Cluster::start(options())).await?),
        None | Some(_) => None,
    };
    let mut child = tokio::process::Command::new(program);
    let mut child =
        child.args(args).kill_on_drop(true).spawn().with_context(|| format!("running {program}"))?;
    let status = match cluster {
        None => child.wait().await?,
        // Dropped with the future, it ends.
        Some(cluster) => tokio::select! {
            status = child.wait() => status?,
            served = Box::pin(cluster.serve()) => {
                served?;
                bail!("the cluster was told to end before {program} did");
            }
        },
    };
    std::process::exit(status.code().unwrap_or(1));
}

async fn up() -> Result<()> {
    if let Err(obstacle) = Cluster::possible() {
        bail!("no cluster can run on this machine: {obstacle}");
    }
    let start = Instant::now();
    if Cluster::attach()?.is_none() {
        let cache = Cache::open()?;
        let wanted = |product: &Product| ![Product::NatsCli, Product::S3].contains(product);
        let products: Vec<Product> = Product::ALL.into_iter().filter(wanted).collect();
        tokio::task::spawn_blocking(move || build(&cache, &products)).await??;
        serve_in_background().await?;
    }
    let cluster = Cluster::attach()?.context("the cluster has just ended")?;
    let mut out = std::io::stdout();
    writeln!(out, "the cluster is ready, after {:.1} s", start.elapsed().as_secs_f32())?;
    writeln!(out, "export KUBECONFIG={}", cluster.kubeconfig().display())?;
    writeln!(
        out,
        "Gitea     {}  (administrator {})",
        cluster.gitea().base_url(),
        cluster.gitea().admin_user()
    )?;
    writeln!(out, "registry  {}  (registry:80 to pods)", cluster.registry().base_url())?;
    writeln!(out, "NATS      {}", cluster.nats().address())?;
    writeln!(out, "Argo CD   {}", cluster.argocd().base_url())?;
    Ok(())
}

async fn serve_in_background() -> Result<()> {
    let log = Cache::open()?.log("cluster");
    let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    // A session of its own: it must not end with the terminal.
    let mut command = Command::new("setsid");
    command.arg(std::env::current_exe()?).args(["cluster", "serve"]).stdin(Stdio::null());
    let mut server = command.stdout(output.try_clone()?).stderr(output).spawn()?;
    wait_until("the cluster to start", START, || {
        let ended = server.try_wait();
        async {
            match (Cluster::attach(), ended) {
                (Ok(Some(_)), _) => Some(Ok(())),
                (_, Ok(Some(status))) => {
                    let told = fs::read_to_string(&log).unwrap_or_default();
                    Some(Err(anyhow!("the cluster did not start ({status}):\n{told}")))
                }
                (Err(error), _) => Some(Err(error)),
                (Ok(None), _) => None,
            }
        }
    })
    .await?
}

/// Runs kubectl and ends as it ends.
pub(crate) async fn kubectl(args: &[String]) -> Result<()> {
    let cluster = Cluster::attach()?.context("no cluster runs: ./just cluster starts one")?;
    let mut command = cluster.kubectl_command();
    let status = command.args(args).stdin(Stdio::inherit()).status().await?;
    // What it says is said already, and leaving here would leave the folder too.
    drop(cluster);
    std::process::exit(status.code().unwrap_or(1));
}
