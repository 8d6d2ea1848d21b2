//! Reading the registrations again: when, how often, and who is woken for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabrique_bed::wait_until;
use fabrique_receiver::ReceiverConfig;
use futures::future::join_all;
use serde_json::json;

use crate::nats::Nats;
use crate::support::{FakeRegistrations, FaultyBus, Running, app, push, quick};

const PATIENCE: Duration = Duration::from_secs(30);

async fn start(apps: &Arc<FakeRegistrations>) -> (Running, Nats) {
    let nats = Nats::start().await;
    (nats.receiver(quick(), Arc::clone(apps)).await, nats)
}

#[tokio::test]
async fn an_unknown_repository_is_looked_up_once_more_before_it_is_ignored() {
    let apps = FakeRegistrations::with(&[("citation", "atlas/citation", "main")]);
    let (receiver, nats) = start(&apps).await;
    let (status, body) = receiver.push("atlas/new", "main").await;
    assert_eq!((status, &body["reason"]), (200, &json!("no app is registered for atlas/new")));
    assert_eq!(apps.count(), 1);
    apps.register("new", "atlas/new", "main");
    assert_eq!(
        receiver.push("atlas/new", "main").await,
        (202, json!({ "status": "accepted", "woken": ["new"] }))
    );
    assert_eq!((apps.count(), nats.wakes_of("new").await), (2, 1));
    receiver.push("atlas/new", "main").await;
    receiver.push("atlas/citation", "other").await;
    assert_eq!(apps.count(), 2, "known repositories are not a reason to read");
}

#[tokio::test]
async fn a_push_to_cluster_apps_reads_the_registrations_and_wakes_what_it_touches() {
    let apps =
        FakeRegistrations::with(&[("citation", "atlas/citation", "main"), ("graph", "atlas/graph", "main")]);
    let (receiver, nats) = start(&apps).await;
    assert_eq!(receiver.push("cluster/apps", "main").await.1["reason"], "it changes no app");
    apps.touch("graph");
    apps.register("new", "atlas/new", "main");
    let (status, body) = receiver.push("Cluster/Apps", "main").await;
    assert_eq!((status, &body["woken"]), (202, &json!(["graph", "new"])));
    assert_eq!(nats.wakes().await, 2);
    for app in ["graph", "new"] {
        assert_eq!(nats.causes_of(app).await[0].kind, "apps");
    }
}

#[tokio::test]
async fn a_change_found_by_the_push_of_a_stranger_is_woken_too() {
    let apps = FakeRegistrations::with(&[("citation", "atlas/citation", "main")]);
    let (receiver, nats) = start(&apps).await;
    apps.touch("citation");
    assert_eq!(receiver.push("atlas/stranger", "main").await.1["woken"], json!(["citation"]));
    assert_eq!(receiver.push("cluster/apps", "main").await.1["reason"], "it changes no app");
    assert_eq!(nats.wakes_of("citation").await, 1);
}

#[tokio::test]
async fn a_change_whose_wake_failed_is_woken_with_the_next_reading() {
    let apps =
        FakeRegistrations::with(&[("citation", "atlas/citation", "main"), ("graph", "atlas/graph", "main")]);
    let bus = Arc::new(FaultyBus::default());
    let receiver = Running::start(quick(), Arc::clone(&bus), Arc::clone(&apps)).await;
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
async fn a_push_that_the_first_reading_had_seen_wakes_what_it_changed_until_that_is_durable() {
    let apps =
        FakeRegistrations::with(&[("citation", "atlas/citation", "main"), ("graph", "atlas/graph", "main")]);
    let bus = Arc::new(FaultyBus::default());
    let receiver = Running::start(quick(), Arc::clone(&bus), Arc::clone(&apps)).await;
    let late = push("cluster/apps", "main");
    apps.had_seen(late["after"].as_str().unwrap(), "citation");
    bus.deaf.lock().unwrap().insert(app("citation"));
    assert_eq!(receiver.send(receiver.delivery(&late)).await.0, 503);
    bus.deaf.lock().unwrap().clear();
    let mut newer = late.clone();
    newer["after"] = json!("c4709956aa2a023ba0c39bf7f72258193ca1088b");
    assert_eq!(receiver.send(receiver.delivery(&newer)).await.1["woken"], json!(["citation"]));
    assert_eq!(receiver.send(receiver.delivery(&newer)).await.1["reason"], "it changes no app");
    assert_eq!((bus.wakes_of("citation"), bus.wakes_of("graph")), (1, 0));
}

#[tokio::test]
async fn a_change_that_is_known_is_woken_although_the_rest_cannot_be_read() {
    let apps =
        FakeRegistrations::with(&[("citation", "atlas/citation", "main"), ("graph", "atlas/graph", "main")]);
    let bus = Arc::new(FaultyBus::default());
    let receiver = Running::start(quick(), Arc::clone(&bus), Arc::clone(&apps)).await;
    apps.touch("citation");
    apps.missed_broken.store(true, Ordering::SeqCst);
    let (status, body) = receiver.push("cluster/apps", "main").await;
    let reason = body["reason"].as_str().unwrap();
    assert!(status == 503 && reason.contains("the histories cannot be compared"), "{body}");
    assert_eq!(bus.wakes_of("citation"), 1, "a reading told of it, and tells no other delivery");
    apps.missed_broken.store(false, Ordering::SeqCst);
    assert_eq!(receiver.push("cluster/apps", "main").await.1["reason"], "it changes no app");

    // Told by a reading, and not woken by the delivery that asked for it.
    bus.deaf.lock().unwrap().insert(app("graph"));
    apps.touch("graph");
    assert_eq!(receiver.push("cluster/apps", "main").await.0, 503);
    bus.deaf.lock().unwrap().clear();
    apps.broken.store(true, Ordering::SeqCst);
    let (status, body) = receiver.push("atlas/stranger", "main").await;
    let reason = body["reason"].as_str().unwrap();
    assert!(status == 503 && reason.contains("the forge is away"), "{body}");
    assert_eq!((bus.wakes_of("citation"), bus.wakes_of("graph")), (1, 1));
}

#[tokio::test]
async fn a_hundred_strangers_at_once_share_a_few_readings() {
    let apps = FakeRegistrations::with(&[]);
    apps.slow.store(100, Ordering::SeqCst);
    let (receiver, _nats) = start(&apps).await;
    let repos: Vec<String> = (0..100).map(|number| format!("atlas/stranger-{number}")).collect();
    let answers = join_all(repos.iter().map(|repo| receiver.push(repo, "main"))).await;
    assert!(answers.iter().all(|(status, _)| *status == 200));
    assert!(apps.count() <= 10, "{} readings", apps.count());
}

#[tokio::test]
async fn registrations_that_cannot_be_read_are_503_in_time() {
    let apps = FakeRegistrations::with(&[("citation", "atlas/citation", "main")]);
    let (receiver, nats) = start(&apps).await;
    apps.broken.store(true, Ordering::SeqCst);
    let (status, body) = receiver.push("atlas/new", "main").await;
    assert_eq!((status, body["status"].as_str()), (503, Some("unavailable")));
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202, "known apps need no reading");
    apps.broken.store(false, Ordering::SeqCst);
    apps.slow.store(60_000, Ordering::SeqCst);
    let started = Instant::now();
    let (status, body) = receiver.push("cluster/apps", "main").await;
    assert_eq!((status, &body["reason"]), (503, &json!("the registrations are still being read")));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(nats.wakes_of("citation").await, 1);
}

#[tokio::test]
async fn a_push_that_was_refused_while_nothing_could_be_read_wakes_its_app_once_something_can() {
    let (receiver, nats, apps) = untold(Duration::from_millis(200)).await;
    apps.broken.store(true, Ordering::SeqCst);
    assert_eq!(receiver.push("atlas/graph", "main").await.0, 503);
    apps.register("graph", "atlas/graph", "main");
    apps.broken.store(false, Ordering::SeqCst);
    let woken = async || (nats.wakes_of("graph").await > 0).then_some(());
    wait_until("the wake of the app that was registered meanwhile", PATIENCE, woken).await.unwrap();
    assert_eq!(nats.causes_of("graph").await[0].detail, "push to main of atlas/graph");
    assert_eq!(nats.wakes().await, 1);
}

/// Registrations that another receiver is told of: here only the readings change anything.
async fn untold(age: Duration) -> (Running, Nats, Arc<FakeRegistrations>) {
    let apps = FakeRegistrations::with(&[("citation", "atlas/citation", "main")]);
    let nats = Nats::start().await;
    let receiver = nats.receiver(ReceiverConfig { reload_age: age, ..quick() }, Arc::clone(&apps)).await;
    (receiver, nats, apps)
}

#[tokio::test]
async fn an_app_that_a_push_missed_is_woken_once_the_registrations_are_read_again() {
    let (receiver, nats, apps) = untold(Duration::from_millis(200)).await;
    apps.register("graph", "atlas/citation", "main");
    assert_eq!(receiver.push("atlas/citation", "main").await.1["woken"], json!(["citation"]));
    let missed = async || (nats.wakes_of("graph").await > 0).then_some(());
    wait_until("the missed app's wake", PATIENCE, missed).await.unwrap();
    let cause = &nats.causes_of("graph").await[0];
    assert_eq!((cause.kind.as_str(), cause.detail.as_str()), ("push", "push to main of atlas/citation"));
    assert!(cause.named.is_some());

    apps.register("next", "atlas/citation", "next");
    let (status, answer) = receiver.push("atlas/citation", "next").await;
    assert_eq!((status, &answer["reason"]), (200, &json!("no app follows next of atlas/citation")));
    let missed = async || (nats.wakes_of("next").await > 0).then_some(());
    wait_until("the wake of the app on a new branch", PATIENCE, missed).await.unwrap();

    tokio::time::sleep(Duration::from_millis(1000)).await;
    assert_eq!(apps.count(), 2, "one reading for each, and none without a push");
    assert_eq!((nats.wakes().await, nats.wakes_of("citation").await), (3, 1));
}

/// A reading of `cluster/apps` beside the worker's first look would keep the push itself waiting.
#[tokio::test]
async fn a_push_after_a_long_silence_is_not_followed_by_a_reading_at_once() {
    let age = Duration::from_secs(1);
    let (receiver, nats, apps) = untold(age).await;
    receiver.push("atlas/stranger", "main").await;
    tokio::time::sleep(age + Duration::from_millis(100)).await;
    apps.register("graph", "atlas/citation", "main");
    let pushed = Instant::now();
    assert_eq!(receiver.push("atlas/citation", "main").await.1["woken"], json!(["citation"]));
    let read = async || (apps.count() > 1).then_some(());
    wait_until("the next reading", PATIENCE, read).await.unwrap();
    assert!(pushed.elapsed() >= age, "read {:?} after the push", pushed.elapsed());
    let missed = async || (nats.wakes_of("graph").await > 0).then_some(());
    wait_until("the missed app's wake", PATIENCE, missed).await.unwrap();
    assert_eq!(apps.count(), 2);
}

#[tokio::test]
async fn a_push_that_missed_an_app_is_looked_at_again_until_registrations_and_bus_answer() {
    let apps = FakeRegistrations::with(&[("citation", "atlas/citation", "main")]);
    let bus = Arc::new(FaultyBus::default());
    let config = ReceiverConfig { reload_age: Duration::from_millis(200), ..quick() };
    let receiver = Running::start(config, Arc::clone(&bus), Arc::clone(&apps)).await;
    apps.register("graph", "atlas/citation", "main");
    bus.deaf.lock().unwrap().insert(app("graph"));
    apps.broken.store(true, Ordering::SeqCst);
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202);
    let read = async |times| {
        let enough = async || (apps.count() >= times).then_some(());
        wait_until(&format!("{times} readings"), PATIENCE, enough).await.unwrap();
    };
    read(2).await;
    apps.broken.store(false, Ordering::SeqCst);
    read(apps.count() + 2).await;
    bus.deaf.lock().unwrap().clear();
    let woken = async || (bus.wakes_of("graph") > 0).then_some(());
    wait_until("the missed app's wake", PATIENCE, woken).await.unwrap();
    assert_eq!((bus.wakes_of("graph"), bus.wakes_of("citation")), (1, 1));
}

#[tokio::test]
async fn a_receiver_that_ends_looks_at_its_last_pushes_first() {
    let (receiver, nats, apps) = untold(Duration::from_secs(60)).await;
    apps.register("graph", "atlas/citation", "main");
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202);
    receiver.shutdown.cancel();
    receiver.served.await.unwrap().unwrap();
    assert_eq!((apps.count(), nats.wakes_of("graph").await), (1, 1));
}
