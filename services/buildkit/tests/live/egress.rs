//! What builds are said to have fetched.

use std::collections::BTreeMap;

use fabrique_bed::Bed;
use fabrique_buildkit::{BuildkitBuilder, BuildkitConfig};
use fabrique_core::id::AppName;
use fabrique_ports::egress::{Answer, FetchKind};

use crate::support::{Source, builder, config, failed, pushed};

#[tokio::test]
async fn the_source_its_base_image_and_what_it_adds_are_told_with_their_answers() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let (registry, base) = (bed.registry().host(), bed.registry().busybox());
    let url = format!("{}/v2/", bed.registry().base_url());
    let request = source.dockerfile(&format!("FROM {base}\nADD {url} /x\nRUN true\n")).await;
    let hosts = BTreeMap::from([(AppName::parse("citation").unwrap(), vec![registry.clone()])]);
    let open = BuildkitBuilder::new(BuildkitConfig { permitted_hosts_of: hosts, ..config(bed) }).unwrap();
    // The second build finds all of it in the daemon's cache, and is told the same.
    for _ in 0..2 {
        let (_, recorder) = pushed(&open, bed.buildkit(0), &request).await;
        let [git, image, add] = recorder.fetched().try_into().unwrap_or_else(|all| panic!("{all:?}"));
        assert_eq!((git.what, git.answer), (FetchKind::Source, Answer::Had), "{git:?}");
        assert!(git.location.ends_with(&format!("/citation.git#{}", request.inputs.revision)), "{git:?}");
        assert_eq!(
            git.place,
            Some(bed.gitea().base_url().trim_start_matches("http://").trim_end_matches('/').into())
        );
        assert_eq!((image.what, image.answer), (FetchKind::Image, Answer::Had), "{image:?}");
        assert!(image.location.starts_with(&registry) && image.location.contains("@sha256:"), "{image:?}");
        assert!(image.step.as_ref().is_some_and(|step| step.contains("FROM ")), "{image:?}");
        assert_eq!((add.what, add.answer), (FetchKind::Add, Answer::Had), "{add:?}");
        assert_eq!((add.location.as_str(), add.place.as_ref()), (url.as_str(), Some(&registry)), "{add:?}");
    }
}

#[tokio::test]
async fn what_was_refused_or_could_not_be_had_is_told_of_a_build_that_failed() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let url = format!("{}/v2/?token=hidden", bed.registry().base_url());
    let request = source.dockerfile(&format!("FROM scratch\nADD {url} /x\n")).await;
    let (_, recorder) = failed(&builder(bed), bed.buildkit(0), &request).await;
    let refused = recorder.fetched().into_iter().find(|fetch| fetch.answer == Answer::Refused).unwrap();
    assert_eq!(refused.what, FetchKind::Add);
    assert_eq!(refused.location, format!("{}/v2/", bed.registry().base_url()));

    let missing = format!("{}/base/busybox:no-such", bed.registry().host());
    let request = source.dockerfile(&format!("FROM {missing}\n")).await;
    let (_, recorder) = failed(&builder(bed), bed.buildkit(0), &request).await;
    let image = recorder.fetched().into_iter().find(|fetch| fetch.what == FetchKind::Image).unwrap();
    assert_eq!((image.location, image.answer), (missing, Answer::Failed));
}
