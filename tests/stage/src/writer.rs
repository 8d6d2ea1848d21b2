//! Writers of `cluster/apps` that are faster than any forge.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::stage::Stage;

/// How long one writer may lose races. Only ever a bound.
const PATIENCE: Duration = Duration::from_secs(120);

/// Adds one file on top of the branch and moves the branch there if nobody else moved it meanwhile; otherwise all of
/// it again.
const WRITE: &str = r#"
export GIT_INDEX_FILE="$INDEX"
blob=$(echo "$NOTE" | git hash-object -w --stdin)
while true; do
    base=$(git rev-parse refs/heads/main)
    git read-tree "$base"
    git update-index --add --cacheinfo "100644,$blob,$NOTE"
    commit=$(git commit-tree "$(git write-tree)" -p "$base" -m "Add $NOTE")
    git update-ref refs/heads/main "$commit" "$base" 2>/dev/null && exit 0
done
"#;

impl Stage {
    /// Adds a file to `cluster/apps` by compare-and-swap in the forge's own repository: to fabrique it is another
    /// writer who won a race, without the second that Gitea takes for each.
    ///
    /// # Errors
    /// When git fails, or the writer loses for two minutes.
    pub async fn write_note(&self, note: &str) -> Result<()> {
        let repository = self.bed.folder().join("gitea/repositories/cluster/apps.git");
        let mut command = Command::new("sh");
        command.args(["-ec", WRITE]).env("GIT_DIR", repository).env("NOTE", note);
        command.env("INDEX", self.bed.folder().join(format!("note-{}.index", self.number())));
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        for role in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{role}_NAME"), "Ada")
                .env(format!("GIT_{role}_EMAIL"), "ada@example.org");
        }
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(PATIENCE, output)
            .await
            .with_context(|| format!("{note} lost the race for two minutes"))??;
        ensure!(output.status.success(), "{note}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}
