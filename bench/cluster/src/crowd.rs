//! Row 5: many wakes at once.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fabrique_bench::process;
use fabrique_bench::report::{Check, Figure, Series};

use crate::Options;
use crate::audit::Audit;
use crate::bus::Told;
use crate::feed::Feed;
use crate::fleet::{self, Fleet, Image};
use crate::ground::{DAEMONS, Ground, say};

/// All of them, two cores and four daemons.
const ALL: Duration = Duration::from_secs(600);
const BOUND: f64 = 15.0;
/// What allocators give back, and do not.
const FLAT: f64 = 1.1;

/// What came of one burst.
struct Burst {
    seconds: f64,
    attempts: usize,
    committed: usize,
    requests: usize,
    /// Of the worker afterwards, in MB.
    memory: f64,
    /// What the worker has open afterwards: connections that nobody closes show here first.
    open: f64,
}

/// The figure.
pub(crate) async fn measure(options: &Options, ground: &Ground) -> Result<Figure> {
    let wakes = options.wakes;
    let mut builds = fleet::builds(ground).await?;
    let before = process::resident(worker()?)?;
    let mut bursts = Vec::new();
    let mut burst = Begun::now(ground)?;
    let mut fleet = Fleet::register(ground, "crowd", wakes, Image::Label).await?;
    fleet.deliver(ground, &fleet.last()).await?;
    bursts.push(burst.end(&mut builds, &fleet).await.context("when they were registered")?);
    for number in ["second", "third"] {
        let pushed = fleet.push(number).await?;
        burst = Begun::now(ground)?;
        fleet.deliver(ground, &pushed).await?;
        bursts.push(burst.end(&mut builds, &fleet).await.with_context(|| format!("the {number} time"))?);
    }
    let of = |part: fn(&Burst) -> f64| -> Vec<f64> { bursts.iter().map(part).collect() };
    let ended: Vec<f64> = bursts.iter().map(|burst| burst.committed as f64 / f64::from(wakes)).collect();
    let least = ended.iter().copied().fold(f64::INFINITY, f64::min);
    let requests = of(|burst| burst.requests as f64 / burst.attempts as f64);
    let most = requests.iter().copied().fold(0.0, f64::max);
    let memories = of(|burst| burst.memory);
    let growth = memories.last().zip(memories.get(1)).map(|(last, second)| last / second);
    Ok(Figure {
        name: format!("{wakes} wakes at once, {DAEMONS} daemons"),
        method: format!(
            "{wakes} apps, woken at once three times: when they are registered in one commit, and by two pushes to \
             all of their branches; each time {wakes} signed deliveries at once. Each is built (a COPY, no step) and committed. \
             Requests are the worker's, from the API server's audit log, for each attempt at a build, those that \
             make pods and watch included. Memory is the worker's resident size after each burst."
        ),
        series: vec![
            Series::new("until all have ended", "s", of(|burst| burst.seconds)),
            Series::new("ended in a commit", "of 1", ended),
            Series::new("attempts", "builds", of(|burst| burst.attempts as f64)),
            Series::new("API requests a build", "each", requests),
            Series::new("worker's memory before", "MB", vec![before]),
            Series::new("worker's memory after each", "MB", memories),
            Series::new("worker's open files after each", "each", of(|burst| burst.open)),
        ],
        checks: vec![
            Check::at_least("ended in a commit, worst burst", vec![least], 1.0),
            Check::at_most("API requests a build, worst burst", vec![most], BOUND),
            Check::at_most("memory, third / second burst", growth.into_iter().collect(), FLAT),
        ],
    })
}

/// A burst under way.
struct Begun {
    at: Instant,
    audit: Audit,
}

impl Begun {
    fn now(ground: &Ground) -> Result<Self> {
        let audit = Audit::begin(&ground.installation.cluster.audit_log())?;
        Ok(Self { at: Instant::now(), audit })
    }

    /// Waits until all apps are committed at their head.
    async fn end(self, builds: &mut Feed<Told>, fleet: &Fleet) -> Result<Burst> {
        let ended = fleet::committed(builds, &fleet.names, fleet.head(), ALL).await?;
        let seconds = self.at.elapsed().as_secs_f64();
        let (requests, worker) = (self.audit.requests()?, worker()?);
        let burst = Burst {
            seconds,
            attempts: ended.len(),
            committed: ended.iter().filter(|built| built.committed).count(),
            requests: requests.values().sum(),
            memory: process::resident(worker)?,
            open: std::fs::read_dir(format!("/proc/{worker}/fd"))?.count() as f64,
        };
        let Burst { attempts, requests: asked, memory, open, .. } = &burst;
        say(&format!(
            "crowd: {attempts} builds in {seconds:.0} s, {asked} requests {requests:?}, {memory:.1} MB, {open} open files"
        ));
        Ok(burst)
    }
}

/// The worker's process: it is one of this machine's.
fn worker() -> Result<u32> {
    let processes = std::fs::read_dir("/proc").context("reading /proc")?;
    let mut pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_worker = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        // As k8s/base/worker.yaml starts it.
        let config = b"--config=/etc/fabrique/fabrique.yaml".as_slice();
        words.get(1) == Some(&b"worker".as_slice()) && words.contains(&config)
    };
    pids.find(is_worker).context("no worker runs here")
}
