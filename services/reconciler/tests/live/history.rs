//! Attempts that nobody ended.

use std::time::Duration;

use fabrique_core::failure::FailureKind;
use fabrique_core::id::{AppName, BuildId, BuildKey, Digest, Revision};
use fabrique_core::memory::{Built, Memory, Running};
use fabrique_core::time::Timestamp;
use fabrique_ports::Ambient as _;
use fabrique_ports::bus::Board as _;
use fabrique_ports::records::{BuildEntry, BuildHistory as _, BuildPhase, Logs as _, Memories as _, Swap};
use fabrique_reconciler::{Closed, Depth};
use futures::StreamExt as _;

use crate::{Clock, Cluster, name};

const GONE: &str = "its worker went away";

fn revision() -> Revision {
    Revision::parse(&"1".repeat(40)).unwrap()
}

fn key() -> BuildKey {
    BuildKey::parse(&"ab".repeat(32)).unwrap()
}

/// Leaves an attempt at `app` in the history that was queued an hour ago.
async fn leave(cluster: &Cluster, app: &AppName, phase: BuildPhase) -> BuildEntry {
    let entry = BuildEntry {
        build: BuildId::new(app, &Clock.ulid()).unwrap(),
        app: app.clone(),
        key: key(),
        revision: revision(),
        reason: "it is not built yet".to_owned(),
        phase,
        daemon: None,
        queued: Timestamp(Clock.now().0 - 3_600_000),
        ended: None,
        egress: None,
    };
    cluster.admin.put_build(&entry).await.unwrap();
    entry
}

/// Without any app: what is left over is all there is.
async fn empty(role: &str) -> Cluster {
    let cluster = Cluster::ending_attempts_as(role).await;
    cluster.apps.write("README.md", "nobody is registered\n").await.unwrap();
    cluster.publish().await;
    cluster
}

async fn remember(cluster: &Cluster, app: &AppName, memory: &Memory) {
    assert!(matches!(cluster.admin.swap_memory(app, memory, 0).await.unwrap(), Swap::Done(_)));
}

#[tokio::test]
async fn an_attempt_whose_worker_died_and_whose_app_nobody_claims_is_ended_once() {
    let cluster = empty("reconciler").await;
    let [gone, built, young, running, held] = ["gone", "built", "young", "running", "held"].map(name);
    let lost = leave(&cluster, &gone, BuildPhase::Building).await;
    cluster.admin.append_log(&lost.build, &["the last words".to_owned()]).await.unwrap();
    let following = cluster.admin.read_log(&lost.build, true).await.unwrap();
    let digest = Digest::of(b"an image");
    let recorded = leave(&cluster, &built, BuildPhase::Building).await;
    let image =
        Built { build: recorded.build.clone(), key: key(), revision: revision(), digest: digest.clone() };
    remember(&cluster, &built, &Memory { built: Some(image), ..Memory::default() }).await;

    let fresh = leave(&cluster, &young, BuildPhase::Queued).await;
    cluster.admin.put_build(&BuildEntry { queued: Clock.now(), ..fresh }).await.unwrap();
    let under_way = leave(&cluster, &running, BuildPhase::Building).await;
    let attempt = Running {
        build: under_way.build.clone(),
        key: key(),
        revision: revision(),
        token: 1,
        started: under_way.queued,
        pushed: false,
    };
    remember(&cluster, &running, &Memory { running: Some(attempt), ..Memory::default() }).await;
    leave(&cluster, &held, BuildPhase::Pushed { digest: digest.clone() }).await;
    let (_, record, at) = cluster.admin.work_of(&held).await.unwrap();
    let claimed = cluster.admin.swap_work(&held, &record.claimed_by("worker"), at).await.unwrap();
    assert!(matches!(claimed, Swap::Done(_)));

    assert_eq!(cluster.sweep(Depth::Heads).await.0.closed, [], "the history is read by full sweeps only");
    let (mut sweep, _) = cluster.sweep(Depth::Full).await;
    assert_eq!(sweep.findings, []);
    sweep.closed.sort_by(|one, other| one.build.cmp(&other.build));
    let failed = BuildPhase::Failed { kind: FailureKind::Infrastructure, message: GONE.to_owned() };
    let not_committed = BuildPhase::NotCommitted { digest, reason: GONE.to_owned() };
    let expected = [
        Closed { build: recorded.build, phase: not_committed },
        Closed { build: lost.build.clone(), phase: failed.clone() },
    ];
    assert_eq!(sweep.closed, expected);
    let shown = cluster.admin.build(&lost.build).await.unwrap().unwrap();
    assert_eq!((shown.phase, shown.ended.is_some()), (failed, true));
    let followed = tokio::time::timeout(Duration::from_secs(10), following.count()).await;
    assert_eq!(followed.unwrap(), 1, "who follows the log has its line and its end");
    for app in [&young, &running, &held] {
        let left = cluster.admin.builds(Some(app), 1).await.unwrap();
        assert!(!left[0].phase.is_final(), "{left:?}");
    }
    assert_eq!(cluster.sweep(Depth::Full).await.0.closed, []);
}

#[tokio::test]
async fn a_sweep_that_may_not_write_the_history_says_which_right_it_lacks() {
    let cluster = empty("operator").await;
    let lost = leave(&cluster, &name("gone"), BuildPhase::Building).await;
    let (sweep, _) = cluster.sweep(Depth::Full).await;
    assert_eq!((sweep.closed, sweep.failed), (vec![], vec![]));
    let [finding] = &sweep.findings[..] else { panic!("{:?}", sweep.findings) };
    assert!(
        finding.remedy.contains("publish to `$KV.FABRIQUE_BUILDS.>` and `fabrique_log.*`"),
        "{finding:?}"
    );
    assert_eq!(cluster.admin.build(&lost.build).await.unwrap(), Some(lost));
}
