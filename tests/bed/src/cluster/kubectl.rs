//! The command line that the bed itself, tests and people ask the API server with.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::parts::subfolder;
use super::pki::Pki;
use crate::install::{Cache, Product};
use crate::peer::Ready;

const LONGEST: Duration = Duration::from_secs(120);

/// `kubectl` as one user.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    pub program: PathBuf,
    pub kubeconfig: PathBuf,
    /// Where it keeps what it learnt of the API.
    pub home: PathBuf,
}

impl Kubectl {
    /// As the administrator, with a home below `folder`.
    pub(crate) fn administrator(cache: &Cache, pki: &Pki, folder: &Path) -> Result<Self> {
        let program = cache.folder(Product::Kubectl).join("kubectl");
        Ok(Self { program, kubeconfig: pki.kubeconfig("admin"), home: subfolder(folder, "home")? })
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("HOME", &self.home).env("PATH", crate::install::search_path());
        // It ends before a collection of garbage would pay.
        command.env("GOGC", "off");
        command.env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Ready once the API server says that it is.
    pub(crate) fn ready(&self) -> Ready {
        let flag = format!("--kubeconfig={}", self.kubeconfig.to_string_lossy());
        let cache = format!("--cache-dir={}", self.home.to_string_lossy());
        Ready::Command(self.program.clone(), vec![flag, cache, "get".into(), "--raw=/readyz".into()])
    }

    /// Runs it to its end, with `input` on its standard input, and returns what it printed.
    pub(crate) async fn run(&self, args: &[&str], input: &str) -> Result<String> {
        let mut child = self
            .command()
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            // It may end without having read all, and then says why.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        let output = tokio::time::timeout(LONGEST, child.wait_with_output())
            .await
            .with_context(|| format!("kubectl {} did not end", args.join(" ")))??;
        let told = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {} failed: {}", args.join(" "), told.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Makes what a YAML text describes, and changes what is there already.
    pub(crate) async fn apply(&self, yaml: &str) -> Result<()> {
        self.run(&["apply", "--server-side", "--force-conflicts", "-f", "-"], yaml).await.map(drop)
    }
}
