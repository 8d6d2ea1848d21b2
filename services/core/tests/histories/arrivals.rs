//! Sentence 3 as an oracle: a build returns only with its target, and only in place of something else.

use std::collections::BTreeMap;

use fabrique_core::id::Digest;
use fabrique_core::view::Target;

use crate::apps::{Automatic, Value};
use crate::gather::{self, Sight};
use crate::ids::{Rev, number};
use crate::world::World;

/// What deploys the same thing on one channel of one environment: a build, or a revision of the overlay.
type Deployment = (usize, &'static str, Rev, Option<Digest>);

/// How often the target came to be what it is, and how often it had when something was deployed last.
#[derive(Debug, Clone)]
pub(crate) struct Arrivals {
    target: Option<Rev>,
    of: BTreeMap<Rev, u32>,
    last_deployed: BTreeMap<Deployment, u32>,
}

impl Arrivals {
    /// The target's first revision.
    pub(crate) fn at(target: Rev) -> Self {
        Self { target: Some(target), of: BTreeMap::from([(target, 1)]), last_deployed: BTreeMap::new() }
    }

    fn of(&self, rev: Rev) -> u32 {
        self.of.get(&rev).copied().unwrap_or_default()
    }

    /// Whether the target arrived at its revision anew since `automatic` was deployed last, if it ever was.
    pub(crate) fn admit(&self, automatic: &Automatic) -> bool {
        let last = self.last_deployed.get(&deployment(automatic));
        last.is_none_or(|last| *last < self.of(automatic.value.revision))
    }

    pub(crate) fn deployed(&mut self, automatic: &Automatic) {
        let arrivals = self.of(automatic.value.revision);
        self.last_deployed.insert(deployment(automatic), arrivals);
    }
}

fn deployment(automatic: &Automatic) -> Deployment {
    let Value { revision, digest, .. } = &automatic.value;
    (automatic.environment, automatic.channel.as_str(), *revision, digest.clone())
}

/// What should be built, by what was read.
pub(crate) fn target(world: &World, sight: Sight) -> Option<Rev> {
    match gather::view(world, sight, &world.memory.value).target {
        Target::At { revision, .. } => Some(number(&revision)),
        Target::Nothing(_) => None,
    }
}

/// The branch was pointed somewhere, perhaps to where it was.
pub(crate) fn branch_pointed(world: &mut World) {
    let target = target(world, Sight::now(world));
    let arrivals = &mut world.audit.arrivals;
    if let Some(target) = target.filter(|target| arrivals.target != Some(*target)) {
        *arrivals.of.entry(target).or_default() += 1;
    }
    arrivals.target = target;
}
