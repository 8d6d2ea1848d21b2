//! Every way a delivery can be answered, and the paths around it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fabrique_bed::wait_until;
use serde_json::json;

use crate::nats::Nats;
use crate::support::{FakeRegistrations, FaultyBus, OLD_SECRET, Running, app, push, quick, read};

fn registrations() -> Arc<FakeRegistrations> {
    FakeRegistrations::with(&[
        ("citation", "atlas/atlas", "main"),
        ("graph", "atlas/atlas", "main"),
        ("next", "atlas/atlas", "next"),
    ])
}

async fn citation() -> (Running, Nats, Arc<FakeRegistrations>) {
    let (nats, apps) = (Nats::start().await, registrations());
    (nats.receiver(quick(), Arc::clone(&apps)).await, nats, apps)
}

/// The same on a bus with faults.
async fn faulty() -> (Running, Arc<FaultyBus>) {
    let bus = Arc::new(FaultyBus::default());
    (Running::start(quick(), Arc::clone(&bus), registrations()).await, bus)
}

#[tokio::test]
async fn a_push_to_a_shared_repository_wakes_each_of_its_apps_exactly_once() {
    let (receiver, nats, _) = citation().await;
    let (status, body) = receiver.push("Atlas/ATLAS", "main").await;
    assert_eq!((status, body), (202, json!({ "status": "accepted", "woken": ["citation", "graph"] })));
    let causes = nats.causes_of("citation").await;
    assert_eq!((causes.len(), nats.wakes_of("graph").await, nats.wakes().await), (1, 1, 2));
    let cause = &causes[0];
    assert_eq!((cause.kind.as_str(), cause.detail.as_str()), ("push", "push to main of Atlas/ATLAS"));
}

#[tokio::test]
async fn other_methods_paths_and_content_types_are_refused_before_the_body() {
    let (receiver, nats, _) = citation().await;
    let get = receiver.client.get(receiver.url("/webhook")).send().await.unwrap();
    assert_eq!(get.status(), 405);
    assert_eq!(get.headers()["allow"], "POST");
    let elsewhere = receiver.client.post(receiver.url("/webhook/x")).send().await.unwrap();
    assert_eq!(elsewhere.status(), 404);
    for kind in ["application/x-www-form-urlencoded", "text/json", "", "application/jsonx"] {
        let request = receiver.client.post(receiver.url("/webhook")).header("content-type", kind).body("{}");
        assert_eq!(receiver.send(request).await.0, 415, "{kind:?}");
    }
    let bare = receiver.client.post(receiver.url("/webhook"));
    assert_eq!(receiver.send(bare).await.0, 415);
    let body = push("atlas/atlas", "next").to_string().into_bytes();
    let with_charset = receiver.signed("push", OLD_SECRET, body).headers(
        [(http_name("content-type"), "Application/JSON; charset=utf-8".parse().unwrap())]
            .into_iter()
            .collect(),
    );
    assert_eq!(receiver.send(with_charset).await.0, 202);
    assert_eq!(nats.wakes_of("next").await, 1);
}

fn http_name(name: &'static str) -> reqwest::header::HeaderName {
    reqwest::header::HeaderName::from_static(name)
}

#[tokio::test]
async fn an_unsigned_delivery_is_refused_whatever_other_headers_say_and_before_any_json() {
    let (receiver, nats, _) = citation().await;
    let webhook = || {
        let request = receiver.client.post(receiver.url("/webhook"));
        request.header("content-type", "application/json").header("x-gitea-event", "push")
    };
    let good = crate::support::signature("s3cret", b"not json");
    for request in [
        webhook().body("not json"),
        webhook().header("x-gitea-signature", "").body("not json"),
        webhook().header("x-hub-signature-256", format!("sha256={good}")).body("not json"),
        webhook().header("x-gogs-signature", &good).body("not json"),
    ] {
        assert_eq!(
            receiver.send(request).await,
            (
                401,
                json!({
                    "status": "unsigned", "reason": "the forge signed nothing: set a secret in the webhook",
                })
            )
        );
    }
    for bad in ["00".repeat(32), "zz".repeat(32), good.to_uppercase()] {
        let (status, body) = receiver.send(webhook().header("x-gitea-signature", bad).body("not json")).await;
        assert_eq!((status, body["status"].as_str()), (401, Some("bad_signature")));
    }
    let signed = webhook().header("x-gitea-signature", good).body("not json");
    assert_eq!(receiver.send(signed).await.0, 400);
    assert_eq!(nats.wakes().await, 0);
}

#[tokio::test]
async fn either_of_two_secrets_is_accepted() {
    let (receiver, nats, _) = citation().await;
    for secret in ["s3cret", OLD_SECRET] {
        let body = push("atlas/atlas", "next").to_string().into_bytes();
        assert_eq!(receiver.send(receiver.signed("push", secret, body)).await.0, 202);
    }
    let body = push("atlas/atlas", "next").to_string().into_bytes();
    assert_eq!(receiver.send(receiver.signed("push", "another", body)).await.0, 401);
    assert_eq!(nats.wakes_of("next").await, 2);
}

#[tokio::test]
async fn what_starts_no_work_is_ignored_with_its_reason() {
    let (receiver, nats, apps) = citation().await;
    let mut tag = push("atlas/atlas", "main");
    tag["ref"] = json!("refs/tags/v1");
    let mut deleted = push("atlas/atlas", "main");
    deleted["after"] = json!("0".repeat(40));
    let mut test = push("atlas/atlas", "main");
    test["before"] = test["after"].clone();
    for (body, reason) in [
        (tag, "v1 is a tag"),
        (deleted, "the branch main was deleted"),
        (test, "test delivery"),
        (push("atlas/atlas", "feature/x"), "no app follows feature/x of atlas/atlas"),
        (push("cluster/apps", "other"), "no app is registered for cluster/apps"),
    ] {
        let answer = receiver.send(receiver.delivery(&body)).await;
        assert_eq!(answer, (200, json!({ "status": "ignored", "reason": reason })));
    }
    let create = json!({ "ref": "main", "ref_type": "branch", "repository": { "full_name": "atlas/atlas" } });
    let create = receiver.signed("create", "s3cret", create.to_string().into_bytes());
    assert_eq!(receiver.send(create).await.1["reason"], "the event create starts no work");
    assert_eq!(nats.wakes().await, 0);
    assert_eq!(apps.count(), 1, "only the unknown repository is a reason to read again");
}

#[tokio::test]
async fn a_test_delivery_wakes_nobody_and_shows_as_an_event() {
    let (receiver, nats, _) = citation().await;
    let mut test = push("atlas/nowhere", "main");
    test["before"] = test["after"].clone();
    assert_eq!(receiver.send(receiver.delivery(&test)).await.0, 200);
    let (event, _) = &nats.deliveries(1).await[0];
    assert_eq!(event["repo"], "atlas/nowhere");
    assert_eq!((&event["reference"], &event["after"]), (&json!("refs/heads/main"), &test["after"]));
    assert_eq!(event["delivery"], "f6266f16-1bf3-46a5-9ea4-602e06ead473");
    assert_eq!((event.get("woken"), &event["ignored"]), (None, &json!("test delivery")));
    assert_eq!(nats.wakes().await, 0);
}

#[tokio::test]
async fn a_replay_with_a_new_id_wakes_again() {
    let (receiver, nats, _) = citation().await;
    for id in ["f6266f16-1bf3-46a5-9ea4-602e06ead473", "c8699d35-922e-41a1-b69f-ae979e43f887"] {
        let mut request = receiver.delivery(&push("atlas/atlas", "next")).build().unwrap();
        request.headers_mut().insert("x-gitea-delivery", id.parse().unwrap());
        assert_eq!(receiver.client.execute(request).await.unwrap().status(), 202);
    }
    assert_eq!(nats.wakes_of("next").await, 2);
}

#[tokio::test]
async fn a_trace_goes_from_the_header_into_the_wake_and_the_event() {
    let (receiver, nats, _) = citation().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = receiver.delivery(&push("atlas/atlas", "next"));
    let request = request.header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    assert_eq!(receiver.send(request).await.0, 202);
    assert_eq!(receiver.push("atlas/atlas", "next").await.0, 202);
    let causes = nats.causes_of("next").await;
    let [continued, started] = [0, 1].map(|number| causes[number].trace.clone().unwrap());
    assert!(continued.starts_with(&format!("00-{trace}-")) && !continued.contains("00f067aa0ba902b7"));
    assert!(started.starts_with("00-") && !started.contains(trace));
    let told: Vec<_> = nats.deliveries(2).await.into_iter().map(|(_, trace)| trace.unwrap()).collect();
    assert_eq!(told, [continued, started]);
}

#[tokio::test]
async fn probes_say_what_is_missing() {
    let nats = Nats::start().await;
    let apps = FakeRegistrations::with(&[]);
    apps.loaded.store(false, Ordering::SeqCst);
    apps.broken.store(true, Ordering::SeqCst);
    let receiver = nats.receiver(quick(), Arc::clone(&apps)).await;
    let ask = async |path| read(receiver.client.get(receiver.url(path)).send().await.unwrap()).await;
    assert_eq!(ask("/livez").await.0, 200);
    assert_eq!(ask("/metrics").await, (200, json!("up 1\n")));
    assert_eq!(ask("/readyz").await, (503, json!("the registrations are not read yet\n")));
    receiver.connected.store(false, Ordering::SeqCst);
    assert_eq!(ask("/readyz").await, (503, json!("not connected to the bus\n")));
    receiver.connected.store(true, Ordering::SeqCst);
    apps.broken.store(false, Ordering::SeqCst);
    let ready = async || (ask("/readyz").await.0 == 200).then_some(());
    wait_until("the first reading, tried until it succeeds", Duration::from_secs(20), ready).await.unwrap();
}

#[tokio::test]
async fn one_wake_without_acknowledgement_is_503_and_the_others_are_still_sent() {
    let (receiver, bus) = faulty().await;
    bus.deaf.lock().unwrap().insert(app("citation"));
    let started = std::time::Instant::now();
    let (status, body) = receiver.push("atlas/atlas", "main").await;
    assert_eq!((status, body["status"].as_str()), (503, Some("unavailable")));
    assert!(body["reason"].as_str().unwrap().contains("citation"), "{body}");
    assert!(started.elapsed() < Duration::from_secs(2));
    assert_eq!((bus.wakes_of("citation"), bus.wakes_of("graph")), (0, 1));
}

#[tokio::test]
async fn no_answer_comes_before_the_acknowledgement_and_none_waits_for_events() {
    let (receiver, bus) = faulty().await;
    bus.slow.store(200, Ordering::SeqCst);
    bus.events_stuck.store(true, Ordering::SeqCst);
    let started = std::time::Instant::now();
    assert_eq!(receiver.push("atlas/atlas", "main").await.0, 202);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?}");
    assert!(
        took < Duration::from_millis(390),
        "two apps are woken at once and events are not waited for: {took:?}"
    );
}
