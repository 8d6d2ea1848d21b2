//! How a [`View`] is gathered from the truth: the contract between the decision and whoever feeds it.

use std::collections::BTreeSet;

use fabrique_core::decision::{Decision, decide};
use fabrique_core::id::{BuildKey, Channel};
use fabrique_core::memory::{ChannelMemory, Committed, Memory};
use fabrique_core::relation::{Relation, Watched};
use fabrique_core::view::{
    Declared, EnvironmentView, HoldView, ImageView, InfraView, LastBuilt, Step, Target, View,
};

use crate::apps::{Automatic, ChannelState, Value};
use crate::ids::{AppsId, Rev, apps_revision, environment_name, key, number, revision};
use crate::source::Tree;
use crate::world::World;

/// What was read for one decision: a tree of `cluster/apps` and a head of the source read after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sight {
    pub(crate) base: AppsId,
    pub(crate) head: Option<Rev>,
}

impl Sight {
    pub(crate) fn now(world: &World) -> Self {
        Self { base: world.apps.head(), head: world.source.head() }
    }

    /// The head, or the ancestor that it pins, and whether the app may be changed.
    pub(crate) fn target(self, world: &World) -> Option<(Rev, Declared)> {
        let head = self.head?;
        let declares = world.source.tree(head).declares;
        let refused = |why: &str| Declared::Refused(why.into());
        let ready = if declares.not_ready { Declared::Waits("not ready".into()) } else { Declared::Admitted };
        Some(match declares.pin {
            None => (head, ready),
            Some(pin) if !matches!(world.source.truly(pin, head), Relation::Same | Relation::Ahead) => {
                (head, refused("the pin is no ancestor"))
            }
            Some(pin) if self.is_behind(world, pin) => (pin, refused("the pin is behind what is deployed")),
            Some(pin) => (pin, ready),
        })
    }

    /// Whether automation would lead a channel back to `pin`.
    fn is_behind(self, world: &World, pin: Rev) -> bool {
        let channels = world.apps.at(self.base).environments.iter().zip(&world.setup.environments);
        let mut followed = channels.flat_map(|(state, setup)| {
            [(&state.image, setup.follows_builds), (&state.infra, setup.follows_head)]
        });
        followed.any(|(channel, follows)| {
            let shown = channel.shown.as_ref().filter(|_| follows);
            shown.is_some_and(|shown| world.source.relation(shown.revision, pin) == Relation::Behind)
        })
    }
}

/// Decides, and checks that the same view gets the same answer.
pub(crate) fn decide_twice(world: &mut World, view: &View) -> Decision {
    let decision = decide(view);
    if decide(&view.clone()) != decision {
        world.violate("the decision is not a function of its view");
    }
    decision
}

pub(crate) fn view(world: &World, sight: Sight, memory: &Memory) -> View {
    let (rev, declared) = sight.target(world).unzip();
    let target = match rev {
        None => Target::Nothing("the branch does not exist".into()),
        Some(rev) => Target::At { revision: revision(rev), key: key(&world.app, rev, memory.rebuild) },
    };
    let environments = rev.map_or_else(Vec::new, |rev| {
        (0..world.setup.environments.len())
            .map(|i| environment(world, sight, i, (rev, None), memory))
            .collect()
    });
    let step = |from: Rev, to: Rev| step(world, from, to, |tree| tree.watched);
    let record = match &target {
        Target::At { key, .. } => world.record(key),
        Target::Nothing(_) => None,
    };
    View {
        now: world.now,
        head: sight.head.map(revision),
        target,
        declared: declared.unwrap_or_default(),
        awaits: BTreeSet::new(),
        environments,
        last_built: memory.built.as_ref().zip(rev).filter(|_| world.setup.environments.is_empty()).map(
            |(built, rev)| {
                let from = number(&built.revision);
                let same_inputs = built.key == key(&world.app, from, memory.rebuild);
                LastBuilt { step: step(from, rev), same_inputs }
            },
        ),
        record,
        running_to_target: memory
            .running
            .as_ref()
            .zip(rev)
            .map(|(running, rev)| running_to(world, number(&running.revision), rev)),
        memory: memory.clone(),
        policy: world.policy.clone(),
    }
}

/// A build of a revision that left the branch could never be committed, however alike the trees are.
fn running_to(world: &World, running: Rev, head: Rev) -> Watched {
    match world.source.relation(running, head) {
        Relation::Same | Relation::Ahead => world.source.watched(running, head, |tree| tree.watched),
        Relation::Behind | Relation::Diverged | Relation::Unknown => Watched::Changed,
    }
}

/// One environment: its image channel gathered for `candidate`, its infra channel for the target. A finished
/// build brings the key it was built under.
pub(crate) fn environment(
    world: &World,
    sight: Sight,
    index: usize,
    (candidate, built_under): (Rev, Option<&BuildKey>),
    memory: &Memory,
) -> EnvironmentView {
    let target = sight.target(world).map_or(candidate, |(target, _)| target);
    let state = &world.apps.at(sight.base).environments[index];
    let setup = world.setup.environments[index];
    let name = environment_name(index);
    let (image, infra) = (memory.channel(&name, Channel::Image), memory.channel(&name, Channel::Infra));
    let step_of = |channel: &ChannelState, to: Rev, part: fn(Tree) -> u32| {
        channel.shown.as_ref().map(|shown| step(world, shown.revision, to, part))
    };
    let trouble = || (!state.agrees()).then(|| "a binding does not show what the composition says".into());
    EnvironmentView {
        name,
        image: ImageView {
            trouble: trouble(),
            waits: None,
            follows_builds: setup.follows_builds,
            hold: hold(world, &state.image),
            step: step_of(&state.image, candidate, |tree| tree.watched),
            digest: state.image.shown.as_ref().and_then(|shown| shown.digest.clone()),
            same_inputs: same_inputs(world, &state.image, &image, (candidate, built_under), memory.rebuild),
            taken_back: taken_back(world, &state.image, &image, candidate, |tree| tree.watched),
        },
        infra: InfraView {
            trouble: trouble(),
            waits: None,
            follows_head: setup.follows_head,
            hold: hold(world, &state.infra),
            step: step_of(&state.infra, target, |tree| tree.overlay),
            taken_back: taken_back(world, &state.infra, &infra, target, |tree| tree.overlay),
        },
    }
}

fn step(world: &World, from: Rev, to: Rev, part: fn(Tree) -> u32) -> Step {
    Step {
        from: revision(from),
        relation: world.source.relation(from, to),
        watched: world.source.watched(from, to, part),
    }
}

fn hold(world: &World, channel: &ChannelState) -> Option<HoldView> {
    let hold = channel.hold.filter(|hold| hold.in_force(world.now))?;
    Some(HoldView { by: "ada".into(), reason: "trying something".into(), until: hold.until })
}

fn shows(channel: &ChannelState, committed: &Committed) -> bool {
    channel.shown.as_ref().is_some_and(|shown| {
        shown.revision == number(&committed.revision) && shown.digest == committed.digest
    })
}

/// Whether the deployed image was built under the present inputs. What automation did not commit has no
/// known key, and a finished build whose own inputs are outdated has nothing to set right.
fn same_inputs(
    world: &World,
    channel: &ChannelState,
    memory: &ChannelMemory,
    (candidate, built_under): (Rev, Option<&BuildKey>),
    rebuild: u32,
) -> bool {
    let present = |rev: Rev| key(&world.app, rev, rebuild);
    if built_under.is_some_and(|built_under| *built_under != present(candidate)) {
        return true;
    }
    let committed = memory.committed.as_ref().filter(|committed| shows(channel, committed));
    let known = committed.and_then(|committed| Some((number(&committed.revision), committed.key.as_ref()?)));
    known.is_none_or(|(rev, deployed_under)| *deployed_under == present(rev))
}

fn taken_back(
    world: &World,
    channel: &ChannelState,
    memory: &ChannelMemory,
    candidate: Rev,
    part: fn(Tree) -> u32,
) -> Option<Step> {
    let removed = memory.committed.as_ref().filter(|committed| !shows(channel, committed))?;
    Some(step(world, number(&removed.revision), candidate, part))
}

/// Brings `memory` up to what is known at `tip`, by the memory's own rules: intents end as committed or as given up,
/// one that was given up is recognised where its value shows, and the branch's history is asked once in a memory's life.
pub(crate) fn read_back(world: &World, tip: AppsId, memory: &mut Memory) {
    for index in 0..world.setup.environments.len() {
        for channel in [Channel::Image, Channel::Infra] {
            let known = memory.channel_mut(&environment_name(index), channel);
            if let Some(intent) = &known.intent {
                let commit = intent.commit.commit.as_ref().map(number);
                known.resolve_intent(commit.is_some_and(|id| world.apps.is_pushed(id)));
            }
            if let Some(shown) = &world.apps.at(tip).environments[index].channel(channel).shown {
                known.recognise(&revision(shown.revision), shown.digest.as_ref());
            }
            if known.committed.is_some() || known.asked_git {
                continue;
            }
            known.asked_git = true;
            known.committed = world.apps.history(tip).find_map(|id| {
                let automatic = world.apps.at(id).automatic.as_ref()?;
                let here = automatic.environment == index && automatic.channel == channel;
                here.then(|| committed(id, automatic))
            });
        }
    }
}

pub(crate) fn committed(id: AppsId, automatic: &Automatic) -> Committed {
    let Value { revision: rev, digest, .. } = &automatic.value;
    Committed {
        commit: Some(apps_revision(id)),
        revision: revision(*rev),
        digest: digest.clone(),
        key: automatic.key.clone(),
    }
}
