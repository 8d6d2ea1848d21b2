//! From the end of `git push` to the commit on the deployment repository.

use std::path::Path;

use anyhow::Result;
use fabrique_stage::SampleApp;

use crate::arms::{Arena, Arm, Change, Sample};
use crate::report::{Check, Figure, Series};
use crate::stats::{alternate, ratios};
use crate::{Options, Subject};

const LAYER: &str = "From the end of `git push` to the moment the deployment repository's branch has moved, seen on \
    Gitea's disk; one COPY layer changed, everything warm. The floor is what no design can go below, run one after \
    the other: Gitea's webhook, `buildctl build` of that commit with push by digest, `git push` of a prepared \
    one-file commit from a warm clone. The script is `bench/script/deploy.sh` behind a webhook server with HMAC.";
const RECORDED: &str = "As above, but the push is a force push back to a revision whose digest is recorded and in \
    the registry. The floor is the webhook and the bare push.";

/// Both figures, or the one that is asked for.
pub(crate) async fn measure(options: &Options, binary: &Path) -> Result<Vec<Figure>> {
    let mut arena = Box::pin(Arena::start(binary)).await?;
    let mut figures = Vec::new();
    for arm in [Arm::Fabrique, Arm::Floor, Arm::Script] {
        for message in ["warm up", "warm up again"] {
            Box::pin(arena.run(arm, Change::Layer(message), true)).await?;
        }
    }
    if options.wants(Subject::Push) {
        figures.push(Box::pin(layer(options, &mut arena)).await?);
    }
    if options.wants(Subject::Recorded) {
        figures.push(Box::pin(recorded(options, &mut arena)).await?);
    }
    if let Some(folder) = &options.logs {
        arena.keep_log(folder)?;
    }
    Ok(figures)
}

async fn layer(options: &Options, arena: &mut Arena) -> Result<Figure> {
    let arms = [Arm::Fabrique, Arm::Floor, Arm::Script];
    let mut taken = Taken::default();
    for round in 0..options.rounds {
        for arm in alternate(&arms, round) {
            let message = format!("round {round}");
            let sample = Box::pin(arena.run(arm, Change::Layer(&message), true)).await?;
            taken.keep(arm, sample);
        }
    }
    let [ours, floor, script] = arms.map(|arm| taken.of(arm, |sample| sample.total));
    let over_floor = ratios(&ours, &floor);
    let over_script = ratios(&ours, &script);
    Ok(Figure {
        name: "End of push to commit, one layer changed, warm".to_owned(),
        method: LAYER.to_owned(),
        series: vec![
            Series::new("fabrique", "s", ours),
            Series::new("floor", "s", floor),
            Series::new("floor: webhook", "s", taken.of(Arm::Floor, |sample| sample.webhook)),
            Series::new("floor: buildctl", "s", taken.of(Arm::Floor, |sample| sample.build)),
            Series::new("floor: git push", "s", taken.of(Arm::Floor, |sample| sample.push)),
            Series::new("script", "s", script),
            Series::new("script: webhook", "s", taken.of(Arm::Script, |sample| sample.webhook)),
        ],
        checks: vec![
            Check::at_most("fabrique / floor", over_floor, 1.15),
            Check::mostly_below_one("fabrique / script", over_script),
        ],
    })
}

async fn recorded(options: &Options, arena: &mut Arena) -> Result<Figure> {
    let arms = [Arm::Fabrique, Arm::Floor];
    let ours = siblings(arena.source(Arm::Fabrique)).await?;
    let theirs = siblings(arena.source(Arm::Floor)).await?;
    // Built and recorded here; whoever pushes them again finds them.
    for revision in &ours {
        Box::pin(arena.run(Arm::Fabrique, Change::Back(revision), true)).await?;
    }
    for revision in &theirs {
        Box::pin(arena.run(Arm::Floor, Change::Back(revision), false)).await?;
    }
    let mut taken = Taken::default();
    for round in 0..options.rounds {
        let which = usize::from(round % 2 == 1);
        for arm in alternate(&arms, round) {
            let revisions = if arm == Arm::Fabrique { &ours } else { &theirs };
            let sample = Box::pin(arena.run(arm, Change::Back(&revisions[which]), false)).await?;
            taken.keep(arm, sample);
        }
    }
    let [ours, floor] = arms.map(|arm| taken.of(arm, |sample| sample.total));
    let over_floor = ratios(&ours, &floor);
    Ok(Figure {
        name: "End of push to commit, digest recorded already".to_owned(),
        method: RECORDED.to_owned(),
        series: vec![
            Series::new("fabrique", "s", ours),
            Series::new("floor", "s", floor),
            Series::new("floor: webhook", "s", taken.of(Arm::Floor, |sample| sample.webhook)),
            Series::new("floor: git push", "s", taken.of(Arm::Floor, |sample| sample.push)),
        ],
        checks: vec![Check::at_most("fabrique / floor", over_floor, 1.2)],
    })
}

/// Two commits on the same parent: neither is the other's ancestor, so that a push from one to the other is a
/// change of mind and not a rewound branch.
async fn siblings(app: &SampleApp) -> Result<[String; 2]> {
    let parent = app.source.head().await?;
    let mut revisions = [String::new(), String::new()];
    for (number, revision) in revisions.iter_mut().enumerate() {
        app.source.git(&["reset", "--quiet", "--hard", &parent]).await?;
        app.source.write(&app.path("message"), format!("sibling {number}")).await?;
        *revision = app.source.commit(&format!("sibling {number}")).await?;
    }
    Ok(revisions)
}

#[derive(Default)]
struct Taken(Vec<(Arm, Sample)>);

impl Taken {
    fn keep(&mut self, arm: Arm, sample: Sample) {
        self.0.push((arm, sample));
    }

    fn of(&self, arm: Arm, part: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.0.iter().filter(|(of, _)| *of == arm).map(|(_, sample)| part(sample)).collect()
    }
}
