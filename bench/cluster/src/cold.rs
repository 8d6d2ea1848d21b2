//! Row 2: from a wake to the first solve, when there is no daemon.

use std::time::Duration;

use anyhow::Result;
use fabrique_bench::report::{Check, Figure, Series};
use fabrique_bench::stats::alternate;

use crate::Options;
use crate::bare::Template;
use crate::fleet::{Fleet, Image};
use crate::ground::{Ground, say};
use crate::wake::{Onlooker, Solved};

const POD: &str = "bare";
const BOUND: f64 = 300.0;
const METHOD: &str = "From the moment the bus has stored the wake, with no builder there, to the moment the worker's \
    connection to the daemon in a new pod is up, on which it sends the solve. Beside it the pod that fabrique made, \
    under another name and without fabrique's labels, its certificate there already: from the request that creates \
    it to the moment the watch shows it Ready. Both have the same gate and probe (every second), are subject to the \
    same policies, and are pulled nowhere.";

#[derive(Clone, Copy)]
enum Arm {
    Fabrique,
    Bare,
}

/// The figure.
pub(crate) async fn measure(options: &Options, ground: &Ground) -> Result<Figure> {
    let mut onlooker = Onlooker::open(ground).await?;
    let mut fleet = Fleet::register(ground, "cold", 1, Image::Step).await?;
    onlooker.first(&fleet).await?;
    let template = Template::of(&ground.api, &ground.builder().await?).await?;
    // Each node has pulled the images then.
    let [_, nodes @ ..] = ground.installation.cluster.nodes();
    for node in nodes {
        template.start(&ground.api, POD, Some(node)).await?;
        template.end(&ground.api, POD).await?;
    }
    let (mut solved, mut ready): (Vec<Solved>, Vec<f64>) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        for arm in alternate(&[Arm::Fabrique, Arm::Bare], round) {
            // In both arms nothing is there before.
            ground.take_away_builders().await?;
            match arm {
                Arm::Fabrique => {
                    solved.push(onlooker.push(ground, &mut fleet, &format!("round {round}")).await?);
                }
                Arm::Bare => ready.push(bare(ground, &template).await?.as_secs_f64() * 1e3),
            }
        }
        if let (Some(ours), Some(ready)) = (solved.last(), ready.last()) {
            say(&format!("cold, round {round}: {:.0} ms, bare pod {ready:.0} ms", ours.connected));
        }
    }
    let more = solved.iter().zip(&ready).map(|(ours, ready)| ours.connected - ready).collect();
    let ours = |part: fn(&Solved) -> f64| solved.iter().map(part).collect();
    Ok(Figure {
        name: "Wake to first solve, cold pod".to_owned(),
        method: METHOD.to_owned(),
        series: vec![
            Series::new("fabrique", "ms", ours(|solved| solved.connected)),
            Series::new("fabrique: until it has decided", "ms", ours(|solved| solved.decided)),
            Series::new("fabrique: until it has a daemon", "ms", ours(|solved| solved.placed)),
            Series::new("bare pod", "ms", ready.clone()),
        ],
        checks: vec![Check::at_most("fabrique - bare pod (ms)", more, BOUND)],
    })
}

async fn bare(ground: &Ground, template: &Template) -> Result<Duration> {
    let (_, took) = template.start(&ground.api, POD, None).await?;
    template.end(&ground.api, POD).await?;
    Ok(took)
}
