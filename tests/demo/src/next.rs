//! What to try once the story is told.

use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use fabrique_stage::{SampleApp, Stage};
use tokio::sync::mpsc;

use crate::failure::Stopped;
use crate::run::{SWEEP, Steps};
use crate::story::{APP, USER};

/// Says what to try, and stays until it is interrupted. `n` and Enter stop NATS, and start it again.
pub(crate) async fn stay(steps: &Steps, stage: &Stage, app: &SampleApp) -> Result<(), Stopped> {
    let screen = steps.screen;
    let suggestions = suggestions(stage, app.source.path());
    screen.text(&suggestions.map_err(|error| Stopped::failed("what next", error))?)?;
    let mut typed = typed_lines();
    loop {
        let line = tokio::select! {
            () = steps.interrupt.cancelled() => break,
            line = typed.recv() => line,
        };
        match line.as_deref().map(str::trim) {
            None => break,
            Some("n") => {
                let said = toggle_nats(stage).await.unwrap_or_else(|error| format!("{error:#}"));
                screen.text(&said)?;
            }
            Some(_) => screen.text("n and Enter stop or start NATS; Ctrl-C ends the demo")?,
        }
    }
    screen.text("\nstopping everything")?;
    Ok(())
}

async fn toggle_nats(stage: &Stage) -> Result<String> {
    let nats = stage.bed.nats().peer();
    if nats.is_running() {
        nats.stop().await?;
        return Ok("NATS is stopped: push now, then type n and Enter again".to_owned());
    }
    nats.start_again().await?;
    Ok(format!("NATS runs again: what was pushed meanwhile is found within {SWEEP}"))
}

/// What is typed, line by line, until the input ends. A thread of its own, which the end of the process need
/// not wait for.
fn typed_lines() -> mpsc::Receiver<String> {
    let (lines, typed) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lines() {
            let Ok(line) = line else { return };
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    typed
}

fn suggestions(stage: &Stage, clone: &Path) -> Result<String> {
    let folder = stage.binary().parent().context("the binary has no folder")?.display();
    let (config, clone) = (stage.config().display(), clone.display());
    let (gitea, (user, password)) = (stage.bed.gitea().base_url(), USER);
    let (inside, registry) =
        (gitea.replacen("://", &format!("://{user}:{password}@"), 1), stage.bed.registry().host());
    Ok(format!(
        "
Everything stays up until Ctrl-C. In another terminal:

  first         export FABRIQUE_CONFIG={config} PATH={folder}:$PATH
                export GITEA={inside} REGISTRY={registry}
                cd {clone}
                follow() {{ git push -q && fabrique timeline {APP} --revision $(git rev-parse HEAD) \\
                             --pushed-at $(date -u +%FT%T.%3NZ) --wait 1m; }}

  push again    cd {clone} && date > message && git commit -qam 'Another day' && follow
  ask           fabrique why {APP}     also: status, builds, logs {APP}, tail, doctor
  break it      cd {clone} && echo 'RUN false' >> Dockerfile && git commit -qam 'Break it' && follow
  mend it       cd {clone} && sed -i '$d' Dockerfile && date > message && git commit -qam 'Mend it' && follow
  lose a push   type n and Enter here to stop NATS, push, and n again: Gitea's webhook is refused and not
                repeated, but the reconciler (here every {SWEEP}) finds the push
  add an app    docs/add-an-app.md, as it stands there
  look around   {gitea}/atlas/{APP}
                {gitea}/cluster/apps/commits/branch/main
                as {user}, password {password}
"
    ))
}
