//! A branch of the forge, watched where it lies on disk.
//!
//! Polling Gitea would load what is measured and round the result to the poll's interval; the file of the
//! reference is there the moment the branch has moved, which is also the moment from which anybody can fetch it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fabrique_stage::Stage;

const POLL: Duration = Duration::from_millis(1);
/// The longest that any arm may take.
const MOVED: Duration = Duration::from_secs(60);

/// `main` of a repository.
pub(crate) struct Reference {
    file: PathBuf,
}

impl Reference {
    /// `main` of `cluster/<repo>`.
    pub(crate) fn of(stage: &Stage, repo: &str) -> Self {
        Self {
            file: stage.bed.folder().join(format!("gitea/repositories/cluster/{repo}.git/refs/heads/main")),
        }
    }

    /// What it points to.
    pub(crate) fn read(&self) -> Result<String> {
        let text = std::fs::read_to_string(&self.file);
        Ok(text.with_context(|| format!("reading {}", self.file.display()))?.trim_end().to_owned())
    }

    /// Waits until it points to something else than `before`, and returns when that was seen.
    pub(crate) async fn moved(&self, before: &str) -> Result<Instant> {
        let start = Instant::now();
        while start.elapsed() < MOVED {
            // A reference that is being renamed into place may be away for a moment.
            if self.read().is_ok_and(|now| now != before) {
                return Ok(Instant::now());
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("{} did not move in {MOVED:?}", self.file.display())
    }
}
