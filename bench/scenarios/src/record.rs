//! `bench/RESULTS.md`: one row for each run that was asked to be recorded.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::install::Product;
use fabrique_cluster_tests::manifests;
use fabrique_kubernetes::config::Isolation;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// The switch: a run with it in its environment is recorded.
pub const SWITCH: &str = "FABRIQUE_RECORD";

/// How a gate ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its number.
    pub number: &'static str,
    /// How long it took; nothing when it was not passed.
    pub took: Option<Duration>,
}

/// Appends a row about a run in this isolation.
///
/// # Errors
/// When `date` or `git` fails, or the file cannot be written.
pub async fn append(isolation: Isolation, lines: &[Line]) -> Result<()> {
    let day = command(&["date", "--utc", "+%Y-%m-%d"]).await?;
    let commit = command(&["git", "rev-parse", "--short=12", "HEAD"]).await?;
    let row = row(&day, &commit, &versions(), isolation, lines);
    let mut file =
        tokio::fs::OpenOptions::new().append(true).open(path()).await.context("bench/RESULTS.md")?;
    file.write_all(row.as_bytes()).await?;
    Ok(file.flush().await?)
}

fn path() -> PathBuf {
    manifests::repository().join("bench/RESULTS.md")
}

/// A row of the table.
#[must_use]
pub fn row(day: &str, commit: &str, versions: &str, isolation: Isolation, lines: &[Line]) -> String {
    let durations: Vec<String> = lines
        .iter()
        .map(|line| match line.took {
            Some(took) => format!("{}: {:.0} s", line.number, took.as_secs_f64()),
            None => format!("{}: not passed", line.number),
        })
        .collect();
    format!("| {day} | {commit} | {versions} | {} | {} |\n", isolation.as_str(), durations.join(", "))
}

/// Those of the bed, which runs exactly what it has pinned: servers that are built from source do not all know their own.
fn versions() -> String {
    let shown = [
        ("Kubernetes", Product::Kubernetes),
        ("containerd", Product::Containerd),
        ("runc", Product::Runc),
        ("kube-router", Product::KubeRouter),
        ("Argo CD", Product::Argocd),
        ("Gitea", Product::Gitea),
        ("NATS", Product::Nats),
        ("registry", Product::Registry),
        ("BuildKit", Product::Buildkit),
    ];
    let each = shown.map(|(name, product)| format!("{name} {}", product.version().trim_start_matches('v')));
    each.join(", ")
}

async fn command(words: &[&str]) -> Result<String> {
    let [program, args @ ..] = words else { anyhow::bail!("no command") };
    let mut command = Command::new(program);
    command.args(args).current_dir(manifests::repository()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(20), command.output()).await??;
    ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_tells_what_was_not_passed() {
        let lines = [
            Line { number: "1", took: Some(Duration::from_millis(12_400)) },
            Line { number: "2", took: None },
        ];
        let row = row("2026-11-29", "abc", "Kubernetes 1.36.3", Isolation::Rootless, &lines);
        assert_eq!(row, "| 2026-11-29 | abc | Kubernetes 1.36.3 | rootless | 1: 12 s, 2: not passed |\n");
    }
}
