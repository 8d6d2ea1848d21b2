//! Base images of a registry that is not there, from its mirror.

use fabrique_buildkit::BuildkitBuilder;
use fabrique_ports::builder::{BuildOutcome, Condition, Placement};

use crate::ground::{Ground, lease};
use crate::workshop::Workshop;

/// Nobody answers under the name: what is built can only be the mirror's.
async fn a_base_image_comes_from_the_mirror(isolation: &str) {
    let Some(mut ground) = Ground::with_policies(isolation).await else { return };
    let base = ground.cluster.images().busybox.to_string();
    let (folder, image) = base.rsplit_once('/').unwrap();
    assert!(folder.starts_with("registry:80/"), "{base}");
    let mirrors = [("mirrored.example".to_owned(), vec![folder.to_owned()])];
    let plain = ground.placement("without").await;
    let without = lease(&plain, "citation").await;
    let workshop = Workshop::new(&ground).await;
    let mut config = workshop.config();
    config.permitted_bases.push("mirrored.example".to_owned());
    let builder = BuildkitBuilder::new(config).unwrap();
    let dockerfile = format!("FROM mirrored.example/{image}\nRUN echo fine\n");
    let (outcome, output) = workshop.build(&builder, &without.daemon, "citation", &dockerfile).await;
    assert!(matches!(outcome, BuildOutcome::Failed(_)), "{outcome:?}\n{output}");
    plain.release(without, Condition::Doubt).await;

    ground.settings.daemon.mirrors = mirrors.into();
    let placement = ground.placement("with").await;
    let with = lease(&placement, "citation").await;
    let output = workshop.output(&builder, &with.daemon, "citation", &dockerfile).await;
    assert!(output.contains("fine"), "{output}");
}

#[tokio::test]
async fn in_a_user_namespace_a_base_image_comes_from_the_mirror() {
    a_base_image_comes_from_the_mirror("userns").await;
}

#[tokio::test]
async fn in_a_rootless_pod_a_base_image_comes_from_the_mirror() {
    a_base_image_comes_from_the_mirror("rootless").await;
}
