//! Getting daemons, using them, sharing them.

use std::time::Duration;

use fabrique_ports::builder::{Condition, Daemon, Placed, Placement};
use serde_json::json;

use crate::dial::answers;
use crate::ground::{Ground, eventually, isolation, lease, lease_for, need};

/// From nothing to a build: with the rights of `rbac::RULES`, behind the policies, under mTLS.
async fn a_cold_pod_is_leased_and_builds(isolation: &str) {
    let Some(ground) = Ground::with_policies(isolation).await else { return };
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    let certificates = ground.certificates();
    let now = fabrique_ports::Ambient::now(&crate::ground::Machine);
    let ours = certificates.current(now).unwrap();
    assert!(answers(&leased.daemon, ground.ca.certificate(), Some(ours.clone())).await);
    assert!(!answers(&leased.daemon, ground.ca.certificate(), None).await, "no certificate was asked for");
    let other = Daemon { tls_name: Some("builder-9".into()), ..leased.daemon.clone() };
    assert!(!answers(&other, ground.ca.certificate(), Some(ours)).await, "it answers under another name");

    let pod = ground.pod(&leased.daemon.name).await;
    assert_ne!(pod["spec"]["nodeName"], "control");
    assert_eq!(pod["metadata"]["labels"]["fabrique/isolation"], isolation);
    build(&ground, &leased.daemon.name).await;

    placement.release(leased, Condition::Clean).await;
    assert!(placement.drain(Duration::from_secs(10)).await);
}

/// A Dockerfile with a step, by the daemon's own command line.
async fn build(ground: &Ground, pod: &str) {
    let dockerfile = format!("FROM {}\nRUN id && echo built > /made\n", ground.cluster.images().busybox);
    let script = r#"mkdir -p /tmp/context && printf '%s' "$1" > /tmp/context/Dockerfile && \
        for socket in /run/buildkit /run/user/1000/buildkit; do \
          [ -S $socket/buildkitd.sock ] && export BUILDKIT_HOST=unix://$socket/buildkitd.sock; done; \
        buildctl debug workers -v && \
        buildctl build --progress plain --frontend dockerfile.v0 --local context=/tmp/context \
          --local dockerfile=/tmp/context --output type=image,name=registry:80/trial/made,push=true 2>&1"#;
    let output = ground.kubectl(&["exec", pod, "--", "bash", "-ec", script, "bash", &dockerfile]).await;
    println!("{output}");
    assert!(output.contains("pushing manifest"), "{output}");
}

#[tokio::test]
async fn a_cold_pod_in_a_user_namespace_is_leased_and_builds() {
    a_cold_pod_is_leased_and_builds("userns").await;
}

#[tokio::test]
async fn a_cold_rootless_pod_is_leased_and_builds() {
    a_cold_pod_is_leased_and_builds("rootless").await;
}

#[tokio::test]
async fn a_warm_daemon_costs_two_requests_and_is_adopted_after_a_restart() {
    let Some(ground) = Ground::with_policies(isolation()).await else { return };
    let placement = ground.placement("worker-1").await;
    let first = lease(&placement, "citation").await;
    placement.release(first.clone(), Condition::Clean).await;
    assert!(placement.drain(Duration::from_secs(10)).await);

    let before = ground.requests();
    let second = lease(&placement, "citation").await;
    placement.release(second.clone(), Condition::Clean).await;
    assert!(placement.drain(Duration::from_secs(10)).await);
    assert_eq!(second.daemon, first.daemon);
    eventually("the audit log", async || ground.requests() >= before + 2).await;
    assert_eq!(ground.requests() - before, 2, "claim and release");

    drop(placement);
    let restarted = ground.placement("worker-1").await;
    let third = lease(&restarted, "citation").await;
    assert_eq!(third.daemon, first.daemon);
    assert_eq!(ground.pods().await, ["builder-0"]);
    let pod = ground.pod("builder-0").await;
    assert_eq!(pod["metadata"]["annotations"]["fabrique/builds"], "3");
}

#[tokio::test]
async fn two_workers_never_hold_one_daemon_and_share_the_bound() {
    let Some(ground) = Ground::with_policies(isolation()).await else { return };
    let (one, two) = (ground.placement("worker-1").await, ground.placement("worker-2").await);
    let (first, second) = tokio::join!(lease(&one, "citation"), lease(&two, "citation"));
    assert_ne!(first.daemon.name, second.daemon.name);
    let full = two.acquire(&need("citation", 3)).await.unwrap();
    assert!(matches!(full, Placed::Full(_)), "{full:?}");
    assert_eq!(ground.pods().await.len(), 2);
    // What one gives back the other gets.
    let (third, ()) = tokio::join!(lease(&two, "citation"), one.release(first.clone(), Condition::Clean));
    assert_eq!(third.daemon, first.daemon);
}

#[tokio::test]
async fn what_a_dead_worker_held_is_recycled_and_a_doubt_too() {
    let Some(ground) = Ground::with_policies(isolation()).await else { return };
    let dead = ground.placement("worker-1").await;
    let held = lease(&dead, "citation").await;
    let before = ground.uid(&held.daemon.name).await;
    drop(dead);
    let living = ground.placement("worker-2").await;
    let gone = async || ground.uid(&held.daemon.name).await != before;
    eventually("the abandoned daemon is gone", gone).await;
    let doubted = lease(&living, "citation").await;
    let uid = ground.uid(&doubted.daemon.name).await;
    living.release(doubted, Condition::Doubt).await;
    let fresh = lease(&living, "citation").await;
    assert_ne!(ground.uid(&fresh.daemon.name).await, uid);
}

/// Its worker was gone before it wrote the certificate. Its node waits for that, and whoever needs a daemon does not.
#[tokio::test]
async fn a_pod_without_its_certificate_keeps_nobody_waiting_until_it_is_overdue() {
    let Some(mut ground) = Ground::with_policies(isolation()).await else { return };
    (ground.settings.pool.total, ground.settings.pool.per_domain) = (3, 3);
    ground.settings.pool.start = Duration::from_mins(4);
    let placement = ground.placement("worker-1").await;
    let first = lease(&placement, "citation").await;
    let mut pod = ground.pod(&first.daemon.name).await;
    pod["metadata"] = json!({
        "name": "builder-1", "namespace": ground.namespace, "labels": pod["metadata"]["labels"],
        "annotations": pod["metadata"]["annotations"], "ownerReferences": pod["metadata"]["ownerReferences"],
    });
    pod["metadata"]["labels"]["fabrique/seat"] = json!("1");
    pod["metadata"]["annotations"]["fabrique/since"] = json!("1");
    for claim in ["fabrique/claim", "fabrique/claim-limit", "fabrique/apps", "fabrique/builds"] {
        pod["metadata"]["annotations"].as_object_mut().unwrap().remove(claim);
    }
    pod.as_object_mut().unwrap().remove("status");
    pod["spec"].as_object_mut().unwrap().remove("nodeName");
    let volumes = pod["spec"]["volumes"].as_array_mut().unwrap();
    let certificate = volumes.iter_mut().find(|volume| volume["secret"].is_object()).unwrap();
    certificate["secret"]["secretName"] = json!("builder-1-nobodys");
    ground.cluster.apply(&pod.to_string()).await.unwrap();
    let stuck = ground.uid("builder-1").await;

    let next = lease_for(&placement, need("other", 180)).await;
    assert_eq!(next.daemon.name, "builder-2");
    assert_eq!(ground.uid("builder-1").await, stuck, "it is not overdue yet");
}
