//! How many deliveries a second the receiver makes durable, beside the bus by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, HeaderMap};
use bytes::Bytes;
use fabrique_bed::wait_until;

use crate::Options;
use crate::fleet::{Fleet, FleetApp};
use crate::load::{self, Run, Turns};
use crate::process;
use crate::report::{Check, Figure, Series};
use crate::stats::{alternate, percentile, ratios};

/// Deliveries, or publishes, under way at once.
const CONCURRENT: usize = 64;
/// The longest that the events of one run may take to be published.
const QUIET: Duration = Duration::from_secs(60);
/// Nothing published for so long means that nothing is left.
const STILL: Duration = Duration::from_millis(100);
const METHOD: &str = "Signed deliveries of some KiB to the receiver over 64 connections, each awaited until its 202, \
    which the receiver gives after JetStream has stored the wake (`sync_interval: always`). Beside it 64 tasks that \
    publish the very messages that those deliveries left, on the same subjects and the same server, each awaiting \
    its acknowledgement. Apps are taken in turn. After the receiver's turn its events are waited for.";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arm {
    Receiver,
    Bare,
}

/// The rate, and the slowest hundredth, of both in alternating runs.
pub(crate) async fn measure(options: &Options, fleet: &Fleet) -> Result<Vec<Figure>> {
    let stage = &fleet.stage;
    let receiver = stage.receiver().await?;
    let bus = admin(fleet).await?;
    let (requests, address) = (load::requests(stage, &fleet.apps)?, load::address(stage)?);
    let count = options.deliveries as usize;
    let deliver = async || {
        let run =
            load::run(CONCURRENT, count, |turns| load::deliver(address.clone(), requests.clone(), turns))
                .await;
        quiet(&bus).await?;
        run
    };
    deliver().await.context("warming up")?;
    let wakes = Arc::new(wakes(&bus, &fleet.apps[..count.min(fleet.apps.len())]).await?);
    let publish =
        async || load::run(CONCURRENT, count, |turns| bare(bus.clone(), wakes.clone(), turns)).await;
    publish().await.context("warming up")?;

    let arms = [Arm::Receiver, Arm::Bare];
    let mut runs: Vec<(Arm, Run)> = Vec::new();
    for round in 0..options.rounds {
        for arm in alternate(&arms, round) {
            let run = match arm {
                Arm::Receiver => deliver().await.context("delivering")?,
                Arm::Bare => publish().await.context("publishing")?,
            };
            runs.push((arm, run));
        }
    }
    if let Some(folder) = &options.logs {
        process::keep_log(&receiver.peer, folder)?;
    }
    receiver.peer.stop().await?;
    let of = |arm: Arm, figure: &dyn Fn(&Run) -> f64| -> Vec<f64> {
        runs.iter().filter(|(of, _)| *of == arm).map(|(_, run)| figure(run)).collect()
    };
    let rates = arms.map(|arm| of(arm, &|run| run.rate));
    let slowest = arms.map(|arm| of(arm, &|run| percentile(&run.millis, 99)));
    Ok(vec![
        Figure {
            name: "Durable acknowledgements a second, 64 at once".to_owned(),
            method: METHOD.to_owned(),
            checks: vec![Check::at_least("receiver / bare", ratios(&rates[0], &rates[1]), 0.8)],
            series: pair("/s", rates),
        },
        Figure {
            name: "Durable acknowledgements, 99th percentile".to_owned(),
            method: format!("The same runs: the slowest hundredth of {count}."),
            checks: vec![Check::at_most("receiver / bare", ratios(&slowest[0], &slowest[1]), 2.0)],
            series: pair("ms", slowest),
        },
    ])
}

fn pair(unit: &'static str, [receiver, bare]: [Vec<f64>; 2]) -> Vec<Series> {
    vec![Series::new("receiver", unit, receiver), Series::new("bare publishes", unit, bare)]
}

async fn admin(fleet: &Fleet) -> Result<Context> {
    let nats = fleet.stage.bed.nats();
    let options =
        ConnectOptions::with_user_and_password("admin".to_owned(), nats.password("admin").to_owned());
    Ok(jetstream::new(options.connect(nats.address()).await.context("connecting to the bus")?))
}

/// A wake as the receiver stored it.
struct Wake {
    subject: String,
    headers: HeaderMap,
    body: Bytes,
}

async fn wakes(bus: &Context, apps: &[FleetApp]) -> Result<Vec<Wake>> {
    let stream = bus.get_stream("FABRIQUE_WAKE").await?;
    let mut wakes = Vec::with_capacity(apps.len());
    for app in apps {
        let subject = format!("fabrique.wake.{}", app.name);
        let stored = stream.get_last_raw_message_by_subject(&subject).await;
        let stored = stored.with_context(|| format!("no wake of {}", app.name))?;
        wakes.push(Wake { subject, headers: stored.headers, body: stored.payload });
    }
    Ok(wakes)
}

async fn bare(bus: Context, wakes: Arc<Vec<Wake>>, turns: Turns) -> Result<Vec<f64>> {
    let mut millis = Vec::new();
    for turn in turns {
        let Wake { subject, headers, body } = &wakes[turn % wakes.len()];
        let (subject, headers, body) = (subject.clone(), headers.clone(), body.clone());
        let started = Instant::now();
        let stored = bus.publish_with_headers(subject, headers, body).await?.await?;
        millis.push(started.elapsed().as_secs_f64() * 1e3);
        ensure!(stored.stream == "FABRIQUE_WAKE", "stored in {}", stored.stream);
    }
    Ok(millis)
}

/// Waits until the receiver has published what it had to tell of the deliveries: its events go to the same
/// disk, and belong to its own turn.
async fn quiet(bus: &Context) -> Result<()> {
    let published = async || Some(bus.get_stream("FABRIQUE_EVENTS").await.ok()?.cached_info().state.messages);
    let still = wait_until("the events to be published", QUIET, || async {
        let before = published().await?;
        tokio::time::sleep(STILL).await;
        (published().await? == before).then_some(())
    });
    still.await
}
