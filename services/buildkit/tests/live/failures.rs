//! Builds that fail by their own fault, told apart by type.

use std::collections::BTreeMap;

use fabrique_bed::Bed;
use fabrique_buildkit::{BuildkitBuilder, BuildkitConfig};
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{AppName, ImageRepository, RelPath};
use fabrique_ports::builder::{BuildFailure, BuildRequest, Builder};

use crate::support::{Source, builder, config, failed, pushed};

async fn failure(bed: &Bed, request: &BuildRequest) -> BuildFailure {
    failed(&builder(bed), bed.buildkit(0), request).await.0
}

/// The Dockerfile's own fault, with these words in the message.
async fn sources_fault(dockerfile: &str, words: &[&str]) -> BuildFailure {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let failure = failure(bed, &source.dockerfile(dockerfile).await).await;
    assert_eq!(failure.kind, FailureKind::Source, "{failure:?}");
    for word in words {
        assert!(failure.message.contains(word), "{word} in {failure:?}");
    }
    failure
}

#[tokio::test]
async fn a_failing_run_step_is_the_sources_with_its_last_lines() {
    let base = Bed::shared().await.registry().busybox();
    let dockerfile = format!("FROM {base}\nRUN echo fine\nRUN seq 1 100; sleep 1; echo oh no >&2; exit 7\n");
    let failure = sources_fault(&dockerfile, &["seq 1 100", "exit code 7", "Dockerfile line 3"]).await;
    // Output and errors reach the daemon through two pipes: how their lines are mixed is open.
    let tail = &failure.log_tail;
    assert!(tail.contains(&"100".to_owned()) && tail.contains(&"oh no".to_owned()), "{tail:?}");
    assert!(!failure.log_tail.contains(&"fine".to_owned()));
}

#[tokio::test]
async fn a_step_that_kills_itself_is_the_sources() {
    let base = Bed::shared().await.registry().busybox();
    sources_fault(&format!("FROM {base}\nRUN kill -9 $$\n"), &["exit code 137"]).await;
}

#[tokio::test]
async fn a_missing_dockerfile_is_the_sources() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let head = source.git.head().await.unwrap();
    let failure = failure(bed, &source.request(&head)).await;
    assert_eq!(failure.kind, FailureKind::Source);
    assert!(failure.message.contains("Dockerfile: no such file"), "{failure:?}");
}

#[tokio::test]
async fn a_syntax_error_is_the_sources_with_its_line() {
    sources_fault("FROM scratch\nRUNN x\n", &["unknown instruction: RUNN", "Dockerfile line 2"]).await;
}

#[tokio::test]
async fn a_file_that_is_not_in_the_source_is_the_sources() {
    sources_fault("FROM scratch\nCOPY nope /\n", &["COPY nope", "not found", "Dockerfile line 2"]).await;
}

#[tokio::test]
async fn a_missing_base_image_is_the_sources() {
    let host = Bed::shared().await.registry().host();
    let missing = format!("{host}/base/busybox:no-such");
    sources_fault(&format!("FROM {missing}\nRUN true\n"), &[&missing, "does not exist"]).await;
    let missing = format!("{host}/base/busybox@sha256:{}", "a".repeat(64));
    sources_fault(&format!("FROM {missing}\nRUN true\n"), &[&missing, "does not exist"]).await;
}

#[tokio::test]
async fn a_base_image_outside_the_permitted_registries_is_refused() {
    let forbidden = "docker.io/library/busybox:latest";
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let builder = builder(bed);
    for (dockerfile, line) in [
        ("FROM busybox\nRUN true\n", "line 1"),
        ("FROM scratch\nCOPY --from=busybox / /\n", "line 2"),
        ("ARG FROM=busybox\n\nFROM ${FROM} AS base\nFROM base\nRUN true\n", "line 3"),
        ("FROM scratch\nRUN --mount=from=busybox,target=/b true\n", "line 2"),
    ] {
        let request = source.dockerfile(dockerfile).await;
        let (failure, _) = failed(&builder, bed.buildkit(0), &request).await;
        assert_eq!(failure.kind, FailureKind::Source, "{failure:?}");
        // The same is told without a daemon, with the line that a daemon leaves out of mounts.
        let foreseen = builder.refuses(&request.inputs, dockerfile).unwrap();
        assert!(failure.message.contains(forbidden), "{failure:?}");
        assert!(foreseen.message.starts_with(&failure.message), "{foreseen:?} {failure:?}");
        assert!(foreseen.message.contains(line), "{foreseen:?}");
    }
}

#[tokio::test]
async fn other_sources_are_refused() {
    let bed = Bed::shared().await;
    let other = format!("{}/other/repo.git", bed.gitea().base_url());
    sources_fault(&format!("FROM scratch\nADD {other} /x\n"), &["git://", "not permitted"]).await;
    let url = format!("{}/v2/", bed.registry().base_url());
    let add = format!("FROM scratch\nADD {url} /x\n");
    let registry = bed.registry().host();
    let (host, port) = registry.rsplit_once(':').unwrap();
    let remedy = format!("add - {{host: \"{host}\", port: {port}, purpose:");
    sources_fault(&add, &[&url, "not permitted", &remedy]).await;
}

#[tokio::test]
async fn a_listed_host_is_fetched_from_on_its_port_and_for_its_app_only() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let add = format!("FROM scratch\nADD {}/v2/ /x\n", bed.registry().base_url());
    let request = source.dockerfile(&add).await;
    let of = |app: &str| {
        let app = AppName::parse(app).unwrap();
        let hosts = BTreeMap::from([(app, vec![bed.registry().host()])]);
        BuildkitBuilder::new(BuildkitConfig { permitted_hosts_of: hosts, ..config(bed) }).unwrap()
    };
    pushed(&of("citation"), bed.buildkit(0), &request).await;
    let (failure, _) = failed(&of("another"), bed.buildkit(0), &request).await;
    assert_eq!(failure.kind, FailureKind::Source, "{failure:?}");
}

#[tokio::test]
async fn the_own_repository_at_another_revision_is_refused() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let own = bed.gitea().clone_url(&source.org, "citation");
    let failure = failure(bed, &source.dockerfile(&format!("FROM scratch\nADD {own} /x\n")).await).await;
    assert_eq!(failure.kind, FailureKind::Source);
    assert!(failure.message.contains("not permitted"), "{failure:?}");
}

#[tokio::test]
async fn what_the_revision_lacks_is_the_sources() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let mut request = source.dockerfile("FROM scratch\nCOPY . /\n").await;
    request.inputs.context = RelPath::parse("no/such").unwrap();
    assert_eq!(failure(bed, &request).await.kind, FailureKind::Source);
    request.inputs.context = RelPath::root();
    request.inputs.target = Some("no-such".into());
    assert_eq!(failure(bed, &request).await.kind, FailureKind::Source);
    let gone = source.request(&"ab".repeat(20));
    assert_eq!(failure(bed, &gone).await.kind, FailureKind::Source);
}

#[tokio::test]
async fn a_symlink_does_not_lead_out_of_the_context() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    source.git.write("app/Dockerfile", "FROM scratch\nCOPY out /\n").await.unwrap();
    std::os::unix::fs::symlink("/etc/passwd", source.git.path().join("app/out")).unwrap();
    std::os::unix::fs::symlink("app", source.git.path().join("link")).unwrap();
    let mut request = source.pushed().await;
    request.inputs.context = RelPath::parse("app").unwrap();
    assert_eq!(failure(bed, &request).await.kind, FailureKind::Source);
    request.inputs.context = RelPath::parse("link").unwrap();
    assert_eq!(failure(bed, &request).await.kind, FailureKind::Source);
}

#[tokio::test]
async fn a_push_to_nowhere_is_infrastructure() {
    let bed = Bed::shared().await;
    let source = Source::new(bed).await;
    let mut request = source.dockerfile("FROM scratch\nCOPY Dockerfile /\n").await;
    let port = fabrique_bed::free_port().unwrap();
    request.image = ImageRepository::parse(&format!("127.0.0.1:{port}/x")).unwrap();
    let failure = failure(bed, &request).await;
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    assert!(failure.message.contains("failed to push"), "{failure:?}");
}
