//! Steps that outlive their daemon in the registry.

use fabrique_bed::Bed;
use fabrique_buildkit::{BuildkitBuilder, BuildkitConfig};
use fabrique_core::app::RegistryCache;
use fabrique_core::id::Digest;
use fabrique_ports::builder::Progress;

use crate::support::{Recorder, Source, config, pushed};

fn exported(recorder: &Recorder) -> Option<Digest> {
    recorder.all().into_iter().find_map(|progress| match progress {
        Progress::CacheExported { digest } => Some(digest),
        _ => None,
    })
}

fn cached(recorder: &Recorder, step: &str) -> bool {
    recorder.all().iter().any(|report| {
        matches!(report, Progress::StepEnded { name, cached: true, error: None, .. } if name.contains(step))
    })
}

#[tokio::test]
async fn a_cold_daemon_takes_the_steps_of_all_stages_from_the_recorded_cache() {
    let bed = Bed::builder().gitea().registry().buildkit(2).start().await.unwrap();
    let source = Source::new(&bed).await;
    let base = bed.registry().busybox();
    // The first stage is not in the image: only `mode=max` keeps it.
    let dockerfile = format!(
        "FROM {base} AS make\nRUN head -c 8 /dev/urandom > /made\nFROM {base}\nRUN date > /when\nCOPY --from=make /made \
         /made\nCOPY Dockerfile /\n"
    );
    let mut request = source.dockerfile(&dockerfile).await;
    let builder =
        BuildkitBuilder::new(BuildkitConfig { cache: RegistryCache::Both, ..config(&bed) }).unwrap();
    let (_, recorder) = pushed(&builder, bed.buildkit(0), &request).await;
    let cache = exported(&recorder).unwrap_or_else(|| panic!("{}", recorder.text()));

    // The next revision changes what comes last, on a daemon that has built nothing of it.
    request = source.dockerfile(&format!("{dockerfile}# changed\n")).await;
    request.cache = Some(cache.clone());
    let (_, recorder) = pushed(&builder, bed.buildkit(1), &request).await;
    for step in ["/dev/urandom", "date"] {
        assert!(cached(&recorder, step), "{step}\n{}", recorder.text());
    }
    assert_ne!(exported(&recorder), Some(cache));
}

#[tokio::test]
async fn a_cache_that_is_gone_costs_time_and_no_build() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let mut request = source.dockerfile(&format!("FROM {}\nRUN true\n", bed.registry().busybox())).await;
    request.cache = Some(Digest::of(b"never exported"));
    let builder = BuildkitBuilder::new(BuildkitConfig { cache: RegistryCache::Both, ..config(bed) }).unwrap();
    pushed(&builder, bed.buildkit(0), &request).await;
    // And nothing is exported where that is not wanted.
    let (_, recorder) = pushed(&BuildkitBuilder::new(config(bed)).unwrap(), bed.buildkit(0), &request).await;
    assert_eq!(exported(&recorder), None);
}
