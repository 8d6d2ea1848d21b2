//! A bus that dies, freezes, or is full.

use std::time::{Duration, Instant};

use fabrique_bed::{Bed, NatsOptions};
use fabrique_bus::Bus;
use fabrique_core::id::AppName;
use fabrique_core::time::Timestamp;
use fabrique_core::work::Generation;
use fabrique_ports::bus::{Board as _, BusSetup as _, Event, EventBody, Events as _, Wakes as _};
use fabrique_ports::{Fault, PortResult};

use crate::board::Watcher;
use crate::{bus, config, crypto, new_app, own_bed, push, within};

/// What a webhook can wait for: the acknowledgement's two seconds and a little.
const ANSWER: Duration = Duration::from_millis(2500);

async fn wake_until_it_works(bus: &Bus, app: &AppName) -> Generation {
    within("a wake to be stored", async {
        loop {
            if let Ok(generation) = bus.wake(app, &push()).await {
                return generation;
            }
        }
    })
    .await
}

async fn refused_in_time(bus: &Bus, app: &AppName) -> fabrique_ports::PortError {
    let started = Instant::now();
    let outcome: PortResult<Generation> = bus.wake(app, &push()).await;
    assert!(started.elapsed() < ANSWER, "{:?}", started.elapsed());
    outcome.unwrap_err()
}

#[tokio::test]
async fn a_killed_server_loses_no_acknowledged_wake_and_the_watcher_goes_on() {
    let bed = own_bed().await;
    let (receiver, worker) = (bus(&bed, "receiver").await, bus(&bed, "worker").await);
    let mut watcher = Watcher::start(&worker).await;
    let mut acknowledged = Vec::new();
    for _ in 0..50 {
        let app = new_app();
        acknowledged.push((app.clone(), receiver.wake(&app, &push()).await.unwrap()));
    }
    bed.nats().peer().kill9().await.unwrap();
    bed.nats().peer().start_again().await.unwrap();
    watcher.until("the board after the restart", |w| w.restarts > 0 && w.current).await;
    for (app, generation) in &acknowledged {
        assert_eq!(watcher.wanted.get(app), Some(generation));
    }
    let app = new_app();
    let generation = wake_until_it_works(&receiver, &app).await;
    watcher.until("a wake after the restart", |w| w.wanted.get(&app) >= Some(&generation)).await;
    assert!(receiver.is_connected());
}

#[tokio::test]
async fn while_the_server_is_down_a_wake_fails_in_time_and_says_so() {
    let bed = own_bed().await;
    let receiver = bus(&bed, "receiver").await;
    bed.nats().peer().stop().await.unwrap();
    let error = refused_in_time(&receiver, &new_app()).await;
    assert!(error.transient(), "{error}");
    within("the loss to be noticed", async {
        while receiver.is_connected() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // A second one does not wait behind the first.
    refused_in_time(&receiver, &new_app()).await;
    bed.nats().peer().start_again().await.unwrap();
    wake_until_it_works(&receiver, &new_app()).await;
}

#[tokio::test]
async fn a_server_that_hangs_is_a_timeout_and_then_a_lost_connection() {
    let bed = own_bed().await;
    let (receiver, worker) = (bus(&bed, "receiver").await, bus(&bed, "worker").await);
    let mut watcher = Watcher::start(&worker).await;
    bed.nats().peer().pause().unwrap();
    let error = refused_in_time(&receiver, &new_app()).await;
    assert!(error.transient(), "{error}");
    within("the dead connection to be noticed", async {
        while receiver.is_connected() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    bed.nats().peer().resume().unwrap();
    let app = new_app();
    let generation = wake_until_it_works(&receiver, &app).await;
    watcher.until("the wake after the pause", |w| w.wanted.get(&app) >= Some(&generation)).await;
}

#[tokio::test]
async fn a_full_disk_is_an_error_never_a_success() {
    crypto();
    let options = NatsOptions { max_file_store: Some(2 << 20), ..NatsOptions::default() };
    let bed = Bed::builder().nats_with(options).start().await.unwrap();
    let unbounded = |role| {
        let mut config = config(&bed, role);
        let limits = &mut config.limits;
        // The server reserves what streams may use: with limits of their own it could never be full.
        for bytes in [
            &mut limits.wake_bytes,
            &mut limits.work_bytes,
            &mut limits.memory_bytes,
            &mut limits.records_bytes,
            &mut limits.builds_bytes,
            &mut limits.upstream_bytes,
            &mut limits.events_bytes,
            &mut limits.logs_bytes,
        ] {
            *bytes = 0;
        }
        Bus::connect(config)
    };
    let admin = unbounded("admin").await.unwrap();
    admin.ensure().await.unwrap();
    let message = "x".repeat(3000);
    let refused = within("the disk to be full", async {
        for number in 0_u64.. {
            let body = EventBody::Warning { app: None, message: message.clone() };
            let event = Event { id: number.to_string(), at: Timestamp(0), trace: None, body };
            if let Err(error) = admin.publish(&event).await {
                return error;
            }
        }
        unreachable!()
    })
    .await;
    assert!(refused.transient() && refused.to_string().contains("no room"), "{refused}");
    let receiver = unbounded("receiver").await.unwrap();
    let app = new_app();
    let error = refused_in_time(&receiver, &app).await;
    assert!(error.transient() && error.to_string().contains("no room"), "{error}");
    assert_eq!(admin.work_of(&app).await.unwrap().0, Generation(0));
}

#[tokio::test]
async fn a_service_can_start_before_the_bus() {
    let bed = own_bed().await;
    bed.nats().peer().stop().await.unwrap();
    let receiver = Bus::connect_in_background(config(&bed, "receiver")).await.unwrap();
    assert!(!receiver.is_connected());
    let error = refused_in_time(&receiver, &new_app()).await;
    assert!(error.transient(), "{error}");
    bed.nats().peer().start_again().await.unwrap();
    wake_until_it_works(&receiver, &new_app()).await;
    assert!(receiver.is_connected());
}

#[tokio::test]
async fn a_server_that_never_comes_is_given_up_in_time() {
    let bed = own_bed().await;
    bed.nats().peer().stop().await.unwrap();
    let mut config = config(&bed, "receiver");
    config.timeouts.start = Duration::from_millis(300);
    config.timeouts.connect = Duration::from_millis(500);
    let started = Instant::now();
    let error = Bus::connect(config).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(error.transient() && error.to_string().contains(&bed.nats().address()), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_refused_at_once_without_telling_it() {
    let bed = own_bed().await;
    let mut config = config(&bed, "receiver");
    config = config.as_user("receiver", "not-the-password".to_owned().into());
    let started = Instant::now();
    let error = Bus::connect(config.clone()).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(error.fault(), Fault::Denied);
    for text in [error.to_string(), format!("{error:?}"), format!("{config:?}")] {
        assert!(!text.contains("not-the-password"), "{text}");
    }
}
