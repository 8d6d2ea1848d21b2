//! A git hook that holds up a push inside the forge.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use fabrique_bed::wait_until;

use crate::stage::Stage;

/// How long a push may take to come to a trap.
const SPRUNG: Duration = Duration::from_secs(60);

/// Where in a push it is held up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before the branch moves: `pre-receive`.
    BeforeTheUpdate,
    /// After the branch moved, while the client still waits for the answer: `post-receive`.
    AfterTheUpdate,
}

/// A trap that holds up the first push that comes, until it is opened or the forge is killed; later pushes
/// pass.
#[derive(Debug)]
pub struct Trap {
    sprung: PathBuf,
    open: PathBuf,
    script: PathBuf,
}

impl Stage {
    /// Sets a trap for the next push to `cluster/apps`.
    ///
    /// # Errors
    /// When the forge's folder is not as expected.
    pub fn trap(&self, moment: Moment) -> Result<Trap> {
        let hook = match moment {
            Moment::BeforeTheUpdate => "pre-receive",
            Moment::AfterTheUpdate => "post-receive",
        };
        let folder = self.bed.folder().join("gitea/repositories/cluster/apps.git/hooks");
        let files = self.bed.folder().join(format!("trap-{hook}-{}", self.number()));
        let (sprung, open) = (files.with_extension("sprung"), files.with_extension("open"));
        let script = folder.join(format!("{hook}.d/zz-trap"));
        // Gitea runs every executable of the folder, its own first. The bound is for a test that failed.
        let text = format!(
            "#!/bin/sh\nmkdir '{}' 2>/dev/null || exit 0\nn=0\nwhile [ ! -e '{}' ] && [ $n -lt 1200 ]; do n=$((n + 1)); sleep 0.1; done\nexit 0\n",
            sprung.display(),
            open.display(),
        );
        fs::write(&script, text).with_context(|| format!("writing {}", script.display()))?;
        fs::set_permissions(&script, Permissions::from_mode(0o755))?;
        Ok(Trap { sprung, open, script })
    }
}

impl Trap {
    /// Waits until a push is held up.
    ///
    /// # Errors
    /// When none is in a minute.
    pub async fn sprung(&self) -> Result<()> {
        wait_until("a push to come to the trap", SPRUNG, || async { self.sprung.exists().then_some(()) })
            .await
    }

    /// Lets the push go on.
    ///
    /// # Errors
    /// When the marker cannot be written.
    pub fn open(&self) -> Result<()> {
        fs::write(&self.open, "")?;
        fs::remove_file(&self.script).context("removing the trap")
    }
}
