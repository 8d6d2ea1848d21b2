//! A build daemon that is too old.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result, ensure};
use fabrique_bed::{Peer, Program, free_port};

use crate::stage::Stage;

/// What the bed's daemon calls itself, and a version below every floor of the same length.
const VERSIONS: (&str, &str) = ("v0.34.2", "v0.31.1");

/// The bed's own daemon with an older version written over its own, so that it is real in everything but what it
/// answers to the question how old it is. It runs as root without a sandbox, and builds nothing.
pub struct Outdated {
    /// The process.
    pub peer: Peer,
    /// `tcp://127.0.0.1:PORT`.
    pub address: String,
    /// What it calls itself.
    pub version: &'static str,
}

impl Stage {
    /// Starts a daemon that calls itself older than what is supported.
    ///
    /// # Errors
    /// When the bed's daemon does not carry the version that is replaced, or does not start.
    pub async fn outdated_builder(&self) -> Result<Outdated> {
        let folder = self.bed.folder().join(format!("outdated-{}", self.number()));
        std::fs::create_dir_all(&folder)?;
        let executable = folder.join("buildkitd");
        let (newer, older) = VERSIONS;
        let real = self.bed.folder().join("buildkit-0/bin/buildkitd");
        let mut binary = std::fs::read(&real).with_context(|| format!("reading {}", real.display()))?;
        let replaced = replace(&mut binary, newer.as_bytes(), older.as_bytes());
        ensure!(replaced > 0, "{} does not call itself {newer}", real.display());
        std::fs::write(&executable, binary)?;
        std::fs::set_permissions(&executable, std::fs::Permissions::from_mode(0o755))?;
        let (port, debug) = (free_port()?, free_port()?);
        let address = format!("tcp://127.0.0.1:{port}");
        let root = folder.join("root").display().to_string();
        let debug = format!("127.0.0.1:{debug}");
        let args = ["--root", &root, "--addr", &address, "--debugaddr", &debug];
        let args = args.into_iter().chain(["--oci-worker-snapshotter", "native", "--oci-worker-net", "host"]);
        let program = Program {
            name: "buildkit-outdated".to_owned(),
            executable,
            args: args.map(str::to_owned).collect(),
            env: Vec::new(),
            folder,
            ready_url: format!("http://{debug}/debug/vars"),
        };
        Ok(Outdated { peer: Peer::run(program).await?, address, version: older })
    }
}

/// Writes `to` over every `from` of the same length, and counts them.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) -> usize {
    let found: Vec<usize> =
        bytes.windows(from.len()).enumerate().filter(|(_, w)| *w == from).map(|(at, _)| at).collect();
    for at in &found {
        bytes[*at..*at + to.len()].copy_from_slice(to);
    }
    found.len()
}
