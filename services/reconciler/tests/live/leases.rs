//! Apps whose holders went away without a word.

use std::time::{Duration, Instant};

use fabrique_bus::Bus;
use fabrique_core::id::{AppName, Digest};
use fabrique_core::work::WorkRecord;
use fabrique_ports::bus::Board as _;
use fabrique_ports::records::Swap;
use fabrique_reconciler::{Config, Depth};

use crate::{Cluster, bus, name, woken};

const LEASE: Duration = Duration::from_secs(5);

/// Claims an app as a worker does; answers with what is stored, and where.
async fn claim(worker: &Bus, app: &AppName, holder: &str) -> (WorkRecord, u64) {
    let (_, record, revision) = worker.work_of(app).await.unwrap();
    let record = record.claimed_by(holder);
    let swap = worker.swap_work(app, &record, revision).await.unwrap();
    let Swap::Done(revision) = swap else { panic!("somebody else was quicker") };
    (record, revision)
}

#[tokio::test]
async fn a_sweep_alone_waits_for_the_lease_and_wakes_the_app_of_a_silent_holder_by_its_name() {
    let cluster = Cluster::with("reconciler", Config { lease: LEASE, ..Config::default() }).await;
    let digest = Digest::of(b"an image");
    for app in ["silent", "working", "idle"] {
        let repo = cluster.register(app, app).await;
        cluster.deploy(app, app, &repo.head().await.unwrap(), &digest).await;
    }
    cluster.publish().await;
    let alone = async || {
        let started = Instant::now();
        let sweep = cluster.reconciler.sweep_alone(Depth::Heads).await.unwrap();
        (sweep, started.elapsed())
    };
    let (sweep, took) = alone().await;
    assert_eq!(woken(&sweep), [""; 0]);
    assert!(took < LEASE, "nobody is waited for: {took:?}");

    let worker = bus(&cluster.bed, "worker").await;
    claim(&worker, &name("silent"), "worker-9").await;
    let (record, mut revision) = claim(&worker, &name("working"), "worker-1").await;
    let renewing = async {
        loop {
            tokio::time::sleep(LEASE / 10).await;
            match worker.swap_work(&name("working"), &record, revision).await.unwrap() {
                Swap::Done(newer) => revision = newer,
                Swap::Lost => panic!("nobody else writes"),
            }
        }
    };
    let (wanted, _, _) = cluster.admin.work_of(&name("silent")).await.unwrap();
    let (sweep, took) = tokio::select! {
        swept = alone() => swept,
        () = renewing => unreachable!("it goes on for ever"),
    };
    assert_eq!(woken(&sweep), ["silent"]);
    assert!(sweep.woken[0].reason.starts_with("worker-9 holds it and has not moved for "), "{sweep:?}");
    assert!(took >= LEASE, "{took:?}");
    assert!(cluster.admin.work_of(&name("silent")).await.unwrap().0 > wanted, "its wake is durable");
}
