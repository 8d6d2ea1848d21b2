//! How fast wakes are, next to the bare client. Run with `--nocapture --ignored`; nothing is asserted but that all are
//! stored, since the numbers depend on the disk.

use std::time::{Duration, Instant};

use fabrique_ports::bus::{Board as _, Wakes as _};
use futures::{StreamExt as _, stream};

use crate::{bus, new_app, own_bed, push, raw};

const WAKES: usize = 1000;

#[tokio::test]
#[ignore = "a measurement"]
async fn wakes_a_second_next_to_bare_publishes() {
    let bed = own_bed().await;
    let receiver = bus(&bed, "receiver").await;
    let bare = raw(&bed).await;
    let apps: Vec<_> = (0..100).map(|_| new_app()).collect();
    let body = bytes::Bytes::from(serde_json::to_vec(&push()).unwrap());
    for concurrency in [1, 64] {
        for round in 0..3 {
            let started = Instant::now();
            let wakes = stream::iter(0..WAKES).map(|number| {
                let (receiver, app) = (&receiver, &apps[number % apps.len()]);
                async move {
                    let started = Instant::now();
                    receiver.wake(app, &push()).await.unwrap();
                    started.elapsed()
                }
            });
            report("wake", concurrency, round, started, wakes.buffer_unordered(concurrency).collect().await);
            let started = Instant::now();
            let publishes = stream::iter(0..WAKES).map(|number| {
                let (bare, app, body) = (&bare, &apps[number % apps.len()], body.clone());
                async move {
                    let started = Instant::now();
                    bare.publish(format!("fabrique.wake.{app}"), body).await.unwrap().await.unwrap();
                    started.elapsed()
                }
            });
            report(
                "bare",
                concurrency,
                round,
                started,
                publishes.buffer_unordered(concurrency).collect().await,
            );
        }
    }
    let worker = bus(&bed, "worker").await;
    assert_eq!(worker.all_work().await.unwrap().len(), apps.len());
}

fn report(what: &str, concurrency: usize, round: usize, started: Instant, mut times: Vec<Duration>) {
    let (all, count) = (started.elapsed(), times.len());
    times.sort();
    let rate = count as f64 / all.as_secs_f64();
    let (p50, p99) = (times[count / 2], times[count * 99 / 100]);
    println!("{what} x{concurrency} round {round}: {rate:.0}/s, p50 {p50:?}, p99 {p99:?}");
}
