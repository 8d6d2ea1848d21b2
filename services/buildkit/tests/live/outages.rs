//! Builds whose peers are away.

use std::sync::Arc;

use fabrique_bed::Bed;
use fabrique_buildkit::{BuildkitBuilder, BuildkitConfig, Version};
use fabrique_core::failure::FailureKind;
use fabrique_ports::builder::Builder;
use tokio_util::sync::CancellationToken;

use crate::support::{Recorder, Source, builder, config, daemon, failed, pushed};

#[tokio::test]
async fn peers_that_are_away_are_infrastructure_and_the_same_build_passes_later() {
    let bed = Bed::builder().gitea().registry().buildkit(1).start().await.unwrap();
    let source = Source::new(&bed).await;
    let builder = builder(&bed);
    let daemon = bed.buildkit(0);
    let based = source.dockerfile(&format!("FROM {}\nRUN true\n", bed.registry().busybox())).await;
    let plain = source.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;

    bed.registry().peer().stop().await.unwrap();
    for request in [&based, &plain] {
        let (failure, _) = failed(&builder, daemon, request).await;
        assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    }
    // Without the registry's own word the daemon's decides.
    let alone = BuildkitBuilder::new(config(&bed)).unwrap();
    let (failure, _) = failed(&alone, daemon, &based).await;
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    bed.registry().peer().start_again().await.unwrap();

    bed.gitea().peer().stop().await.unwrap();
    let unseen = source.request(&"ab".repeat(20));
    let (failure, _) = failed(&builder, daemon, &unseen).await;
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    bed.gitea().peer().start_again().await.unwrap();

    pushed(&builder, daemon, &based).await;
    pushed(&builder, daemon, &plain).await;
}

#[tokio::test]
async fn a_base_image_whose_layers_are_gone_is_infrastructure() {
    let bed = Bed::builder().gitea().registry().buildkit(1).start().await.unwrap();
    let source = Source::new(&bed).await;
    let request = source.dockerfile(&format!("FROM {}\nRUN true\n", bed.registry().busybox())).await;
    let blobs = bed.folder().join("registry/store/docker/registry/v2/blobs/sha256");
    let files = walk(&blobs);
    let layer = files.iter().max_by_key(|file| file.metadata().unwrap().len()).unwrap();
    std::fs::remove_file(layer).unwrap();
    let (failure, _) = failed(&builder(&bed), bed.buildkit(0), &request).await;
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
}

#[tokio::test]
async fn nothing_is_built_on_a_daemon_below_the_floor() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let request = source.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;
    let old = BuildkitConfig { floor: Version::parse("99.0").unwrap(), ..config(bed) };
    let old = BuildkitBuilder::new(old).unwrap();
    let recorder = Arc::new(Recorder::default());
    let daemon = daemon(bed.buildkit(0));
    let refused = old.build(&daemon, &request, recorder.clone(), CancellationToken::new()).await.unwrap_err();
    assert!(!refused.transient(), "{refused}");
    assert!(refused.to_string().contains("the floor is 99.0.0"), "{refused}");
    assert_eq!(recorder.all(), []);
    pushed(&builder(bed), bed.buildkit(0), &request).await;
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
