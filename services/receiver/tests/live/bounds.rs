//! What is too large, too slow or too much.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fabrique_bed::wait_until;
use fabrique_receiver::ReceiverConfig;
use futures::{StreamExt as _, stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::nats::Nats;
use crate::support::{FakeRegistrations, FaultyBus, Running, SECRET, push, quick, signature};

fn registrations() -> Arc<FakeRegistrations> {
    FakeRegistrations::with(&[("citation", "atlas/citation", "main")])
}

async fn start(config: ReceiverConfig) -> (Running, Nats) {
    let nats = Nats::start().await;
    (nats.receiver(config, registrations()).await, nats)
}

/// Bytes of a request's head for a raw connection, without the blank line.
fn head() -> String {
    "POST /webhook HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".to_owned()
}

async fn raw(receiver: &Running, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(receiver.address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream
}

/// Everything the server says until it closes.
async fn answer(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut said)).await.expect("the server closes");
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test]
async fn a_body_above_the_cap_is_413_with_and_without_a_length() {
    let (receiver, nats) = start(ReceiverConfig { body_timeout: Duration::from_secs(2), ..quick() }).await;
    let five_mib = vec![b' '; 5 << 20];
    assert_eq!(receiver.send(receiver.signed("push", SECRET, five_mib.clone())).await.0, 413);
    let chunks = stream::iter((0..80).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 64 << 10]))));
    let chunked = receiver
        .client
        .post(receiver.url("/webhook"))
        .header("content-type", "application/json")
        .body(reqwest::Body::wrap_stream(chunks));
    assert_eq!(receiver.send(chunked).await.0, 413);

    let lying = raw(&receiver, &format!("{}content-length: 99999999999\r\n\r\n", head())).await;
    assert!(answer(lying).await.starts_with("HTTP/1.1 4"));
    assert_eq!(nats.wakes().await, 0);
}

#[tokio::test]
async fn a_chunked_body_within_the_cap_is_as_good_as_any() {
    let (receiver, nats) = start(quick()).await;
    let body = push("atlas/citation", "main").to_string().into_bytes();
    let signature = signature(SECRET, &body);
    let pieces: Vec<_> =
        body.chunks(7).map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece))).collect();
    let request = receiver
        .client
        .post(receiver.url("/webhook"))
        .header("content-type", "application/json")
        .header("x-gitea-event", "push")
        .header("x-gitea-signature", signature)
        .body(reqwest::Body::wrap_stream(stream::iter(pieces)));
    assert_eq!(receiver.send(request).await.0, 202);
    assert_eq!(nats.wakes_of("citation").await, 1);
}

#[tokio::test]
async fn a_slow_body_is_408_and_a_body_that_breaks_off_wakes_nobody() {
    let (receiver, nats) = start(quick()).await;
    let slow = raw(&receiver, &format!("{}content-length: 100\r\n\r\n{{", head())).await;
    assert!(answer(slow).await.starts_with("HTTP/1.1 408"));
    let broken = raw(&receiver, &format!("{}transfer-encoding: chunked\r\n\r\nzz\r\n", head())).await;
    assert!(answer(broken).await.starts_with("HTTP/1.1 400"));
    drop(raw(&receiver, &format!("{}content-length: 100\r\n\r\n{{", head())).await);
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202);
    assert_eq!(nats.wakes_of("citation").await, 1);
}

#[tokio::test]
async fn slow_heads_are_cut_off_and_disturb_nobody() {
    let (receiver, _nats) = start(quick()).await;
    let mut slow = Vec::new();
    for _ in 0..200 {
        slow.push(raw(&receiver, "POST /webhook HT").await);
    }
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202);
    let started = Instant::now();
    for stream in slow {
        answer(stream).await;
    }
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn connections_above_the_most_wait_for_a_place() {
    let config = ReceiverConfig { max_connections: 2, header_timeout: Duration::from_secs(1), ..quick() };
    let (receiver, _nats) = start(config).await;
    let idle = [raw(&receiver, "").await, raw(&receiver, "").await];
    let started = Instant::now();
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202);
    assert!(started.elapsed() >= Duration::from_millis(500), "it waited until the idle ones were cut off");
    drop(idle);
}

#[tokio::test]
async fn deliveries_above_the_most_are_429_before_their_body_is_read() {
    let (receiver, nats) = start(ReceiverConfig { max_in_flight: 1, ..quick() }).await;
    let reading = raw(&receiver, &format!("{}content-length: 100\r\n\r\n{{", head())).await;
    let busy = async || {
        let stream =
            raw(&receiver, &format!("{}content-length: 100\r\nconnection: close\r\n\r\n", head())).await;
        answer(stream).await.starts_with("HTTP/1.1 429").then_some(())
    };
    wait_until("the second delivery to be refused", Duration::from_secs(5), busy).await.unwrap();
    assert!(answer(reading).await.starts_with("HTTP/1.1 408"));
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202, "the place is free again");
    assert_eq!(nats.wakes_of("citation").await, 1);
}

#[tokio::test]
async fn all_bodies_together_stay_within_their_memory() {
    // Long enough for a machine with other things to do to see the memory full.
    let body_timeout = Duration::from_secs(3);
    let config = ReceiverConfig { max_body: 1 << 20, max_buffered: 1 << 20, body_timeout, ..quick() };
    let (receiver, _nats) = start(config).await;
    let mut half = raw(&receiver, &format!("{}content-length: 900000\r\n\r\n", head())).await;
    half.write_all(&vec![b' '; 800_000]).await.unwrap();
    let body = vec![b' '; 500_000];
    let refused = async || {
        let (status, _) = receiver.send(receiver.signed("push", SECRET, body.clone())).await;
        (status == 429).then_some(())
    };
    wait_until("the memory to be full", body_timeout - Duration::from_millis(50), refused).await.unwrap();
    assert!(answer(half).await.starts_with("HTTP/1.1 408"));
    assert_eq!(receiver.send(receiver.signed("push", SECRET, body)).await.0, 400, "the memory is free again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_ten_thousand_is_answered_within_bounds() {
    const BURST: usize = 10_000;
    const IN_FLIGHT: usize = 32;
    let usual = ReceiverConfig::default();
    let bus = Arc::new(FaultyBus::default());
    let config = ReceiverConfig { max_in_flight: IN_FLIGHT, event_queue: 16, ..usual };
    let receiver = Running::start(config, Arc::clone(&bus), registrations()).await;
    bus.slow.store(2, Ordering::SeqCst);
    bus.events_stuck.store(true, Ordering::SeqCst);
    let started = Instant::now();
    let body = push("atlas/citation", "main").to_string().into_bytes();
    let statuses: Vec<u16> = stream::iter(0..BURST)
        .map(|_| async { receiver.send(receiver.signed("push", SECRET, body.clone())).await.0 })
        .buffer_unordered(256)
        .collect()
        .await;
    let mut counts: HashMap<u16, usize> = HashMap::new();
    for status in statuses {
        *counts.entry(status).or_default() += 1;
    }
    let accepted = counts.get(&202).copied().unwrap_or_default();
    let busy = counts.get(&429).copied().unwrap_or_default();
    assert_eq!(accepted + busy, BURST, "{counts:?}");
    assert!(accepted > 0 && busy > 0, "{counts:?}");
    assert_eq!(bus.wakes_of("citation"), accepted);
    assert!(bus.most_at_once.load(Ordering::SeqCst) <= IN_FLIGHT);
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}
