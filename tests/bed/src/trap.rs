//! Git hooks that hold up or refuse a push inside the forge.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::gitea::Gitea;
use crate::template::secret;
use crate::wait::wait_until;

/// How long a push may take to come to a trap, behind a build on a daemon that is made for it.
const SPRUNG: Duration = Duration::from_mins(2);

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

impl Gitea {
    /// Sets a trap for the next push to a repository.
    ///
    /// # Errors
    /// When the forge's folder is not as expected.
    pub fn trap(&self, org: &str, repo: &str, moment: Moment) -> Result<Trap> {
        let hook = match moment {
            Moment::BeforeTheUpdate => "pre-receive",
            Moment::AfterTheUpdate => "post-receive",
        };
        let folder = self.folder();
        // A name of its own: a push that one trap holds or has let go may come to the next.
        let name = format!("trap-{}", secret());
        let files = folder.join(&name);
        let (sprung, open) = (files.with_extension("sprung"), files.with_extension("open"));
        // The bound is for a test that failed.
        let text = format!(
            "#!/bin/sh\nmkdir '{}' 2>/dev/null || exit 0\nn=0\nwhile [ ! -e '{}' ] && [ $n -lt 1200 ]; do n=$((n + 1)); sleep 0.1; done\nexit 0\n",
            sprung.display(),
            open.display(),
        );
        let script = self.add_hook(org, repo, hook, &name, &text)?;
        Ok(Trap { sprung, open, script })
    }

    /// Refuses every push to a repository that changes something at or below `path`, with these words, until the veto is
    /// dropped.
    ///
    /// # Errors
    /// When the forge's folder is not as expected.
    pub fn veto(&self, org: &str, repo: &str, path: &str, words: &str) -> Result<Veto> {
        let text = format!(
            "#!/bin/sh\nwhile read -r old new ref; do\nif git diff --name-only \"$old\" \"$new\" -- '{path}' | grep -q .; then echo '{words}' >&2; exit 1; fi\ndone\nexit 0\n"
        );
        let script = self.add_hook(org, repo, "pre-receive", &format!("veto-{}", secret()), &text)?;
        Ok(Veto { script })
    }

    /// Gitea runs every executable of the folder in the order of their names, its own first.
    fn add_hook(&self, org: &str, repo: &str, hook: &str, name: &str, text: &str) -> Result<PathBuf> {
        let folder = self.folder().join(format!("repositories/{org}/{repo}.git/hooks/{hook}.d"));
        // Made elsewhere: a push that comes meanwhile must not find half of it.
        let (made, script) = (self.folder().join(name), folder.join(format!("zz-{name}")));
        fs::write(&made, text).with_context(|| format!("writing {}", made.display()))?;
        fs::set_permissions(&made, Permissions::from_mode(0o755))?;
        fs::rename(&made, &script).with_context(|| format!("writing {}", script.display()))?;
        Ok(script)
    }
}

/// A refusal that lasts until it is dropped.
#[derive(Debug)]
pub struct Veto {
    script: PathBuf,
}

impl Drop for Veto {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.script);
    }
}

impl Trap {
    /// Waits until a push is held up.
    ///
    /// # Errors
    /// When none is in two minutes.
    pub async fn sprung(&self) -> Result<()> {
        wait_until("a push to come to the trap", SPRUNG, || async { self.sprung.exists().then_some(()) })
            .await
    }

    /// Lets the push go on.
    ///
    /// # Errors
    /// When the marker cannot be written.
    pub fn open(self) -> Result<()> {
        fs::write(&self.open, "").context("opening the trap")
    }
}

/// A forge that others use too is left without it, however the test ends.
impl Drop for Trap {
    fn drop(&mut self) {
        let _ = fs::write(&self.open, "");
        let _ = fs::remove_file(&self.script);
    }
}
