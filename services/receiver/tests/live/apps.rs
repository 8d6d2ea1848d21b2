//! Reading the registrations again: when, how often, and who is woken for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use serde_json::json;

use crate::support::{FakeBus, FakeRegistrations, Running, app, quick};

async fn start(apps: &Arc<FakeRegistrations>) -> (Running, Arc<FakeBus>) {
    let bus = Arc::new(FakeBus::default());
    (Running::start(quick(), Arc::clone(&bus), Arc::clone(apps)).await, bus)
}

#[tokio::test]
async fn an_unknown_repository_is_looked_up_once_more_before_it_is_ignored() {
    let apps = FakeRegistrations::with(&[("citation", "atlas/citation", "main")]);
    let (receiver, bus) = start(&apps).await;
    let (status, body) = receiver.push("atlas/new", "main").await;
    assert_eq!((status, &body["reason"]), (200, &json!("no app is registered for atlas/new")));
    assert_eq!(apps.count(), 1);
    apps.register("new", "atlas/new", "main");
    assert_eq!(
        receiver.push("atlas/new", "main").await,
        (202, json!({ "status": "accepted", "woken": ["new"] }))
    );
    assert_eq!((apps.count(), bus.wakes_of("new")), (2, 1));
    receiver.push("atlas/new", "main").await;
    receiver.push("atlas/citation", "other").await;
    assert_eq!(apps.count(), 2, "known repositories are not a reason to read");
}

#[tokio::test]
async fn a_push_to_cluster_apps_reads_the_registrations_and_wakes_what_it_touches() {
    let apps =
        FakeRegistrations::with(&[("citation", "atlas/citation", "main"), ("graph", "atlas/graph", "main")]);
    let (receiver, bus) = start(&apps).await;
    assert_eq!(receiver.push("cluster/apps", "main").await.1["reason"], "it changes no app");
    apps.touch("graph");
    apps.register("new", "atlas/new", "main");
    let (status, body) = receiver.push("Cluster/Apps", "main").await;
    assert_eq!((status, &body["woken"]), (202, &json!(["graph", "new"])));
    assert_eq!(bus.wakes_of("citation"), 0);
    assert!(bus.causes.lock().unwrap().iter().all(|cause| cause.kind == "apps"));
}

#[tokio::test]
async fn a_change_found_by_the_push_of_a_stranger_is_woken_too() {
    let apps = FakeRegistrations::with(&[("citation", "atlas/citation", "main")]);
    let (receiver, bus) = start(&apps).await;
    apps.touch("citation");
    assert_eq!(receiver.push("atlas/stranger", "main").await.1["woken"], json!(["citation"]));
    assert_eq!(receiver.push("cluster/apps", "main").await.1["reason"], "it changes no app");
    assert_eq!(bus.wakes_of("citation"), 1);
}

#[tokio::test]
async fn a_change_whose_wake_failed_is_woken_with_the_next_reading() {
    let apps =
        FakeRegistrations::with(&[("citation", "atlas/citation", "main"), ("graph", "atlas/graph", "main")]);
    let (receiver, bus) = start(&apps).await;
    bus.deaf.lock().unwrap().insert(app("citation"));
    apps.touch("citation");
    apps.touch("graph");
    assert_eq!(receiver.push("cluster/apps", "main").await.0, 503);
    bus.deaf.lock().unwrap().clear();
    assert_eq!(receiver.push("cluster/apps", "main").await.1["woken"], json!(["citation"]));
    assert_eq!(receiver.push("cluster/apps", "main").await.1["reason"], "it changes no app");
    assert_eq!((bus.wakes_of("citation"), bus.wakes_of("graph")), (1, 1));
}

#[tokio::test]
async fn a_hundred_strangers_at_once_share_a_few_readings() {
    let apps = FakeRegistrations::with(&[]);
    apps.slow.store(100, Ordering::SeqCst);
    let (receiver, _) = start(&apps).await;
    let repos: Vec<String> = (0..100).map(|number| format!("atlas/stranger-{number}")).collect();
    let answers = join_all(repos.iter().map(|repo| receiver.push(repo, "main"))).await;
    assert!(answers.iter().all(|(status, _)| *status == 200));
    assert!(apps.count() <= 10, "{} readings", apps.count());
}

#[tokio::test]
async fn registrations_that_cannot_be_read_are_503_in_time() {
    let apps = FakeRegistrations::with(&[("citation", "atlas/citation", "main")]);
    let (receiver, bus) = start(&apps).await;
    apps.broken.store(true, Ordering::SeqCst);
    let (status, body) = receiver.push("atlas/new", "main").await;
    assert_eq!((status, body["status"].as_str()), (503, Some("unavailable")));
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202, "known apps need no reading");
    apps.broken.store(false, Ordering::SeqCst);
    apps.slow.store(60_000, Ordering::SeqCst);
    let started = std::time::Instant::now();
    let (status, body) = receiver.push("cluster/apps", "main").await;
    assert_eq!((status, &body["reason"]), (503, &json!("the registrations are still being read")));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(bus.wakes_of("citation"), 1);
}
