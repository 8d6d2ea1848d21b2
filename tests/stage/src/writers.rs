//! Writers of `cluster/apps` who push to the forge like everybody else.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fabrique_bed::GitRepo;
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::stage::Stage;

/// How long one writer may lose races. Only ever a bound.
const PATIENCE: Duration = Duration::from_mins(5);
/// How long one attempt may take at a forge that is busy with others.
const ATTEMPT: Duration = Duration::from_mins(1);
/// How many writers are at the forge at once. Of those one wins and the others have spent what a push costs the forge
/// for nothing: more would keep a small machine busy with nothing but lost races.
const AT_ONCE: usize = 2;

/// Adds one file on top of the branch as the forge has it and pushes that, unless somebody else was faster.
const WRITE: &str = r#"
git fetch --quiet --no-write-fetch-head origin "+refs/heads/main:$SEEN"
base=$(git rev-parse "$SEEN")
blob=$(echo "$NOTE" | git hash-object -w --stdin)
git read-tree "$base"
git update-index --add --cacheinfo "100644,$blob,$NOTE"
commit=$(git commit-tree "$(git write-tree)" -p "$base" -m "Add $NOTE")
git push --quiet origin "$commit:refs/heads/main"
"#;

/// People who write to `cluster/apps` at the same time, each a file of their own, over the forge's HTTP.
pub struct Writers {
    /// All of them commit from here, each with an index and a reference of their own.
    clone: GitRepo,
    turns: Semaphore,
}

impl Stage {
    /// Writers who have not written anything yet.
    ///
    /// # Errors
    /// When `cluster/apps` cannot be cloned.
    pub async fn writers(&self) -> Result<Writers> {
        let clone = self.clone_apps().await?;
        // Tidying up by itself is for one at a time.
        for key in ["gc.auto", "maintenance.auto"] {
            clone.git(&["config", key, "0"]).await?;
        }
        Ok(Writers { clone, turns: Semaphore::new(AT_ONCE) })
    }
}

impl Writers {
    /// Adds a file with a name of its own, again until the forge takes it. Returns how many pushes that took.
    ///
    /// # Errors
    /// With git's words, when the forge has not taken it in five minutes.
    pub async fn write(&self, note: &str) -> Result<usize> {
        let start = Instant::now();
        let mut pushes = 0;
        loop {
            // Turns are taken in order: whoever has lost a race lets the others try first.
            let turn = self.turns.acquire().await?;
            pushes += 1;
            let output = tokio::time::timeout(ATTEMPT, self.attempt(note).output());
            let output = output.await.with_context(|| format!("a push of {note} hangs"))??;
            drop(turn);
            if output.status.success() {
                return Ok(pushes);
            }
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(start.elapsed() < PATIENCE, "{note} was not taken in {pushes} pushes: {said}");
        }
    }

    fn attempt(&self, note: &str) -> Command {
        let mut command = Command::new("sh");
        let name = note.replace('/', "-");
        command.args(["-ec", WRITE]).current_dir(self.clone.path()).env("NOTE", note);
        command.env("SEEN", format!("refs/seen/{name}"));
        command.env("GIT_INDEX_FILE", self.clone.path().join(format!(".git/index-{name}")));
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.env("GIT_TERMINAL_PROMPT", "0");
        for role in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{role}_NAME"), "Ada")
                .env(format!("GIT_{role}_EMAIL"), "ada@example.org");
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}
