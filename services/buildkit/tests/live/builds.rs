//! Builds that succeed, and what they answer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fabrique_bed::Bed;
use fabrique_buildkit::{BuildkitBuilder, Provenance};
use fabrique_core::id::{Digest, Platform, RelPath};
use fabrique_ports::builder::{BuildRequest, Builder, Progress};
use serde_json::Value;

use crate::support::{Source, builder, config, daemon, pushed};

/// A manifest or index of the bed's registry, checked against its own digest.
async fn manifest(bed: &Bed, request: &BuildRequest, digest: &Digest) -> (Value, String) {
    let name = request.image.name();
    assert_eq!(bed.registry().digest(name, digest.as_str()).await.unwrap().as_deref(), Some(digest.as_str()));
    let (body, kind) = fetch(bed, &format!("{name}/manifests/{digest}")).await;
    assert_eq!(Digest::of(&body), *digest);
    (serde_json::from_slice(&body).unwrap(), kind)
}

async fn fetch(bed: &Bed, path: &str) -> (Vec<u8>, String) {
    let accept = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json";
    let url = format!("{}/v2/{path}", bed.registry().base_url());
    let answer = reqwest::Client::new().get(url).header("Accept", accept).send().await.unwrap();
    let answer = answer.error_for_status().unwrap();
    let kind = answer.headers()["Content-Type"].to_str().unwrap().to_owned();
    (answer.bytes().await.unwrap().to_vec(), kind)
}

/// The configuration of a one-platform image.
async fn image_config(bed: &Bed, request: &BuildRequest, digest: &Digest) -> Value {
    let (manifest, _) = manifest(bed, request, digest).await;
    let config = manifest["config"]["digest"].as_str().unwrap();
    let (body, _) = fetch(bed, &format!("{}/blobs/{config}", request.image.name())).await;
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn a_private_repository_builds_and_the_digest_is_the_registrys_manifest() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let dockerfile = format!("FROM {}\nRUN echo hello-$((40+2))\n", bed.registry().busybox());
    let request = source.dockerfile(&dockerfile).await;
    let (digest, recorder) = pushed(&builder(bed), bed.buildkit(0), &request).await;
    assert!(recorder.logged("hello-42"), "{}", recorder.text());
    let (manifest, kind) = manifest(bed, &request, &digest).await;
    assert_eq!(kind, "application/vnd.oci.image.manifest.v1+json");
    assert_ne!(manifest["config"]["digest"].as_str(), Some(digest.as_str()));
    assert_eq!(bed.registry().tags(request.image.name()).await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn labels_and_creation_time_come_from_the_source() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let request = source.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;
    let (digest, _) = pushed(&builder(bed), bed.buildkit(0), &request).await;
    let config = image_config(bed, &request, &digest).await;
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.revision"], request.inputs.revision.as_str());
    let page = format!("{}/{}/citation", bed.gitea().base_url(), source.org);
    assert_eq!(labels["org.opencontainers.image.source"], page.as_str());
    assert_eq!(labels["fabrique.build-key"], request.key.as_str());
    assert_eq!(config["created"], "2025-10-09T08:53:20Z");
}

#[tokio::test]
async fn an_attestation_makes_the_digest_an_index() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let request = source.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;
    let mut config = config(bed);
    config.provenance = Provenance::Min;
    let builder = BuildkitBuilder::new(config).unwrap();
    let (digest, _) = pushed(&builder, bed.buildkit(0), &request).await;
    let (index, kind) = manifest(bed, &request, &digest).await;
    assert_eq!(kind, "application/vnd.oci.image.index.v1+json");
    assert_eq!(index["manifests"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn two_platforms_make_the_digest_an_index_of_both() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let mut request = source.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;
    request.inputs.platforms = ["linux/amd64", "linux/arm64"].map(|p| Platform::parse(p).unwrap()).to_vec();
    let (digest, _) = pushed(&builder(bed), bed.buildkit(0), &request).await;
    let (index, kind) = manifest(bed, &request, &digest).await;
    assert_eq!(kind, "application/vnd.oci.image.index.v1+json");
    let architectures: Vec<&str> = index["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|image| image["platform"]["architecture"].as_str().unwrap())
        .collect();
    assert_eq!(architectures, ["amd64", "arm64"]);
}

#[tokio::test]
async fn two_builds_of_one_key_give_one_digest_and_the_second_is_cached() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let dockerfile = format!("FROM {}\nRUN echo first > /made\nRUN date > /when\n", bed.registry().busybox());
    let request = source.dockerfile(&dockerfile).await;
    let builder = builder(bed);
    let (first, _) = pushed(&builder, bed.buildkit(0), &request).await;
    let start = Instant::now();
    let (second, recorder) = pushed(&builder, bed.buildkit(0), &request).await;
    eprintln!("an unchanged build took {:?}", start.elapsed());
    assert_eq!(first, second);
    let cached = |name: &str, report: &Progress| matches!(report, Progress::StepEnded { name: n, cached: true, error: None, .. } if n.contains(name));
    assert!(recorder.all().iter().any(|report| cached("date", report)), "{}", recorder.text());
}

#[tokio::test]
async fn without_the_cache_every_step_runs_again() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let dockerfile =
        format!("FROM {}\nRUN echo ran-$((1+1)); head -c 8 /dev/urandom > /n\n", bed.registry().busybox());
    let mut request = source.dockerfile(&dockerfile).await;
    let builder = builder(bed);
    let (first, _) = pushed(&builder, bed.buildkit(0), &request).await;
    request.no_cache = true;
    let (second, recorder) = pushed(&builder, bed.buildkit(0), &request).await;
    assert!(recorder.logged("ran-2"), "{}", recorder.text());
    assert_ne!(first, second);
}

#[tokio::test]
async fn stages_scratch_arguments_and_targets_work_and_a_syntax_line_pulls_nothing() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let dockerfile = format!(
        "# syntax=docker/dockerfile:1\nFROM {} AS make\nARG WHO\nRUN echo \"for $WHO\" > /made\nFROM scratch AS \
         wanted\nCOPY --from=make /made /made\nFROM wanted AS last\nCOPY nothing-here /\n",
        bed.registry().busybox()
    );
    let mut request = source.dockerfile(&dockerfile).await;
    request.inputs.target = Some("wanted".into());
    request.inputs.args = BTreeMap::from([("WHO".into(), "Ada & \"Grace\"".into())]);
    let (digest, recorder) = pushed(&builder(bed), bed.buildkit(0), &request).await;
    assert!(!recorder.text().contains("docker/dockerfile"), "{}", recorder.text());
    let (manifest, _) = manifest(bed, &request, &digest).await;
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_context_below_the_root_with_another_dockerfile_builds() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    source.git.write("outside", "x").await.unwrap();
    source.git.write("data ops/citation/inside", "x").await.unwrap();
    let dockerfile = format!("FROM {}\nCOPY . /c\nRUN ls -R /c\n", bed.registry().busybox());
    source.git.write("data ops/citation/docker/Image", &dockerfile).await.unwrap();
    let mut request = source.pushed().await;
    request.inputs.context = RelPath::parse("data ops/citation").unwrap();
    request.inputs.dockerfile = RelPath::parse("docker/Image").unwrap();
    let (_, recorder) = pushed(&builder(bed), bed.buildkit(0), &request).await;
    assert!(recorder.logged("inside") && !recorder.logged("outside"), "{}", recorder.text());
}

#[tokio::test]
async fn an_older_revision_builds_after_the_branch_has_moved_on() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let base = bed.registry().busybox();
    let old = source.dockerfile(&format!("FROM {base}\nRUN echo old-$((1+1))\n")).await;
    let new = source.dockerfile(&format!("FROM {base}\nRUN echo new-$((1+1))\n")).await;
    let builder = builder(bed);
    let (_, recorder) = pushed(&builder, bed.buildkit(0), &new).await;
    assert!(recorder.logged("new-2"));
    let (_, recorder) = pushed(&builder, bed.buildkit(0), &old).await;
    assert!(recorder.logged("old-2"));
}

#[tokio::test]
async fn steps_are_reported_in_order_once_each() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let dockerfile = format!(
        "FROM {}\nRUN printf '\\033[31mred\\033[0m\\n'; printf 'a\\rb\\n'; printf 'no end'\nRUN echo two\n",
        bed.registry().busybox()
    );
    let (_, recorder) = pushed(&builder(bed), bed.buildkit(0), &source.dockerfile(&dockerfile).await).await;
    for line in ["red", "b", "no end", "two"] {
        assert!(recorder.logged(line), "{line}\n{}", recorder.text());
    }
    let all = recorder.all();
    let at = |wanted: &dyn Fn(&Progress) -> bool| all.iter().position(wanted).unwrap();
    let second = |name: &String| name.contains("echo two");
    let started = at(&|report| matches!(report, Progress::StepStarted { name } if second(name)));
    let ended = at(&|report| matches!(report, Progress::StepEnded { name, .. } if second(name)));
    let before = at(&|report| *report == Progress::Log { line: "no end".into() });
    let line = at(&|report| *report == Progress::Log { line: "two".into() });
    assert!(before < started && started < line && line < ended, "{}", recorder.text());
}

#[tokio::test]
async fn a_daemon_tells_its_version_snapshotter_and_platforms() {
    let bed = Bed::shared().await;
    let info = builder(bed).probe(&daemon(bed.buildkit(0))).await.unwrap();
    assert!(info.version.starts_with('v'), "{info:?}");
    assert!(info.snapshotter.is_some(), "{info:?}");
    assert!(info.platforms.contains(&"linux/amd64".to_owned()), "{info:?}");
    let mut socket = daemon(bed.buildkit(0));
    socket.address = bed.buildkit(0).unix_address();
    assert_eq!(builder(bed).probe(&socket).await.unwrap(), info);
}

#[tokio::test]
async fn an_address_where_nobody_listens_is_a_passing_error_and_no_build() {
    let bed = Bed::shared().await;
    let mut nobody = daemon(bed.buildkit(0));
    nobody.address = format!("tcp://127.0.0.1:{}", fabrique_bed::free_port().unwrap());
    let start = Instant::now();
    let error = builder(bed).probe(&nobody).await.unwrap_err();
    assert!(error.transient() && start.elapsed() < Duration::from_secs(5), "{error}");
    nobody.address = bed.gitea().base_url().replace("http", "tcp");
    assert!(builder(bed).probe(&nobody).await.is_err());
}
