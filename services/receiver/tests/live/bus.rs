//! With a real NATS: what 202 and 503 mean there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fabrique_bed::{Bed, wait_until};
use fabrique_ports::bus::{Board as _, EventBody, Events as _};
use fabrique_receiver::ReceiverConfig;
use futures::{StreamExt as _, stream};
use tokio::sync::OnceCell;

use crate::nats::{Nats, connect};
use crate::support::{FakeRegistrations, Running, app};

const PATIENCE: Duration = Duration::from_secs(30);

async fn shared_bed() -> &'static Bed {
    static NATS: OnceCell<Nats> = OnceCell::const_new();
    &NATS.get_or_init(Nats::start).await.bed
}

/// A receiver on this bus for one app of its own, in the role of a receiver.
async fn receiver(bed: &Bed) -> (Running, String) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("app-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let apps = FakeRegistrations::with(&[(&name, &format!("atlas/{name}"), "main")]);
    let bus = Arc::new(connect(bed, "receiver").await);
    (Running::start(ReceiverConfig::default(), bus, apps).await, name)
}

#[tokio::test]
async fn an_accepted_push_is_on_the_board_when_the_answer_comes_and_a_repeated_one_counts_again() {
    let bed = shared_bed().await;
    let (receiver, name) = receiver(bed).await;
    let worker = connect(bed, "worker").await;
    let mut last = 0;
    for _ in 0..3 {
        assert_eq!(receiver.push(&format!("atlas/{name}"), "main").await.0, 202);
        let (wanted, _, _) = worker.work_of(&app(&name)).await.unwrap();
        assert!(wanted.0 > last, "equal wakes are not taken for one");
        last = wanted.0;
    }
}

#[tokio::test]
async fn a_delivery_shows_among_the_events() {
    let bed = shared_bed().await;
    let (receiver, name) = receiver(bed).await;
    let repo = format!("atlas/{name}");
    assert_eq!(receiver.push(&repo, "main").await.0, 202);
    let operator = connect(bed, "operator").await;
    let mut events = operator.tail(None, Some(fabrique_core::time::Timestamp(0))).await.unwrap();
    let ours = async {
        while let Some(event) = events.next().await {
            if let EventBody::Delivery { repo: of, woken, .. } = event.unwrap().body
                && of.to_string() == repo
            {
                return woken;
            }
        }
        vec![]
    };
    assert_eq!(tokio::time::timeout(PATIENCE, ours).await.expect("an event in time"), [app(&name)]);
}

#[tokio::test]
async fn without_the_bus_a_push_is_503_in_time_and_202_again_when_it_is_back() {
    let Nats { bed, .. } = &Nats::start().await;
    let (receiver, name) = receiver(bed).await;
    let repo = format!("atlas/{name}");
    assert_eq!(receiver.push(&repo, "main").await.0, 202);
    bed.nats().peer().kill9().await.unwrap();
    let started = Instant::now();
    assert_eq!(receiver.push(&repo, "main").await.0, 503);
    assert!(started.elapsed() < Duration::from_millis(4500), "{:?}", started.elapsed());
    bed.nats().peer().start_again().await.unwrap();
    let back = async || (receiver.push(&repo, "main").await.0 == 202).then_some(());
    wait_until("the bus to be back", PATIENCE, back).await.unwrap();
}

#[tokio::test]
async fn a_push_that_wakes_many_apps_is_503_in_the_time_of_one_when_the_bus_is_frozen() {
    let Nats { bed, .. } = &Nats::start().await;
    let names: Vec<String> = (0..130).map(|number| format!("app-{number}")).collect();
    let all: Vec<_> = names.iter().map(|name| (name.as_str(), "atlas/all", "main")).collect();
    let bus = Arc::new(connect(bed, "receiver").await);
    let receiver = Running::start(ReceiverConfig::default(), bus, FakeRegistrations::with(&all)).await;
    let (status, answer) = receiver.push("atlas/all", "main").await;
    assert_eq!((status, answer["woken"].as_array().map(Vec::len)), (202, Some(130)));
    bed.nats().peer().pause().unwrap();
    let started = Instant::now();
    assert_eq!(receiver.push("atlas/all", "main").await.0, 503);
    let took = started.elapsed();
    bed.nats().peer().resume().unwrap();
    assert!(took < Duration::from_millis(2500), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_connections_push_a_thousand_times_and_every_acceptance_is_durable() {
    let bed = shared_bed().await;
    let (receiver, name) = receiver(bed).await;
    let repo = format!("atlas/{name}");
    let worker = connect(bed, "worker").await;
    let statuses: Vec<u16> = stream::iter(0..1000)
        .map(|_| async { receiver.push(&repo, "main").await.0 })
        .buffer_unordered(64)
        .collect()
        .await;
    assert!(statuses.iter().all(|status| *status == 202));
    let (wanted, _, _) = worker.work_of(&app(&name)).await.unwrap();
    assert!(wanted.0 >= 1000);
}
