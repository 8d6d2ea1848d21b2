//! An app is made, pushed to, and pushed to again.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use fabrique_bed::wait_until;
use fabrique_stage::{AppOptions, SampleApp, Stage};
use jiff::Timestamp;
use serde_json::json;

use crate::dependent;
use crate::failure::Stopped;
use crate::run::Steps;

/// The sample app, and its repository in `atlas`.
pub(crate) const APP: &str = "citation";
/// Somebody to look around as. A secret of servers that listen on loopback and end with the demo.
pub(crate) const USER: (&str, &str) = ("ada", "lovelace");

/// How long `fabrique timeline` waits for the end of a push.
const PATIENCE: &str = "50s";
/// How long the overlay's commit may take after the image's.
const OVERLAY: Duration = Duration::from_secs(30);

/// A repository that is there for whoever follows docs/add-an-app.md, with nothing in it.
const GUIDE: &str = "hello";

/// A push that reached the forge.
pub(crate) struct Push {
    pub(crate) revision: String,
    /// When `git push` returned.
    pub(crate) at: Timestamp,
}

impl Push {
    /// A push that has just ended.
    pub(crate) fn of(revision: String) -> Self {
        Self { revision, at: Timestamp::now() }
    }
}

/// Tells it all, and returns the app for more.
pub(crate) async fn tell(steps: &Steps, stage: &Stage, base: Option<&str>) -> Result<SampleApp, Stopped> {
    let screen = steps.screen;
    let app = steps.step("app", create(stage, base), |_| {
        format!("atlas/{APP}, registered as apps/{APP}/app.yaml in cluster/apps")
    });
    let app = app.await?;
    let hooks = stage.command(&["hooks", "ensure"]);
    steps
        .step("webhook", hooks, |_| "`fabrique hooks ensure`: on every registered repository".to_owned())
        .await?;
    let pushed =
        steps.step("push", push(&app, "Say hello"), |push| described(APP, push, "Say hello")).await?;

    screen.heading(&format!("What becomes of it: fabrique timeline {APP}"))?;
    let told = steps.quietly("first push", timeline(stage, APP, &pushed)).await?;
    screen.text(&told.rows)?;
    screen.result(&told.result("first push")?)?;

    screen
        .heading("What changed on cluster/apps: one commit for the image, one for the overlay around it")?;
    let commits = first_commits(stage, &pushed.revision, screen.has_colour());
    screen.text(&steps.quietly("commits", commits).await?)?;

    screen.heading("Once more, with a warm cache")?;
    let greeting = "Say hello again";
    let again = steps.step("push", push(&app, greeting), |push| described(APP, push, greeting)).await?;
    let told = steps.quietly("second push", timeline(stage, APP, &again)).await?;
    screen.text("")?;
    screen.result(&told.result("second push")?)?;
    screen.text("")?;
    let commit = image_commit(stage, &again.revision, screen.has_colour());
    screen.text(&steps.quietly("commit", commit).await?)?;

    dependent::tell(steps, stage, &app).await?;
    Ok(app)
}

pub(crate) fn described(app: &str, push: &Push, message: &str) -> String {
    format!("atlas/{app} {} {message:?}", short(&push.revision))
}

pub(crate) fn short(revision: &str) -> &str {
    revision.get(..12).unwrap_or(revision)
}

/// The repository with a Dockerfile and an overlay, the registration, and somebody who may see both.
async fn create(stage: &Stage, base: Option<&str>) -> Result<SampleApp> {
    let options = AppOptions { hook: false, ..AppOptions::named(APP) };
    let app = SampleApp::over(stage, options, stage.create_source("atlas", APP, false).await?);
    app.write_source("first").await?;
    dependent::declare(&app, true, &[]).await?;
    dependent::register(stage, &app, &[("contract.yaml", dependent::CONTRACT)]).await?;
    if let Some(base) = base {
        let dockerfile = app.source.read("Dockerfile").await?;
        let (_, steps) = dockerfile.split_once('\n').context("a Dockerfile of one line")?;
        let host = stage.bed.registry().host();
        app.source.write("Dockerfile", format!("FROM {host}/{base}\n{steps}")).await?;
    }
    // For commits that people make in the clone by hand.
    app.source.git(&["config", "user.name", "Ada"]).await?;
    app.source.git(&["config", "user.email", "ada@example.org"]).await?;
    let (user, password) = USER;
    let body = json!({
        "username": user, "email": "ada@example.org", "password": password, "must_change_password": false,
    });
    let gitea = stage.bed.gitea();
    gitea.api("POST", "/admin/users", Some(body)).await?;
    stage.create_source("atlas", GUIDE, false).await?;
    for (org, repo) in [("atlas", APP), ("atlas", GUIDE), ("cluster", "apps")] {
        invite(stage, org, repo).await?;
    }
    Ok(app)
}

/// Lets whoever looks around into a repository.
pub(crate) async fn invite(stage: &Stage, org: &str, repo: &str) -> Result<()> {
    stage.bed.gitea().add_collaborator(org, repo, USER.0, "admin").await
}

pub(crate) async fn push(app: &SampleApp, message: &str) -> Result<Push> {
    Ok(Push::of(app.push(message).await?))
}

/// What `fabrique timeline` says about a push that came to its end.
pub(crate) struct Told {
    rows: String,
    /// The last line.
    pub(crate) end: String,
    /// Whether that is a commit.
    pub(crate) committed: bool,
}

impl Told {
    /// The last line, or the failure that it tells of.
    fn result(&self, step: &'static str) -> Result<String, Stopped> {
        if self.committed {
            Ok(self.end.clone())
        } else {
            Err(Stopped::failed(step, anyhow!("{}", self.end)))
        }
    }
}

pub(crate) async fn timeline(stage: &Stage, app: &str, push: &Push) -> Result<Told> {
    let at = push.at.to_string();
    let follow = ["timeline", app, "--revision", &push.revision, "--pushed-at", &at, "--wait", PATIENCE];
    let (code, stdout, stderr) = stage.try_command(&follow).await?;
    match (code, stdout.trim_end().rsplit_once('\n')) {
        (0 | 1, Some((rows, end))) => {
            Ok(Told { rows: rows.to_owned(), end: end.to_owned(), committed: code == 0 })
        }
        _ => bail!("fabrique timeline ends with {code}\n{stdout}{stderr}"),
    }
}

/// The commits that the first push led to on `cluster/apps`, shown as git shows them.
async fn first_commits(stage: &Stage, revision: &str, colour: bool) -> Result<String> {
    wait_until("the commit of the overlay", OVERLAY, || async {
        let composition = stage.composition(APP).await.ok().flatten()?;
        (composition.infra.as_deref() == Some(revision)).then_some(())
    })
    .await?;
    commits(stage, &["--reverse"], colour).await
}

/// The commit that put the image of `revision` on `cluster/apps`.
async fn image_commit(stage: &Stage, revision: &str, colour: bool) -> Result<String> {
    let trailer = format!("--grep=^Source-Revision: {revision}$");
    commits(stage, &["--all-match", "--grep=^Channel: image$", &trailer], colour).await
}

async fn commits(stage: &Stage, which: &[&str], colour: bool) -> Result<String> {
    let apps = stage.clone_apps().await?;
    let mut show = vec!["log", "--patch", "--unified=0", "--author=^fabrique <"];
    show.push("--format=%n%C(yellow)commit %h%C(reset) %s%n%n%b");
    show.push(if colour { "--color=always" } else { "--color=never" });
    show.extend(which);
    let shown = apps.git(&show).await?;
    ensure!(!shown.is_empty(), "there is no such commit of fabrique on cluster/apps");
    Ok(essence(&shown))
}

/// A patch without what only machines read: blob ids and modes.
fn essence(patch: &str) -> String {
    const MACHINES: [&str; 3] = ["diff --git ", "index ", "new file mode "];
    let lines = patch.lines().filter(|line| {
        // Git shows these in bold, if it shows colours.
        let plain = line.trim_start_matches("\x1b[1m");
        !MACHINES.iter().any(|prefix| plain.starts_with(prefix))
    });
    // After a body git leaves one empty line more than anybody needs.
    lines.collect::<Vec<_>>().join("\n").replace("\n\n\n", "\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_keeps_its_file_names_and_changes_only() {
        let patch = "commit 844da55 Deploy\n\nApp: citation\n\n\ndiff --git a/x b/x\nnew file mode 100644\n\x1b[1mindex 000..b12\x1b[m\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-index \n+index 1";
        let shown =
            "commit 844da55 Deploy\n\nApp: citation\n\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-index \n+index 1";
        assert_eq!(essence(patch), shown);
    }
}
