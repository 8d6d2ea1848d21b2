//! Brings fabrique into the cluster that stays, with an app to push to: what `./just cluster` does last.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use fabrique_bed::Cluster;
use fabrique_scenarios::{Changes, Installation, Isolation, SampleApp};

#[tokio::main]
async fn main() -> ExitCode {
    match Box::pin(install()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to be told when this fails too.
            let _ = writeln!(std::io::stderr(), "install: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn install() -> Result<()> {
    let start = Instant::now();
    let cluster = Cluster::attach()?.context("no cluster runs: ./just cluster starts one")?;
    // To the end of this process, which leaves the cluster as it is.
    let cluster: &'static Cluster = Box::leak(Box::new(cluster));
    let beside = std::env::current_exe()?.with_file_name("fabrique");
    let changes = Changes { binary: Some(beside), ..Changes::default() };
    let installation = Installation::install_with(cluster, Isolation::Userns, changes).await?;
    tell(&format!("fabrique is installed, after {:.1} s", start.elapsed().as_secs_f32()))?;

    let name = format!("hello-{:04x}", rand::random::<u16>());
    let (app, revision) = SampleApp::create(&installation, &name).await?;
    let composition = installation.deployed(&app, &revision).await?;
    let clone = cluster.gitea().clone_url("atlas", &name);
    tell(&format!(
        "{name} is pushed, built and deployed as {}, after {:.1} s\npush again from a clone of {clone}",
        composition.digest,
        start.elapsed().as_secs_f32(),
    ))
}

fn tell(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").context("printing")
}
