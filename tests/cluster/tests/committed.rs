//! What can be said of the manifests without a cluster.

use fabrique_cluster_tests::{generated, manifests};

#[test]
fn generated_files_are_as_their_sources_say() {
    let update = std::env::var_os("UPDATE_MANIFESTS").is_some();
    let mut stale = Vec::new();
    for file in generated::files().unwrap() {
        let path = manifests::root().join(file.path);
        if std::fs::read_to_string(&path).is_ok_and(|committed| committed == file.content) {
            continue;
        }
        if update {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &file.content).unwrap();
        } else {
            stale.push(file.path);
        }
    }
    assert!(stale.is_empty(), "write them anew with UPDATE_MANIFESTS=1, and review the change: {stale:#?}");
}
