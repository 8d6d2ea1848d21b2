//! What a hostile RUN step does to its daemon, and that it hurts nobody else.

use std::num::NonZeroU32;
use std::path::Path;

use fabrique_bed::hostile::{self, Step};
use fabrique_buildkit::{BuildkitBuilder, BuildkitConfig};
use fabrique_core::failure::FailureKind;
use fabrique_core::id::AppName;
use fabrique_kubernetes::KubernetesPlacement;
use fabrique_kubernetes::config::{AppMemory, Bytes};
use fabrique_ports::builder::{Autopsy, BuildOutcome, Condition, Placement, PlacementLease};

use crate::ground::{Ground, lease, lost};
use crate::workshop::Workshop;

/// A hostile build on a daemon of its own, and what is said about its end.
struct Scene {
    ground: Ground,
    workshop: Workshop,
    placement: KubernetesPlacement,
    leased: PlacementLease,
}

impl Scene {
    async fn new(isolation: &str, cache: u64) -> Option<Self> {
        let mut ground = Ground::with_policies(isolation).await?;
        ground.settings.cache.size = Bytes::mebi(cache);
        let limit = AppMemory { start: None, limit: Bytes::mebi(400) };
        ground.settings.apps.insert(AppName::parse("hostile").unwrap(), limit);
        let workshop = Workshop::new(&ground).await;
        let placement = ground.placement("worker-1").await;
        let leased = lease(&placement, "hostile").await;
        Some(Self { ground, workshop, placement, leased })
    }

    async fn run(&self, step: Step) -> (BuildOutcome, String) {
        let dockerfile = hostile::dockerfile(&self.ground.cluster.images().debian, &[step]);
        let builder = self.workshop.builder(&[]);
        self.workshop.build(&builder, &self.leased.daemon, "hostile", &dockerfile).await
    }

    async fn output(&self, step: Step) -> String {
        match self.run(step).await {
            (BuildOutcome::Pushed(_), output) => output,
            (other, output) => panic!("not pushed but {other:?}\n{output}"),
        }
    }

    /// Gives the daemon back as the worker would, and has another app built.
    async fn the_next_build_passes(self, condition: Condition) {
        let Self { ground, workshop, placement, leased } = self;
        placement.release(leased, condition).await;
        let next = lease(&placement, "peaceful").await;
        let dockerfile = format!("FROM {}\nRUN echo fine\n", ground.cluster.images().busybox);
        let output = workshop.output(&workshop.builder(&[]), &next.daemon, "peaceful", &dockerfile).await;
        assert!(output.contains("fine"), "{output}");
    }
}

#[tokio::test]
async fn a_step_in_a_user_namespace_sees_neither_the_daemon_nor_its_certificate() {
    let Some(scene) = Scene::new("userns", 1024).await else { return };
    let output = scene.output(hostile::look_at_processes().and(&hostile::kill_everything())).await;
    assert!(output.contains("sees bash") && !output.contains("sees buildkitd"), "{output}");
    let output = scene.output(hostile::search()).await;
    assert!(hostile::said(&output, "finds").is_empty() && output.contains("searched"), "{output}");
    scene.the_next_build_passes(Condition::Clean).await;
}

/// The daemon is a process like any other to a step: one app a daemon is what keeps that app's misdeeds its own.
#[tokio::test]
async fn a_rootless_step_that_kills_its_daemon_fails_alone() {
    let Some(scene) = Scene::new("rootless", 1024).await else { return };
    let key = "grep -c 'PRIVATE KEY' /etc/fabrique/tls/tls.key";
    let there = scene.ground.kubectl(&["exec", &scene.leased.daemon.name, "--", "sh", "-c", key]).await;
    assert_ne!(there.trim(), "0", "or there is nothing to be found");
    let output = scene.output(hostile::look_at_processes().and(&hostile::search_processes())).await;
    assert!(output.contains("sees buildkitd"), "{output}");
    // It has fewer capabilities than the daemon, so that the kernel shows it no more than names and arguments.
    assert!(output.contains("keys 0"), "{output}");
    let (outcome, output) = scene.run(hostile::kill_the_daemon()).await;
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}\n{output}") };
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    assert!(failure.message.contains("was lost during the build"), "{failure:?}");
    let autopsy = scene.placement.autopsy(&scene.leased.daemon, &lost()).await;
    assert!(matches!(&autopsy, Autopsy::Died { why, .. } if why.contains("ended by itself")), "{autopsy:?}");
    scene.the_next_build_passes(Condition::Doubt).await;
}

/// A session answers the token of its own organisation alone, and a cache mount is its app's.
#[tokio::test]
async fn a_step_reads_no_other_organisations_token_and_no_other_apps_cache() {
    let Some(scene) = Scene::new("userns", 1024).await else { return };
    let output = scene.output(hostile::read_token("198.18.0.3:3000")).await;
    let own = fabrique_core::id::Digest::of(scene.workshop.token.as_bytes());
    let token = hostile::said(&output, "token").pop().unwrap();
    assert_eq!(token.split(' ').next(), own.as_str().strip_prefix("sha256:"), "{output}");

    scene.output(hostile::leave_in_cache("shared")).await;
    let output = scene.output(hostile::look_into_cache("shared")).await;
    assert_eq!(hostile::said(&output, "found"), ["mine"], "{output}");
    let base = &scene.ground.cluster.images().debian;
    // Not the very same step, whose result the daemon has.
    let look = hostile::look_into_cache("shared").and(&Step::new("echo nosy"));
    let peek = hostile::dockerfile(base, &[look]);
    let builder = scene.workshop.builder(&[]);
    let output = scene.workshop.output(&builder, &scene.leased.daemon, "nosy", &peek).await;
    assert!(output.contains("looked") && !output.contains("found"), "{output}");
}

async fn a_fork_bomb_stays_in_its_pod(isolation: &str) {
    let Some(scene) = Scene::new(isolation, 1024).await else { return };
    let (outcome, output) = scene.run(hostile::fork_bomb()).await;
    println!("{isolation}: {outcome:?}\n{output}");
    assert!(matches!(outcome, BuildOutcome::Failed(_)), "{outcome:?}\n{output}");
    scene.the_next_build_passes(Condition::Doubt).await;
}

/// With a limit on a step's processes below the pod's (1024 here) the bomb ends in its step: the daemon is well, and
/// builds on.
async fn a_fork_bomb_ends_in_its_step(isolation: &str) {
    let Some(scene) = Scene::new(isolation, 1024).await else { return };
    let config = BuildkitConfig { step_processes: NonZeroU32::new(600), ..scene.workshop.config() };
    let builder = BuildkitBuilder::new(config).unwrap();
    // It may not raise the limit that it has.
    let limit = Step::new("echo limit $(ulimit -H -u); ulimit -u 601 2>/dev/null || echo stays");
    let debian = &scene.ground.cluster.images().debian;
    let bomb = hostile::dockerfile(debian, &[limit, hostile::fork_bomb()]);
    let daemon = &scene.leased.daemon;
    let uid = scene.ground.uid(&daemon.name).await;
    let (outcome, output) = scene.workshop.build(&builder, daemon, "hostile", &bomb).await;
    println!("{isolation}: {outcome:?}\n{output}");
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}\n{output}") };
    assert_eq!((failure.kind, failure.killed), (FailureKind::Source, false), "{failure:?}\n{output}");
    assert!(output.contains("limit 600") && output.contains("stays"), "{output}");
    assert_eq!(scene.placement.autopsy(daemon, &lost()).await, Autopsy::Alive);
    // The same daemon builds the next one, and steps that are no bombs have all they need.
    let dockerfile = format!("FROM {}\nRUN echo fine\n", scene.ground.cluster.images().busybox);
    let output = scene.workshop.output(&builder, daemon, "hostile", &dockerfile).await;
    assert!(output.contains("fine"), "{output}");
    assert_eq!(scene.ground.uid(&daemon.name).await, uid);

    // The limit is its user's, and root of the step may be any: a bound on mishaps, and no wall.
    let many = "for user in 2001 2002; do chroot --userspec=$user:$user / \
                bash -c 'for i in {1..350}; do sleep 120 & done; wait' > /dev/null 2>&1 & done; \
                for i in $(seq 200); do n=$(ls /proc | grep -c '^[0-9]'); [ $n -gt 690 ] && break; sleep 0.3; done; \
                echo processes $n; \
                for user in 2001 2002; do chroot --userspec=$user:$user / bash -c 'kill -9 -1'; done; wait";
    let evasion = hostile::dockerfile(debian, &[Step::new(many)]);
    let output = scene.workshop.output(&builder, daemon, "hostile", &evasion).await;
    let seen: u32 = hostile::said(&output, "processes").pop().unwrap().parse().unwrap();
    assert!(seen > 690, "{output}");
}

#[tokio::test]
async fn a_fork_bomb_in_a_user_namespace_ends_in_its_step_where_these_are_limited() {
    a_fork_bomb_ends_in_its_step("userns").await;
}

#[tokio::test]
#[ignore = "long: each of the two isolations has one of the two bombs in every run"]
async fn a_fork_bomb_in_a_rootless_pod_ends_in_its_step_where_these_are_limited() {
    a_fork_bomb_ends_in_its_step("rootless").await;
}

#[tokio::test]
#[ignore = "long: each of the two isolations has one of the two bombs in every run"]
async fn a_fork_bomb_in_a_user_namespace_stays_in_its_pod() {
    a_fork_bomb_stays_in_its_pod("userns").await;
}

#[tokio::test]
async fn a_fork_bomb_in_a_rootless_pod_stays_in_it() {
    a_fork_bomb_stays_in_its_pod("rootless").await;
}

/// With cgroup v2 the kernel ends the whole container, whose status tells. With v1 it ends the step alone, and all that
/// shows is its exit code.
async fn a_step_that_eats_all_memory_has_more_next_time(isolation: &str) {
    let Some(mut scene) = Scene::new(isolation, 1024).await else { return };
    let (outcome, output) = scene.run(hostile::eat_memory()).await;
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}\n{output}") };
    assert_eq!(failure.killed, Path::new("/sys/fs/cgroup/memory").exists(), "{failure:?}");
    assert_eq!(scene.placement.autopsy(&scene.leased.daemon, &failure).await, Autopsy::OutOfMemory);
    let first = scene.leased.clone();
    scene.placement.release(first, Condition::Doubt).await;
    scene.leased = lease(&scene.placement, "hostile").await;
    let pod = scene.ground.pod(&scene.leased.daemon.name).await;
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["memory"], "400Mi");
    // At its limit it is the step's own fault, where only the step died.
    let (outcome, output) = scene.run(hostile::eat_memory()).await;
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}\n{output}") };
    let autopsy = scene.placement.autopsy(&scene.leased.daemon, &failure).await;
    assert_eq!(autopsy, if failure.killed { Autopsy::Alive } else { Autopsy::OutOfMemory });
    scene.the_next_build_passes(Condition::Doubt).await;
}

#[tokio::test]
async fn a_step_in_a_user_namespace_that_eats_all_memory_has_more_next_time() {
    a_step_that_eats_all_memory_has_more_next_time("userns").await;
}

#[tokio::test]
async fn a_rootless_step_that_eats_all_memory_has_more_next_time() {
    a_step_that_eats_all_memory_has_more_next_time("rootless").await;
}

/// The node takes the pod away when its volume is larger than promised; the disk of the node is not what fills.
async fn a_full_volume_costs_its_own_pod_alone(isolation: &str) {
    let Some(scene) = Scene::new(isolation, 100).await else { return };
    let (outcome, output) = scene.run(hostile::fill_the_disk(200)).await;
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}\n{output}") };
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    let autopsy = scene.placement.autopsy(&scene.leased.daemon, &lost()).await;
    let Autopsy::Died { kind, why } = &autopsy else { panic!("{autopsy:?}") };
    assert_eq!(*kind, FailureKind::Environment, "{why}");
    assert!(why.contains("evicted by its node"), "{why}");
    scene.the_next_build_passes(Condition::Doubt).await;
}

#[tokio::test]
async fn a_full_volume_in_a_user_namespace_costs_its_own_pod_alone() {
    a_full_volume_costs_its_own_pod_alone("userns").await;
}

#[tokio::test]
async fn a_full_volume_of_a_rootless_pod_costs_that_pod_alone() {
    a_full_volume_costs_its_own_pod_alone("rootless").await;
}
