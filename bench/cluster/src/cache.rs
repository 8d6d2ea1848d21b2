//! Row 4: whether an app's builds find the daemon that has its cache, while many apps want to be built.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, ensure};
use fabrique_bench::report::{Check, Figure, Series};

use crate::Options;
use crate::bus::{self, Told};
use crate::feed::Feed;
use crate::fleet::{self, Built, Fleet, Image};
use crate::ground::{DAEMONS, Ground, say};

/// All apps once, on a busy machine.
const ALL: Duration = Duration::from_secs(300);
/// How long the last steps may take to be told after their build has ended.
const TOLD: Duration = Duration::from_secs(10);
const BOUND: f64 = 0.95;

/// The figure.
pub(crate) async fn measure(options: &Options, ground: &Ground) -> Result<Figure> {
    let mut builds = fleet::builds(ground).await?;
    let mut steps = bus::listen(&ground.bus, "FABRIQUE_EVENTS", "fabrique.step.>").await?;
    let mut fleet = Fleet::register(ground, "cache", options.apps, Image::Step).await?;
    fleet.deliver(ground, &fleet.last()).await?;
    let first = fleet::committed(&mut builds, &fleet.names, fleet.head(), ALL).await?;
    say(&format!("cache: {} apps were built for the first time", first.len()));
    let mut tally = Tally::default();
    let cached = cached(&mut steps, &first).await?;
    tally.round(&first, &cached);
    for round in 1..=options.pushes {
        let pushed = fleet.push(&format!("round {round}")).await?;
        fleet.deliver(ground, &pushed).await?;
        let ended = fleet::committed(&mut builds, &fleet.names, &pushed.revision, ALL).await?;
        let cached = self::cached(&mut steps, &ended).await?;
        let rate = tally.round(&ended, &cached);
        say(&format!("cache, round {round}: {:.0} % of {} builds", rate * 100.0, ended.len()));
    }
    ensure!(!tally.rates.is_empty(), "nothing was built twice");
    let (rate, random) = (tally.rate(), at_random(options.pushes, DAEMONS));
    Ok(Figure {
        name: format!(
            "Cache hits of {} apps, {} pushes each, {DAEMONS} daemons",
            options.apps, options.pushes
        ),
        method: format!(
            "All {} apps are pushed at once and told of at once, over and over, each time as soon as all are \
             committed. A hit is a build whose RUN step, which is the app's own and never changes, comes from its \
             daemon's cache; the first build of an app does not count. Beside it what a random daemon of the \
             {DAEMONS} gives for the same builds: an app's build number k finds its cache there with the \
             probability 1 - (1 - 1/{DAEMONS})^(k - 1), given that a daemon has what it has built, which is checked \
             here build by build.",
            options.apps
        ),
        series: vec![
            Series::new("hits, by round", "of 1", tally.rates.clone()),
            Series::new("random placement, computed", "of 1", vec![random]),
            Series::new("a daemon has what it has built", "of 1", vec![tally.as_expected()]),
            Series::new("daemons that an app was built on", "each", tally.spread()),
        ],
        checks: vec![
            Check::at_least("hit rate", vec![rate], BOUND),
            Check::at_least("hit rate / random placement", vec![rate / random], 1.0),
        ],
    })
}

/// The share of hits when each of an app's builds after the first goes to any of `daemons` daemons: builds 2 to
/// `pushes` + 1.
fn at_random(pushes: u32, daemons: usize) -> f64 {
    let elsewhere = 1.0 - 1.0 / daemons as f64;
    let hits = (1..=pushes).map(|before| 1.0 - elsewhere.powf(f64::from(before)));
    hits.sum::<f64>() / f64::from(pushes.max(1))
}

/// Which of these builds had their RUN step from the cache.
async fn cached(steps: &mut Feed<Told>, ended: &[Built]) -> Result<BTreeSet<String>> {
    let mut left: BTreeSet<&str> =
        ended.iter().filter(|built| built.committed).map(|built| built.build.as_str()).collect();
    let mut cached = BTreeSet::new();
    let found = steps.find("the steps of every build", TOLD, |told| {
        let step = &told.body;
        let build = step["build"].as_str()?;
        if step["name"].as_str().is_some_and(|name| name.contains("RUN ")) {
            left.remove(build);
            // The mapping leaves out what is false.
            if step["cached"] == true {
                cached.insert(build.to_owned());
            }
        }
        left.is_empty().then_some(())
    });
    found.await?;
    Ok(cached)
}

/// Builds and their hits, as they come.
#[derive(Debug, Default)]
struct Tally {
    /// The daemons that each app was built on.
    daemons: BTreeMap<String, BTreeSet<String>>,
    /// By round, first builds left out.
    rates: Vec<f64>,
    hits: usize,
    again: usize,
    as_expected: usize,
    all: usize,
}

impl Tally {
    /// Takes a round in. Returns its share of hits; none when all of it were first builds.
    fn round(&mut self, ended: &[Built], cached: &BTreeSet<String>) -> f64 {
        let (mut hits, mut again) = (0, 0);
        for built in ended.iter().filter(|built| built.committed) {
            let hit = cached.contains(&built.build);
            let daemons = self.daemons.entry(built.app.clone()).or_default();
            if !daemons.is_empty() {
                again += 1;
                hits += usize::from(hit);
            }
            self.all += 1;
            self.as_expected += usize::from(daemons.contains(&built.daemon) == hit);
            daemons.insert(built.daemon.clone());
        }
        self.hits += hits;
        self.again += again;
        if again == 0 {
            return 0.0;
        }
        let rate = hits as f64 / again as f64;
        self.rates.push(rate);
        rate
    }

    fn rate(&self) -> f64 {
        self.hits as f64 / self.again as f64
    }

    fn as_expected(&self) -> f64 {
        self.as_expected as f64 / self.all as f64
    }

    fn spread(&self) -> Vec<f64> {
        self.daemons.values().map(|daemons| daemons.len() as f64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_daemon_has_the_cache_the_more_often_the_longer_it_goes_on() {
        assert_eq!(at_random(1, 4), 0.25);
        assert_eq!(at_random(1, 1), 1.0);
        assert!((at_random(10, 4) - 0.7169).abs() < 1e-4, "{}", at_random(10, 4));
    }

    #[test]
    fn first_builds_do_not_count_and_attempts_that_failed_neither() {
        let built = |build: &str, daemon: &str, committed| Built {
            build: build.to_owned(),
            app: "a".to_owned(),
            revision: "r".to_owned(),
            daemon: daemon.to_owned(),
            committed,
        };
        let hit = |build: &str| BTreeSet::from([build.to_owned()]);
        let mut tally = Tally::default();
        assert_eq!(tally.round(&[built("1", "builder-0", true)], &BTreeSet::new()), 0.0);
        let ended = [built("2", "builder-1", false), built("3", "builder-0", true)];
        assert_eq!(tally.round(&ended, &hit("3")), 1.0);
        assert_eq!(tally.round(&[built("4", "builder-1", true)], &BTreeSet::new()), 0.0);
        assert_eq!((tally.rate(), tally.as_expected()), (0.5, 1.0));
        assert_eq!(
            (tally.rates.as_slice(), tally.spread().as_slice()),
            ([1.0, 0.0].as_slice(), [2.0].as_slice())
        );
    }
}
