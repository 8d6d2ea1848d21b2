//! Shutting down.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabrique_bed::wait_until;
use fabrique_receiver::{Drained, ReceiverConfig};
use tokio::net::TcpStream;

use crate::nats::Nats;
use crate::support::{FakeRegistrations, FaultyBus, Running, app, quick};

fn registrations() -> Arc<FakeRegistrations> {
    FakeRegistrations::with(&[("citation", "atlas/citation", "main")])
}

/// On a bus whose acknowledgements can be held up, so that the end comes in between.
async fn start(config: ReceiverConfig) -> (Running, Arc<FaultyBus>) {
    let bus = Arc::new(FaultyBus::default());
    (Running::start(config, Arc::clone(&bus), registrations()).await, bus)
}

async fn at_work(bus: &FaultyBus) {
    let at_work = async || (bus.most_at_once.load(Ordering::SeqCst) > 0).then_some(());
    wait_until("the delivery to be at work", Duration::from_secs(5), at_work).await.unwrap();
}

#[tokio::test]
async fn a_delivery_at_work_is_answered_and_its_event_published_before_the_end() {
    let (receiver, bus) = start(quick()).await;
    bus.slow.store(300, Ordering::SeqCst);
    let Running { client, shutdown, served, address, .. } = receiver;
    let stop = async {
        at_work(&bus).await;
        shutdown.cancel();
        served.await.unwrap().unwrap()
    };
    let body = crate::support::push("atlas/citation", "main").to_string().into_bytes();
    let push = client
        .post(format!("http://{address}/webhook"))
        .header("content-type", "application/json")
        .header("x-gitea-event", "push")
        .header("x-gitea-signature", crate::support::signature("s3cret", &body))
        .body(body)
        .send();
    let (answer, drained) = tokio::join!(push, stop);
    assert_eq!(answer.unwrap().status(), 202);
    assert_eq!(drained, Drained::Completely);
    assert_eq!(bus.events.lock().unwrap().len(), 1);
    assert!(TcpStream::connect(address).await.is_err(), "nothing listens any more");
}

#[tokio::test]
async fn idle_connections_do_not_hold_the_end_up() {
    let nats = Nats::start().await;
    let config = ReceiverConfig { header_timeout: Duration::from_secs(30), ..quick() };
    let receiver = nats.receiver(config, registrations()).await;
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202);
    let _idle = TcpStream::connect(receiver.address).await.unwrap();
    let started = Instant::now();
    receiver.shutdown.cancel();
    assert_eq!(receiver.served.await.unwrap().unwrap(), Drained::Completely);
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(nats.deliveries(1).await.len(), 1, "its event is told before the end");
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_cut() {
    let (receiver, bus) =
        start(ReceiverConfig { drain_timeout: Duration::from_millis(200), ..quick() }).await;
    bus.events_stuck.store(true, Ordering::SeqCst);
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202);
    let started = Instant::now();
    receiver.shutdown.cancel();
    assert_eq!(receiver.served.await.unwrap().unwrap(), Drained::Partly);
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_cut_its_wakes_in_half() {
    let (receiver, bus) = start(quick()).await;
    bus.slow.store(200, Ordering::SeqCst);
    let push = receiver.push("atlas/citation", "main");
    tokio::select! {
        _ = push => panic!("answered before the acknowledgement"),
        () = at_work(&bus) => {}
    }
    let woken = async || bus.woken.lock().unwrap().contains_key(&app("citation")).then_some(());
    wait_until("the wake", Duration::from_secs(5), woken).await.unwrap();
}

#[tokio::test]
async fn a_background_task_that_panics_ends_the_receiver_with_an_error_that_names_it() {
    let (receiver, bus) = start(quick()).await;
    bus.events_panic.store(true, Ordering::SeqCst);
    assert_eq!(receiver.push("atlas/citation", "main").await.0, 202);
    let ended = tokio::time::timeout(Duration::from_secs(10), receiver.served).await.unwrap().unwrap();
    let told = ended.unwrap_err().to_string();
    assert!(told.contains("publishes events") && told.contains("nobody expected"), "{told}");
    assert!(TcpStream::connect(receiver.address).await.is_err(), "nothing listens any more");
}
