//! Row 1: from a wake to the first solve, when a daemon is there.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use async_nats::jetstream::kv;
use fabrique_bench::report::{Check, Figure, Series};
use fabrique_bench::stats::alternate;

use crate::Options;
use crate::bare::Door;
use crate::fleet::{Fleet, Image};
use crate::ground::{Ground, say};
use crate::wake::{Onlooker, Solved};

/// Unmeasured rounds.
const WARM_UP: u32 = 2;
const BUCKET: &str = "BENCH";
const BOUND: f64 = 20.0;
const METHOD: &str = "From the moment the bus has stored the wake to the moment the worker's connection to the daemon \
    is up, on which it sends the solve; the daemon has built the app before. The floor, in the same round, one after \
    the other from this machine: one request to Gitea for the branch's head, one acknowledged write to a bucket like \
    fabrique's, one connection to the same daemon (TCP, TLS with both certificates, HTTP/2).";

/// One round of the floor, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Floor {
    head: f64,
    write: f64,
    connect: f64,
}

impl Floor {
    fn total(self) -> f64 {
        self.head + self.write + self.connect
    }
}

#[derive(Clone, Copy)]
enum Arm {
    Fabrique,
    Floor,
}

/// The figure.
pub(crate) async fn measure(options: &Options, ground: &Ground) -> Result<Figure> {
    let mut onlooker = Onlooker::open(ground).await?;
    let mut fleet = Fleet::register(ground, "warm", 1, Image::Step).await?;
    onlooker.first(&fleet).await?;
    let bucket = kv::Config { bucket: BUCKET.to_owned(), ..kv::Config::default() };
    let bucket = ground.bus.create_key_value(bucket).await.context("making a bucket")?;
    let door = Door::of(&ground.builder().await?)?;
    let (mut solved, mut floors): (Vec<Solved>, Vec<Floor>) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + options.rounds {
        for arm in alternate(&[Arm::Fabrique, Arm::Floor], round) {
            match arm {
                Arm::Fabrique => {
                    let message = format!("round {round}");
                    solved.push(onlooker.push(ground, &mut fleet, &message).await?);
                }
                Arm::Floor => floors.push(floor(ground, &fleet, &bucket, &door).await?),
            }
        }
        if let (Some(ours), Some(floor)) = (solved.last(), floors.last()) {
            say(&format!("warm, round {round}: {:.1} ms, floor {:.1} ms", ours.connected, floor.total()));
        }
    }
    ground.bus.delete_key_value(BUCKET).await.context("removing the bucket")?;
    let (solved, floors) = (&solved[WARM_UP as usize..], &floors[WARM_UP as usize..]);
    let more = solved.iter().zip(floors).map(|(ours, floor)| ours.connected - floor.total()).collect();
    let ours = |part: fn(&Solved) -> f64| solved.iter().map(part).collect();
    let theirs = |part: fn(&Floor) -> f64| floors.iter().map(part).collect();
    Ok(Figure {
        name: "Wake to first solve, warm daemon".to_owned(),
        method: METHOD.to_owned(),
        series: vec![
            Series::new("fabrique", "ms", ours(|solved| solved.connected)),
            Series::new("fabrique: until it has decided", "ms", ours(|solved| solved.decided)),
            Series::new("fabrique: until it has a daemon", "ms", ours(|solved| solved.placed)),
            Series::new("floor", "ms", theirs(|floor| floor.total())),
            Series::new("floor: head", "ms", theirs(|floor| floor.head)),
            Series::new("floor: write", "ms", theirs(|floor| floor.write)),
            Series::new("floor: connection", "ms", theirs(|floor| floor.connect)),
        ],
        checks: vec![Check::at_most("fabrique - floor (ms)", more, BOUND)],
    })
}

async fn floor(ground: &Ground, fleet: &Fleet, bucket: &kv::Store, door: &Door) -> Result<Floor> {
    let gitea = ground.installation.cluster.gitea();
    let branch = fleet.names.first().context("an empty fleet")?;
    let url = format!("{}/api/v1/repos/atlas/{}/branches/{branch}", gitea.base_url(), fleet.repo());
    let request = ground.client.get(url).header("Authorization", format!("token {}", gitea.admin_token()));
    let start = Instant::now();
    let answer = request.send().await.context("asking Gitea")?;
    ensure!(answer.status().is_success(), "Gitea answered {}", answer.status());
    answer.bytes().await?;
    let asked = Instant::now();
    bucket.put("app", fleet.head().to_owned().into()).await.context("writing")?;
    let written = Instant::now();
    let connect = ground.key.connect(door).await.context("connecting to a builder")?;
    let millis = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
    Ok(Floor {
        head: millis(start, asked),
        write: millis(asked, written),
        connect: connect.as_secs_f64() * 1e3,
    })
}
