//! `bed`: builds the test bed's peers and shows where they are.

mod cli;

use std::io::Write;

use anyhow::Result;
use clap::{Parser, Subcommand};
use cli::ClusterAction;
use fabrique_bed::Bed;
use fabrique_bed::install::{Cache, Group, Product, ensure};

#[derive(Parser)]
#[command(about = "The real peers that fabrique is tested against")]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Build what the cache lacks, and install what that needs
    Build {
        /// Which peers; those on loopback unless asked
        #[arg(value_enum, default_values_t = [Group::Peers])]
        groups: Vec<Group>,
    },
    /// Show where each peer is kept
    Paths,
    /// A Kubernetes cluster that stays, for tests and people to share
    Cluster {
        #[command(subcommand)]
        action: ClusterAction,
    },
    /// Ask the cluster that stays, with `kubectl`
    Kubectl {
        /// What kubectl is told
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Start all peers and keep them until this process ends, for the bed's own tests
    #[command(hide = true)]
    Hold,
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut out = std::io::stdout();
    match Arguments::parse().command {
        Action::Build { groups } => {
            let cache = Cache::open()?;
            let wanted: Vec<_> =
                Product::ALL.into_iter().filter(|product| groups.contains(&product.group())).collect();
            let cached: Vec<_> = wanted.iter().map(|product| cache.has(*product)).collect();
            ensure(&cache, &wanted)?;
            for (product, cached) in wanted.iter().zip(cached) {
                writeln!(out, "{product}: {}", if cached { "cached" } else { "built" })?;
            }
        }
        Action::Paths => {
            let cache = Cache::open()?;
            for product in Product::ALL {
                let state = if cache.has(product) { "" } else { " (not built)" };
                writeln!(out, "{product}: {}{state}", cache.folder(product).display())?;
            }
        }
        Action::Cluster { action } => return cli::act(action).await,
        Action::Kubectl { args } => return cli::kubectl(&args).await,
        Action::Hold => {
            let bed = Bed::builder().all().start().await?;
            let peers =
                [bed.nats().peer(), bed.gitea().peer(), bed.registry().peer(), bed.buildkit(0).peer()];
            writeln!(out, "folder {}", bed.folder().display())?;
            for peer in peers {
                writeln!(out, "{} {}", peer.name(), peer.pid().unwrap_or_default())?;
            }
            out.flush()?;
            std::future::pending::<()>().await;
        }
    }
    Ok(())
}
