//! Signed nonsense of every kind.

use std::sync::Arc;

use fabrique_receiver::Receiver;
use proptest::prelude::*;
use tower::ServiceExt as _;

use crate::support::{FakeBus, FakeRegistrations, Running, SECRET, dependencies, push, quick, signature};

#[tokio::test]
async fn signed_garbage_is_400_and_says_why_without_repeating_it_raw() {
    let bus = Arc::new(FakeBus::default());
    let apps = FakeRegistrations::with(&[("citation", "atlas/citation", "main")]);
    let receiver = Running::start(quick(), Arc::clone(&bus), apps).await;
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
    assert!(bus.woken.lock().unwrap().is_empty());
}

/// The status of one signed body, through the routes without a connection.
fn status_of(event: &str, body: Vec<u8>) -> u16 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let apps = FakeRegistrations::with(&[("citation", "atlas/citation", "main")]);
        let receiver = Receiver::new(quick(), dependencies(Arc::new(FakeBus::default()), apps)).unwrap();
        let request = http::Request::post("/webhook")
            .header("content-type", "application/json")
            .header("x-gitea-event", event)
            .header("x-gitea-signature", signature(SECRET, &body))
            .body(axum::body::Body::from(body))
            .unwrap();
        receiver.router().oneshot(request).await.unwrap().status().as_u16()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_signed_body_is_answered_and_never_a_fault(
        event in "[a-z_]{0,12}", body in prop::collection::vec(any::<u8>(), 0..512),
    ) {
        let status = status_of(&event, body);
        prop_assert!(status == 400 || status == 200, "{status}");
    }

    #[test]
    fn any_reference_is_accepted_ignored_or_refused(reference in ".{0,60}", repo in "(atlas/citation|.{0,30})") {
        let mut body = push(&repo, "main");
        body["ref"] = format!("refs/heads/{reference}").into();
        let status = status_of("push", body.to_string().into_bytes());
        prop_assert!(matches!(status, 200 | 202 | 400), "{status}");
    }
}
