//! Programs that are tested as they are.

use std::path::PathBuf;

use fabrique_bed::install::{self, Cache, Product};
use fabrique_cluster_tests::image;

/// The binary.
pub(crate) async fn fabrique() -> PathBuf {
    image::binary().await.unwrap()
}

/// The bus.
pub(crate) fn nats_server() -> PathBuf {
    let cache = Cache::open().unwrap();
    install::ensure(&cache, &[Product::Nats]).unwrap();
    cache.folder(Product::Nats).join("nats-server")
}

/// The forge: its program and what it shows.
pub(crate) fn gitea() -> PathBuf {
    let cache = Cache::open().unwrap();
    install::ensure(&cache, &[Product::Gitea]).unwrap();
    cache.folder(Product::Gitea)
}
