//! Sentence 6 as oracles: a target that changes no watched path is no difference, and the decision says so.

use fabrique_core::decision::{Action, Advance, ChannelVerdict, Decision, Reason};
use fabrique_core::failure::FailureKind;
use fabrique_core::id::Channel;
use fabrique_core::memory::Memory;
use fabrique_core::relation::Relation;
use fabrique_core::verdict::Verdict;
use fabrique_core::view::{EnvironmentView, View};

use crate::apps::Value;
use crate::arrivals::target;
use crate::audit::{CHANNELS, part};
use crate::gather::Sight;
use crate::ids::{AppsId, Rev, environment_name, key, number, revision};
use crate::world::World;

/// What is said where it is the one thing to say.
const SAID: &str = "no watched path changed since";

/// Where a channel stands as seen from a revision that may be deployed there, in truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Automation does not move it.
    Peoples,
    /// It lacks something of the revision: nothing is deployed, a watched path differs, or nobody can tell.
    Differs,
    /// It shows the revision.
    Shown,
    /// It shows another one, and no watched path differs.
    Quiet(Rev),
}

fn standing(world: &World, base: AppsId, (environment, channel): (usize, Channel), rev: Rev) -> Standing {
    let setup = world.setup.environments[environment];
    let automated = match channel {
        Channel::Image => setup.follows_builds,
        Channel::Infra => setup.follows_head,
    };
    if !automated {
        return Standing::Peoples;
    }
    let state = world.apps.at(base).environments[environment].channel(channel);
    let Some(shown) = &state.shown else { return Standing::Differs };
    if shown.revision == rev {
        return Standing::Shown;
    }
    if is_quiet(world, shown.revision, rev, channel) {
        Standing::Quiet(shown.revision)
    } else {
        Standing::Differs
    }
}

fn is_quiet(world: &World, from: Rev, to: Rev, channel: Channel) -> bool {
    let part = part(channel);
    let same = part(world.source.tree(from)) == part(world.source.tree(to));
    same && !world.source.is_gone(from) && !world.source.is_gone(to)
}

/// Whether a rebuild was asked for since automation deployed what the image channel shows.
fn is_outdated(world: &World, base: AppsId, environment: usize) -> bool {
    let shown = world.apps.at(base).environments[environment].image.shown.as_ref();
    let present = |value: &Value| Some(key(&world.app, value.revision, world.memory.value.rebuild));
    let deployed = world.apps.history(base).filter_map(|id| world.apps.at(id).automatic.as_ref());
    shown.is_some_and(|shown| {
        deployed
            .filter(|a| a.environment == environment && a.channel == Channel::Image)
            .any(|a| a.value.deploys_as(shown) && a.key != present(&a.value))
    })
}

/// Whether everything that automation moves shows the target, or what differs from it in no watched path.
pub(crate) fn shows_the_target(world: &World) -> bool {
    let sight = Sight::now(world);
    let Some(target) = target(world, sight) else { return false };
    let environments = 0..world.setup.environments.len();
    if environments.is_empty() {
        return last_built(world, &world.memory.value).is_some_and(|(rev, outdated)| {
            !outdated && (rev == target || is_quiet(world, rev, target, Channel::Image))
        });
    }
    let shows = |environment: usize, channel: Channel| {
        standing(world, sight.base, (environment, channel), target) != Standing::Differs
    };
    environments.into_iter().all(|environment| {
        CHANNELS.iter().all(|channel| shows(environment, *channel))
            && !is_outdated(world, sight.base, environment)
    })
}

/// Judges commits that were just decided, or passed the guard.
pub(crate) fn drafted(world: &mut World, base: AppsId, advances: &[Advance]) {
    let is_idle = |advance: &Advance| {
        let (name, channel, revision) = match advance {
            Advance::Image { environment, revision, .. } => (environment, Channel::Image, revision),
            Advance::Infra { environment, revision, .. } => (environment, Channel::Infra, revision),
        };
        let environment = (0..world.setup.environments.len()).find(|i| environment_name(*i) == *name);
        environment.is_none_or(|environment| {
            let outdated = channel == Channel::Image && is_outdated(world, base, environment);
            let place = (environment, channel);
            let differs = standing(world, base, place, number(revision)) == Standing::Differs;
            !differs && !outdated
        })
    };
    if advances.iter().any(is_idle) {
        world.violate("6: a commit changes no watched path");
    }
}

/// Judges a decision, a worker's or the reconciler's.
pub(crate) fn decision(world: &mut World, sight: Sight, view: &View, decision: &Decision) {
    let Some(target) = target(world, sight) else { return };
    let past_no_return = view.memory.running.as_ref().is_some_and(|running| running.pushed);
    let builds = match decision.action {
        Action::Build { .. } => true,
        Action::Continue => !past_no_return,
        Action::Stop { .. } | Action::Commit(_) | Action::WaitUntil(_) | Action::Nothing => false,
    };
    if builds && !wants_a_build(world, sight.base, view, target) {
        world.violate("6: a build is started or continued and no watched path differs");
    }
    if view.environments.is_empty() {
        without_environments(world, view, target, decision);
        return;
    }
    let (mut all_quiet, mut image_quiet) = (true, false);
    for (index, environment) in view.environments.iter().enumerate() {
        for said in decision.channels.iter().filter(|said| said.environment == environment.name) {
            let standing = standing(world, sight.base, (index, said.channel), target);
            let plain = is_plain(world, sight.base, (index, environment), said.channel, target);
            if let Standing::Quiet(since) = standing
                && let Some(broken) = misjudged(said, since, plain)
            {
                world.violate(format!("6: {broken} ({} {index}: {})", said.channel, said.verdict));
            }
            all_quiet &= standing != Standing::Differs && (plain || standing == Standing::Peoples);
            image_quiet |= said.channel == Channel::Image && matches!(standing, Standing::Quiet(_));
        }
    }
    if all_quiet && image_quiet {
        world.audit.quiet += 1;
        if !is_silent(decision, view) {
            world.violate(format!("6: a target that changes nothing is answered with: {}", decision.reason));
        }
    }
}

/// Whether nothing but the trees decides over a channel: no hold, no trouble, nothing removed or rewound by a person
/// and no rebuild asked for.
fn is_plain(
    world: &World,
    base: AppsId,
    (index, environment): (usize, &EnvironmentView),
    channel: Channel,
    target: Rev,
) -> bool {
    let (stopped, step) = match channel {
        Channel::Image => {
            let image = &environment.image;
            let stopped = image.hold.is_some() || image.trouble.is_some() || image.taken_back.is_some();
            (stopped || is_outdated(world, base, index), &image.step)
        }
        Channel::Infra => {
            let infra = &environment.infra;
            let stopped = infra.hold.is_some() || infra.trouble.is_some() || infra.taken_back.is_some();
            (stopped || environment.image.digest.is_none(), &infra.step)
        }
    };
    let rewound = |from: Rev| world.source.truly(from, target) == Relation::Behind;
    !stopped && !step.as_ref().is_some_and(|step| rewound(number(&step.from)))
}

fn misjudged(said: &ChannelVerdict, since: Rev, plain: bool) -> Option<&'static str> {
    match &said.verdict {
        Verdict::Unchanged { since: told } => {
            (number(told) != since).then_some("another revision is said to be deployed")
        }
        Verdict::Advance if said.channel == Channel::Infra || plain => Some("what changes nothing advances"),
        _ if plain => Some("what changes nothing is not said to be unchanged"),
        _ => None,
    }
}

/// Nothing is done, but that a build which nothing needs is stopped, and the reason is that nothing changed.
fn is_silent(decision: &Decision, view: &View) -> bool {
    let cancelled = view.memory.failure.as_ref().is_some_and(|f| f.kind == FailureKind::Cancelled);
    let said = decision.reason.to_string().contains(SAID);
    match (&decision.action, &decision.reason) {
        (Action::Nothing, Reason::Settled(Verdict::Unchanged { .. })) => said,
        (Action::Stop { superseded_by: None }, Reason::NotWanted { .. }) => said || cancelled,
        (Action::Continue, Reason::PastNoReturn(_)) => true,
        _ => false,
    }
}

fn wants_a_build(world: &World, base: AppsId, view: &View, target: Rev) -> bool {
    if view.environments.is_empty() {
        return last_built(world, &view.memory).is_none_or(|(rev, outdated)| {
            outdated || rev == target || !is_quiet(world, rev, target, Channel::Image)
        });
    }
    (0..view.environments.len()).any(|environment| {
        let place = (environment, Channel::Image);
        standing(world, base, place, target) == Standing::Differs || is_outdated(world, base, environment)
    })
}

/// The revision last built, and whether a rebuild was asked for since.
fn last_built(world: &World, memory: &Memory) -> Option<(Rev, bool)> {
    let built = memory.built.as_ref()?;
    let rev = number(&built.revision);
    Some((rev, built.key != key(&world.app, rev, memory.rebuild)))
}

/// The same of an app that is built and deployed nowhere: its last build stands for what is deployed.
fn without_environments(world: &mut World, view: &View, target: Rev, decision: &Decision) {
    let Some((rev, false)) = last_built(world, &view.memory) else { return };
    if rev == target || view.record.is_some() || !is_quiet(world, rev, target, Channel::Image) {
        return;
    }
    world.audit.quiet += 1;
    let since = Verdict::Unchanged { since: revision(rev) };
    let settled = decision.action == Action::Nothing && decision.reason == Reason::Settled(since);
    if !settled && !is_silent(decision, view) {
        world.violate(format!("6: a target that changes nothing is answered with: {}", decision.reason));
    }
}
