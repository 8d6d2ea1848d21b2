//! Signed nonsense of every kind.

use std::sync::Arc;

use fabrique_receiver::Receiver;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tower::ServiceExt as _;

use crate::nats::{Nats, connect};
use crate::support::{FakeRegistrations, SECRET, dependencies, push, quick, signature};

fn registrations() -> Arc<FakeRegistrations> {
    FakeRegistrations::with(&[("citation", "atlas/citation", "main")])
}

#[tokio::test]
async fn signed_garbage_is_400_and_says_why_without_repeating_it_raw() {
    let nats = Nats::start().await;
    let receiver = nats.receiver(quick(), registrations()).await;
    let mut hostile_ref = push("atlas/citation", "main");
    hostile_ref["after"] = "--upload-pack=touch /tmp/x".into();
    for body in [
        b"".to_vec(),
        b"{".to_vec(),
        vec![0xff; 1000],
        b"[[[[[[".repeat(10_000),
        b"{\"ref\": \"\\u001b[31m\", \"before\": 1}".to_vec(),
        push("../../etc/passwd", "main").to_string().into_bytes(),
        hostile_ref.to_string().into_bytes(),
    ] {
        let (status, answer) = receiver.send(receiver.signed("push", SECRET, body)).await;
        assert_eq!((status, answer["status"].as_str()), (400, Some("malformed")));
        assert!(!answer["reason"].as_str().unwrap().chars().any(char::is_control), "{answer}");
    }
    assert_eq!(nats.wakes().await, 0);
}

/// Sends signed bodies through the routes without a connection, as many as there are cases, to `judge` their statuses.
fn every<S>(bodies: S, judge: impl Fn(u16) -> bool)
where
    S: Strategy<Value = (String, Vec<u8>)>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (router, _nats) = runtime.block_on(async {
        let nats = Nats::start().await;
        let bus = Arc::new(connect(&nats.bed, "receiver").await);
        (Receiver::new(quick(), dependencies(bus, registrations())).unwrap().router(), nats)
    });
    let mut runner = TestRunner::new(ProptestConfig::with_cases(64));
    let outcome = runner.run(&bodies, |(event, body)| {
        let request = http::Request::post("/webhook")
            .header("content-type", "application/json")
            .header("x-gitea-event", event)
            .header("x-gitea-signature", signature(SECRET, &body))
            .body(axum::body::Body::from(body))
            .unwrap();
        let status = runtime.block_on(router.clone().oneshot(request)).unwrap().status().as_u16();
        prop_assert!(judge(status), "{status}");
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn any_signed_body_is_answered_and_never_a_fault() {
    let bodies = ("[a-z_]{0,12}", prop::collection::vec(any::<u8>(), 0..512));
    every(bodies, |status| matches!(status, 200 | 400));
}

#[test]
fn any_reference_is_accepted_ignored_or_refused() {
    let bodies = (".{0,60}", "(atlas/citation|.{0,30})").prop_map(|(reference, repo)| {
        let mut body = push(&repo, "main");
        body["ref"] = format!("refs/heads/{reference}").into();
        ("push".to_owned(), body.to_string().into_bytes())
    });
    every(bodies, |status| matches!(status, 200 | 202 | 400));
}
