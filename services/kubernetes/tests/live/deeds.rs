//! What a hostile RUN step does to its daemon, and that it hurts nobody else.

use std::path::Path;

use fabrique_core::failure::FailureKind;
use fabrique_kubernetes::KubernetesPlacement;
use fabrique_kubernetes::config::Bytes;
use fabrique_ports::builder::{Autopsy, BuildOutcome, Condition, Placement, PlacementLease};

use crate::ground::{Ground, lease};
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
        let workshop = Workshop::new(&ground).await;
        let placement = ground.placement("worker-1").await;
        let leased = lease(&placement, "hostile").await;
        Some(Self { ground, workshop, placement, leased })
    }

    async fn run(&self, step: &str) -> (BuildOutcome, String) {
        let base = &self.ground.cluster.images().debian;
        let dockerfile = format!("FROM {base}\nUSER 0\nSHELL [\"/bin/bash\", \"-c\"]\nRUN {step}\n");
        let builder = self.workshop.builder(&[]);
        self.workshop.build(&builder, &self.leased.daemon, "hostile", &dockerfile).await
    }

    async fn output(&self, step: &str) -> String {
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

/// Everybody's processes, in one step's view.
const PROCESSES: &str = "for at in /proc/[0-9]*; do echo \"sees $(cat $at/comm 2>/dev/null)\"; done";

#[tokio::test]
async fn a_step_in_a_user_namespace_sees_neither_the_daemon_nor_its_certificate() {
    let Some(scene) = Scene::new("userns", 1024).await else { return };
    let output = scene.output(&format!("{PROCESSES}; kill -9 -1; echo done")).await;
    assert!(output.contains("sees bash") && !output.contains("sees buildkitd"), "{output}");
    let search = "grep -rls 'PRIVATE KEY' / --exclude-dir={proc,sys,dev,usr}; \
        ls /etc/fabrique /run/buildkit /var/lib/buildkit /var/run/secrets; \
        mount -t proc proc /mnt; mknod /dev/mine b 8 0; echo searched";
    let output = scene.output(search).await;
    let found = output.lines().filter(|line| line.starts_with('/')).collect::<Vec<_>>();
    assert!(found.is_empty() && output.contains("searched"), "{output}");
    scene.the_next_build_passes(Condition::Clean).await;
}

/// The daemon is a process like any other to a step: one app a daemon is what keeps that app's misdeeds its own.
#[tokio::test]
async fn a_rootless_step_that_kills_its_daemon_fails_alone() {
    let Some(scene) = Scene::new("rootless", 1024).await else { return };
    let keys = "cat /proc/[0-9]*/root/etc/fabrique/tls/tls.key 2>/dev/null | grep -c 'PRIVATE KEY'";
    let output = scene.output(&format!("{PROCESSES}; echo \"keys $({keys})\"")).await;
    assert!(output.contains("sees buildkitd"), "{output}");
    // It has fewer capabilities than the daemon, so that the kernel shows it no more than names and arguments.
    assert!(output.contains("keys 0"), "{output}");
    let kill = "for at in /proc/[0-9]*; do \
        [ \"$(cat $at/comm)\" = buildkitd ] && kill -9 ${at#/proc/}; done; sleep 30";
    let (outcome, output) = scene.run(kill).await;
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}\n{output}") };
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    assert!(failure.message.contains("was lost during the build"), "{failure:?}");
    let autopsy = scene.placement.autopsy(&scene.leased.daemon).await;
    assert!(matches!(&autopsy, Autopsy::Died { why, .. } if why.contains("ended by itself")), "{autopsy:?}");
    scene.the_next_build_passes(Condition::Doubt).await;
}

/// A session answers the token of its own organisation alone, and a cache mount is its app's.
#[tokio::test]
async fn a_step_reads_no_other_organisations_token_and_no_other_apps_cache() {
    let Some(scene) = Scene::new("userns", 1024).await else { return };
    let secret = "--mount=type=secret,id=GIT_AUTH_TOKEN.198.18.0.3:3000,target=/token";
    let output = scene.output(&format!("{secret} sha256sum < /token | sed 's/^/token /'")).await;
    let own = fabrique_core::id::Digest::of(scene.workshop.token.as_bytes());
    let token = output.lines().find_map(|line| line.strip_prefix("token ")).unwrap();
    assert_eq!(token.split(' ').next(), own.as_str().strip_prefix("sha256:"), "{output}");

    let cache = "--mount=type=cache,id=shared,target=/cache";
    scene.output(&format!("{cache} echo mine > /cache/mine")).await;
    let output = scene.output(&format!("{cache} echo \"own $(cat /cache/mine)\"")).await;
    assert!(output.contains("own mine"), "{output}");
    let base = &scene.ground.cluster.images().busybox;
    let peek = format!("FROM {base}\nRUN {cache} ls /cache | sed 's/^/found /'; echo looked\n");
    let builder = scene.workshop.builder(&[]);
    let output = scene.workshop.output(&builder, &scene.leased.daemon, "nosy", &peek).await;
    assert!(output.contains("looked") && !output.contains("found"), "{output}");
}

async fn a_fork_bomb_stays_in_its_pod(isolation: &str) {
    let Some(scene) = Scene::new(isolation, 1024).await else { return };
    let bomb = "timeout -s KILL 20 bash -c 'while :; do sleep 15 & done' 2>&1 | tail -1; exit 3";
    let (outcome, output) = scene.run(bomb).await;
    println!("{isolation}: {outcome:?}\n{output}");
    assert!(matches!(outcome, BuildOutcome::Failed(_)), "{outcome:?}\n{output}");
    scene.the_next_build_passes(Condition::Doubt).await;
}

#[tokio::test]
async fn a_fork_bomb_in_a_user_namespace_stays_in_its_pod() {
    a_fork_bomb_stays_in_its_pod("userns").await;
}

#[tokio::test]
async fn a_fork_bomb_in_a_rootless_pod_stays_in_it() {
    a_fork_bomb_stays_in_its_pod("rootless").await;
}

/// With cgroup v2 the kernel ends the whole container, whose status tells. With v1 it ends the step alone.
async fn a_step_that_eats_all_memory_is_told(isolation: &str) {
    let Some(scene) = Scene::new(isolation, 1024).await else { return };
    let (outcome, output) = scene.run("x=$(head -c 1G /dev/zero | tr '\\0' a); sleep 1").await;
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}\n{output}") };
    let autopsy = scene.placement.autopsy(&scene.leased.daemon).await;
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
        assert_eq!(autopsy, Autopsy::OutOfMemory);
    } else {
        assert!(failure.message.contains("for want of memory"), "{failure:?}");
        assert_eq!(autopsy, Autopsy::Alive);
    }
    scene.the_next_build_passes(Condition::Doubt).await;
}

#[tokio::test]
async fn a_step_in_a_user_namespace_that_eats_all_memory_is_told() {
    a_step_that_eats_all_memory_is_told("userns").await;
}

#[tokio::test]
async fn a_rootless_step_that_eats_all_memory_is_told() {
    a_step_that_eats_all_memory_is_told("rootless").await;
}

/// The node takes the pod away when its volume is larger than promised; the disk of the node is not what fills.
async fn a_full_volume_costs_its_own_pod_alone(isolation: &str) {
    let Some(scene) = Scene::new(isolation, 100).await else { return };
    let (outcome, output) = scene.run("head -c 200M /dev/zero > /large; sync; sleep 120").await;
    let BuildOutcome::Failed(failure) = outcome else { panic!("{outcome:?}\n{output}") };
    assert_eq!(failure.kind, FailureKind::Infrastructure, "{failure:?}");
    let autopsy = scene.placement.autopsy(&scene.leased.daemon).await;
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
