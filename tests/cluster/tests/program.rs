//! Programs that are tested as they are.

use std::path::PathBuf;
use std::process::Stdio;

use fabrique_bed::install::{self, Cache, Product};
use fabrique_cluster_tests::manifests;
use tokio::sync::OnceCell;

/// The binary. A run of all tests has built it for its own; otherwise it is built here, once.
pub(crate) async fn fabrique() -> PathBuf {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    BUILT.get_or_init(build).await.clone()
}

async fn build() -> PathBuf {
    // target/debug/deps/cluster-… is this program.
    let this = std::env::current_exe().unwrap();
    let binary = this.ancestors().nth(2).unwrap().join("fabrique");
    if !binary.exists() {
        let mut command = tokio::process::Command::new(env!("CARGO"));
        command.args(["build", "--locked", "--quiet", "--package", "fabrique"]);
        let status = command.current_dir(manifests::repository()).stdin(Stdio::null()).status().await;
        assert!(status.unwrap().success(), "fabrique does not build");
    }
    binary
}

/// The bus.
pub(crate) fn nats_server() -> PathBuf {
    let cache = Cache::open().unwrap();
    install::ensure(&cache, &[Product::Nats]).unwrap();
    cache.folder(Product::Nats).join("nats-server")
}
