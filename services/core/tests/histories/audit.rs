//! The six sentences as oracles. They look at the world's true history, never at what fabrique remembers.

use std::collections::BTreeSet;

use fabrique_core::decision::{Action, Decision, Reason};
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{BuildKey, Channel};
use fabrique_core::relation::Relation;
use fabrique_core::verdict::Verdict;
use fabrique_core::view::{Declared, View};
use fabrique_core::work::Generation;

use crate::apps::{AppsCommit, Automatic, Value};
use crate::arrivals::Arrivals;
use crate::gather::Sight;
use crate::ids::{AppsId, Rev, key};
use crate::quiet;
use crate::source::Tree;
use crate::worker::Draft;
use crate::world::World;

pub(crate) const CHANNELS: [Channel; 2] = [Channel::Image, Channel::Infra];

/// What the oracles remember.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    /// Per environment and channel: the automatic commit that a person removed.
    removed: Vec<[Option<Value>; 2]>,
    /// Per environment and channel: the newest automatic commit.
    committed: Vec<[Option<Value>; 2]>,
    /// Keys whose build was started and has met nothing that excuses another start.
    started: BTreeSet<BuildKey>,
    superseded_in_a_row: u32,
    pub(crate) automatic_commits: u32,
    pub(crate) arrivals: Arrivals,
    /// The newest wake whose reader came to a decision.
    pub(crate) decided: Generation,
    /// Decisions at a target that changes no watched path, with nothing else to say.
    pub(crate) quiet: u32,
}

impl Audit {
    pub(crate) fn new(environments: usize) -> Self {
        Self {
            removed: vec![[None, None]; environments],
            committed: vec![[None, None]; environments],
            started: BTreeSet::new(),
            superseded_in_a_row: 0,
            automatic_commits: 0,
            arrivals: Arrivals::at(0),
            decided: Generation(0),
            quiet: 0,
        }
    }

    /// Something happened after which a key may be built once more: a crash, a person's word, a digest
    /// that the registry lost.
    pub(crate) fn builds_may_start_again(&mut self) {
        self.started.clear();
    }

    /// A build ended by itself.
    pub(crate) fn ended(&mut self) {
        self.superseded_in_a_row = 0;
    }

    pub(crate) fn failed(&mut self, key: &BuildKey) {
        self.started.remove(key);
    }
}

fn slot(channel: Channel) -> usize {
    match channel {
        Channel::Image => 0,
        Channel::Infra => 1,
    }
}

pub(crate) fn part(channel: Channel) -> fn(Tree) -> u32 {
    match channel {
        Channel::Image => |tree| tree.watched,
        Channel::Infra => |tree| tree.overlay,
    }
}

pub(crate) fn started(world: &mut World, key: &BuildKey) {
    let alone = world.workers.iter().filter(|worker| worker.job.is_some()).count() == 0;
    if !world.audit.started.insert(key.clone()) && alone {
        world.violate("a key is built again although its build neither failed nor was lost");
    }
}

pub(crate) fn stopped(world: &mut World, superseded: bool) {
    world.audit.builds_may_start_again();
    if superseded {
        world.audit.superseded_in_a_row += 1;
        if world.audit.superseded_in_a_row > world.policy.max_supersedes {
            world.violate("more builds in a row are superseded than the policy allows");
        }
    }
}

/// Judges an automatic commit that just reached the branch.
pub(crate) fn committed(world: &mut World, id: AppsId, draft: &Draft) {
    let commit = world.apps.at(id).clone();
    let (Some(automatic), Some(parent)) = (commit.automatic.clone(), commit.parent) else { return };
    let before = world.apps.at(parent).clone();
    world.audit.automatic_commits += 1;
    world.log(format!(
        "   a{id}: {} {} := c{} (was {})",
        automatic.channel,
        automatic.environment,
        automatic.value.revision,
        shown(&before, &automatic).map_or("nothing".into(), |v| format!("c{}", v.revision)),
    ));
    for broken in broken_by(world, &commit, &automatic, &before, draft) {
        world.violate(format!("a{id}: {broken}"));
    }
    world.audit.arrivals.deployed(&automatic);
    let (environment, slot) = (automatic.environment, slot(automatic.channel));
    world.audit.removed[environment][slot] = None;
    world.audit.committed[environment][slot] = Some(automatic.value);
}

fn shown<'a>(commit: &'a AppsCommit, automatic: &Automatic) -> Option<&'a Value> {
    commit.environments[automatic.environment].channel(automatic.channel).shown.as_ref()
}

fn broken_by(
    world: &World,
    commit: &AppsCommit,
    automatic: &Automatic,
    before: &AppsCommit,
    draft: &Draft,
) -> Vec<&'static str> {
    let rev = automatic.value.revision;
    let source = &world.source;
    let released = draft.released == Some(rev);
    // Moved on and reset to the very base of a push that is stopped just before it: a compare-and-swap of
    // names cannot tell this from a branch that never moved.
    let back_at_base = draft.resets != world.apps.resets();
    let (environment, channel) = (automatic.environment, automatic.channel);
    let mut broken = Vec::new();
    let mut check = |holds: bool, sentence| {
        if !holds {
            broken.push(sentence);
        }
    };
    let setup = world.setup.environments[environment];
    let automated = match channel {
        Channel::Image => setup.follows_builds,
        Channel::Infra => setup.follows_head,
    };
    check(automated, "1: the channel is moved by people only");
    if let Some(head) = draft.sight.head {
        let ancestor = matches!(source.truly(rev, head), Relation::Same | Relation::Ahead);
        check(ancestor, "2: the commit is not on the branch");
    }
    let admitted = draft.sight.target(world).is_some_and(|(_, declared)| declared == Declared::Admitted);
    check(admitted, "the declaration does not admit a change");
    if let Some(deployed) = shown(before, automatic) {
        let off_branch = |head: Rev| source.truly(deployed.revision, head) == Relation::Diverged;
        let older = source.truly(deployed.revision, rev) == Relation::Behind;
        let excused = released || draft.sight.head.is_some_and(off_branch);
        check(!older || excused, "2: an older revision replaces a newer one");
        let beside = source.truly(deployed.revision, rev) == Relation::Diverged;
        let is_target = draft.sight.target(world).is_some_and(|(target, _)| target == rev);
        check(!beside || is_target || excused, "2: what the branch holds is replaced by a build without it");
        check(!deployed.deploys_as(&automatic.value), "3: the commit changes nothing");
    }
    if let Some(deployed) = shown(before, automatic).filter(|deployed| deployed.build.is_some()) {
        let attempt_is_older = deployed.revision == rev && automatic.value.build < deployed.build;
        check(!attempt_is_older, "2: an older build of one revision replaces a newer one");
    }
    let last = world.audit.committed[environment][slot(channel)].as_ref();
    let again = last.is_some_and(|last| last.deploys_as(&automatic.value));
    check(!again || released || back_at_base, "3: a second automatic commit of one build in a row");
    let arrived = world.audit.arrivals.admit(automatic);
    check(arrived || released || back_at_base, "3: one build twice at one arrival of its target");
    let agree = commit.environments[environment].agrees() && before.environments[environment].agrees();
    check(agree, "4: bindings and composition disagree, or a person's binding was overwritten");
    let filled = before.environments[environment].image.shown.is_some();
    check(channel == Channel::Image || filled, "4: an overlay is copied without an image to fill in");
    let hold = before.environments[environment].channel(channel).hold;
    check(!hold.is_some_and(|hold| hold.in_force(world.now)), "5: a held channel moves");
    let returns = world.audit.removed[environment][slot(channel)].as_ref().is_some_and(|removed| {
        let gone = draft.gone.contains(&removed.revision);
        is_removed(world, channel, rev, (removed.revision, gone))
    });
    check(!returns || released || back_at_base, "5: what a person removed comes back");
    let recorded = automatic.value.digest.as_ref().is_none_or(|digest| {
        world
            .records
            .values()
            .any(|r| r.digest == *digest && Some(&r.build) == automatic.value.build.as_ref())
            || world.setup.heedless
    });
    check(recorded, "the digest is not the recorded one of its build");
    broken
}

/// Whether `rev` went away with `removed`: it is the same or an ancestor, or shows nothing else where it
/// matters, or the forge lost `removed` so that nobody can tell.
fn is_removed(world: &World, channel: Channel, rev: Rev, (removed, gone): (Rev, bool)) -> bool {
    let part = part(channel);
    matches!(world.source.truly(removed, rev), Relation::Same | Relation::Behind)
        || part(world.source.tree(removed)) == part(world.source.tree(rev))
        || gone
}

/// A person, or `repair`, changed `cluster/apps`: notes what automation had committed and is not shown
/// any more.
pub(crate) fn person_changed(world: &mut World) {
    for (environment, state) in world.apps.now().iter().enumerate() {
        for channel in CHANNELS {
            let now = state.channel(channel).shown.as_ref();
            let last = world.audit.committed[environment][slot(channel)].as_ref();
            let stays = last.is_none_or(|last| now.is_some_and(|now| now.deploys_as(last)));
            world.audit.removed[environment][slot(channel)] = if stays { None } else { last.cloned() };
        }
    }
}

/// Judges a worker's decision: sentence 6, and that an answer which acts has something to act on.
pub(crate) fn decision(world: &mut World, sight: Sight, view: &View, decision: &Decision) {
    quiet::decision(world, sight, view, decision);
    let acts = match &decision.action {
        Action::Build { .. } => true,
        Action::Commit(advances) => {
            if advances.is_empty() {
                world.violate("a commit of nothing is decided");
            }
            true
        }
        Action::WaitUntil(until) => {
            if *until <= world.now {
                world.violate("a wait that is over is decided");
            }
            false
        }
        Action::Continue | Action::Stop { .. } => {
            if view.memory.running.is_none() {
                world.violate("a build that does not run is continued or stopped");
            }
            false
        }
        Action::Nothing => false,
    };
    let Some((_, declared)) = sight.target(world) else {
        if acts {
            world.violate("something is done without a branch");
        }
        return;
    };
    if acts && declared != Declared::Admitted {
        world.violate("something is done although the declaration does not admit it");
    }
}

/// Judges the world at rest: sentence 1 with its exceptions, each of which must be the stated reason.
pub(crate) fn at_rest(world: &mut World, view: &View, decision: &Decision) {
    let memory = &world.memory.value;
    if memory.running.as_ref().is_some_and(|running| running.token == world.work.value.token) {
        world.violate("a worker released the app and left its build behind");
        return;
    }
    let Some((target, declared)) = Sight::now(world).target(world) else { return };
    let fails = world.source.is_broken(target);
    let built_key = key(&world.app, target, memory.rebuild);
    let cancelled = memory
        .failure
        .as_ref()
        .is_some_and(|failure| failure.kind == FailureKind::Cancelled && failure.key == built_key);
    if world.setup.environments.is_empty() {
        let built = memory.built.as_ref().map(|built| crate::ids::number(&built.revision));
        let fine = built.is_some_and(|built| {
            world.source.tree(built).watched == world.source.tree(target).watched
                || world.source.truly(built, target) == Relation::Behind
        });
        let recorded = world.record(&built_key).is_some();
        let admitted = declared == Declared::Admitted;
        if admitted && !(fine || recorded || fails || cancelled) {
            world.violate("1: the newest target is not built");
        }
    }
    let mut broken = Vec::new();
    for verdict in &decision.channels {
        let environment = view.environments.iter().position(|e| e.name == verdict.environment);
        let Some(environment) = environment else { continue };
        let excused = verdict.channel == Channel::Image && (fails || cancelled);
        if let Some(why) = misjudged(world, environment, verdict.channel, &verdict.verdict, target, excused) {
            broken.push(format!("{why} ({} {environment}: {})", verdict.channel, verdict.verdict));
        }
    }
    for what in broken {
        world.violate(what);
    }
    let waits = matches!(decision.action, Action::Nothing | Action::WaitUntil(_));
    if !waits {
        world.violate(format!("1: at rest, and yet there is something to do: {}", decision.reason));
    }
    if (fails || cancelled) && !waits_as_failed(decision) {
        world.violate(format!(
            "a target that cannot be built is not said to have failed: {}",
            decision.reason
        ));
    }
}

fn waits_as_failed(decision: &Decision) -> bool {
    let wanted =
        decision.channels.iter().any(|c| c.channel == Channel::Image && c.verdict == Verdict::Advance);
    !wanted || matches!(decision.reason, Reason::Failed { .. })
}

/// Why the verdict on a channel at rest does not fit the world.
fn misjudged(
    world: &World,
    environment: usize,
    channel: Channel,
    verdict: &Verdict,
    head: Rev,
    excused: bool,
) -> Option<&'static str> {
    let state = &world.apps.now()[environment];
    let deployed = state.channel(channel).shown.as_ref().map(|shown| shown.revision);
    let same_part =
        |rev: Rev| part(channel)(world.source.tree(rev)) == part(channel)(world.source.tree(head));
    let relation = deployed.map(|rev| world.source.truly(rev, head));
    let removed = world.audit.removed[environment][slot(channel)].as_ref();
    let (fits, why) = match verdict {
        Verdict::Advance => (excused, "1: the newest target is not deployed"),
        Verdict::UpToDate => (deployed == Some(head), "the target is not what is deployed"),
        Verdict::Unchanged { .. } => (deployed.is_some_and(same_part), "6: a watched path differs"),
        Verdict::Held { .. } => {
            let hold = state.channel(channel).hold;
            (hold.is_some_and(|hold| hold.in_force(world.now)), "5: nobody holds the channel")
        }
        Verdict::Trouble(_) => (!state.agrees(), "4: the bindings agree"),
        Verdict::TakenBack { .. } => {
            let fits = removed.is_some_and(|removed| {
                let gone = world.source.is_gone(removed.revision);
                is_removed(world, channel, head, (removed.revision, gone))
            });
            (fits, "5: nobody removed this")
        }
        Verdict::Rewound { .. } => (relation == Some(Relation::Behind), "2: the branch is not behind"),
        Verdict::DeployedUnknown { .. } => {
            (deployed.is_some_and(|rev| world.source.is_gone(rev)), "what is deployed is known")
        }
        Verdict::NoImageYet => (state.image.shown.is_none(), "there is an image"),
        Verdict::NotAutomatic => {
            let setup = world.setup.environments[environment];
            let automated = match channel {
                Channel::Image => setup.follows_builds,
                Channel::Infra => setup.follows_head,
            };
            (!automated, "automation moves this channel")
        }
        Verdict::NotReady(_) | Verdict::Misdeclared(_) => {
            let declared = Sight::now(world).target(world).and_then(|(_, declared)| declared.verdict());
            (declared.as_ref() == Some(verdict), "the declaration says something else")
        }
        Verdict::Older { .. }
        | Verdict::NotDescendant { .. }
        | Verdict::OffBranch
        | Verdict::OtherImage { .. } => (false, "a target is judged like a finished build"),
    };
    (!fits).then_some(why)
}
