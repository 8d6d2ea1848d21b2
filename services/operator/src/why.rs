//! The whole decision about one app, for a person who wants to know.

use std::collections::BTreeSet;

use fabrique_core::app::App;
use fabrique_core::decision::{Action, Decision, Reason, decide};
use fabrique_core::failure::FailureKind;
use fabrique_core::id::{BuildId, BuildKey, Channel, Digest, EnvironmentName, Revision};
use fabrique_core::memory::{Built, Memory};
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::Verdict;
use fabrique_core::view::{Target, View};
use fabrique_core::work::{Due, WorkItem};
use fabrique_observer::Apps;
use fabrique_ports::PortResult;
use fabrique_ports::records::ImageRecord;
use serde::Serialize;

use crate::error::OperatorError;
use crate::mirror::UpstreamFacts;
use crate::operator::Operator;
use crate::status::AppStatus;

/// Everything that decides what becomes of one app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Why {
    /// The decision and what was read for it.
    #[serde(flatten)]
    pub status: AppStatus,
    /// The build key of the target.
    pub key: Option<BuildKey>,
    /// What is recorded under that key.
    pub record: Option<RecordFacts>,
    /// The daemon of the running build and how it is isolated, like `builder-3 (userns)`, once it has one.
    pub running_on: Option<String>,
    /// What is known of its source on GitHub, where it comes from there.
    pub upstream: Option<UpstreamFacts>,
    /// What is remembered.
    pub memory: MemoryFacts,
    /// The newest wake of the app.
    pub wanted: u64,
    /// The newest wake that is served.
    pub done: u64,
    /// What happens next, or what a person does next, in one sentence.
    pub next: String,
}

/// One app with the decision about it.
pub(crate) struct Regarded {
    pub(crate) item: WorkItem,
    /// What the decision was made from, with what is remembered.
    pub(crate) view: View,
    pub(crate) decision: Decision,
}

/// What is recorded under a build key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordFacts {
    /// The record.
    pub record: ImageRecord,
    /// Whether the registry answers for its digest; absent when it could not be asked.
    pub in_registry: Option<bool>,
    /// The daemon that built it and how it is isolated, while the history has the build.
    pub built_on: Option<String>,
}

/// What is remembered of an app, as far as it decides anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryFacts {
    /// How often it was asked to be built anew.
    pub rebuild: u32,
    /// How many builds in a row were superseded.
    pub supersedes: u32,
    /// The target for which a person lifted `rewound` and `taken back`.
    pub released: Option<Revision>,
    /// The last build that ended with a digest.
    pub built: Option<Built>,
    /// What automation committed.
    pub committed: Vec<CommittedFact>,
    /// Channels with a commit whose outcome is not read back yet.
    pub intents: Vec<String>,
    /// Revisions whose commit status is still pending.
    pub pending_statuses: BTreeSet<Revision>,
}

/// The last automatic commit on one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CommittedFact {
    /// The environment.
    pub environment: EnvironmentName,
    /// The channel.
    pub channel: Channel,
    /// The deployed source revision.
    pub revision: Revision,
    /// The image, on the image channel.
    pub digest: Option<Digest>,
    /// The commit on `cluster/apps`.
    pub commit: Option<Revision>,
}

impl Operator {
    /// The whole decision about one app.
    ///
    /// # Errors
    /// [`OperatorError::UnknownApp`], or when a peer that has to be asked does not answer.
    pub async fn why(&self, name: &str) -> Result<Why, OperatorError> {
        let (apps, app) = self.find(name).await?;
        let regarded = self.regard(&apps, &app).await?;
        let (status, next) = self.told(&apps, &app, &regarded);
        let Regarded { item, view, .. } = regarded;
        let key = match &view.target {
            Target::At { key, .. } => Some(key.clone()),
            Target::Nothing(_) => None,
        };
        let record = match &key {
            Some(key) => self.record_facts(key).await?,
            None => None,
        };
        let running_on = match &view.memory.running {
            Some(running) => self.daemon_of(&running.build).await,
            None => None,
        };
        let upstream = self.observer.upstream(&app).await?;
        let upstream = UpstreamFacts::of(&app, upstream.as_ref(), view.now, self.fresh_for);
        Ok(Why {
            upstream,
            running_on,
            next,
            status,
            key,
            record,
            memory: MemoryFacts::of(&view.memory),
            wanted: item.wanted.0,
            done: item.record.done.0,
        })
    }

    /// Reads one app and decides about it, as a worker would now.
    pub(crate) async fn regard(&self, apps: &Apps, app: &App) -> PortResult<Regarded> {
        let (memory, item) =
            tokio::try_join!(self.ports.memories.memory(&app.name), self.ports.board.work_of(&app.name))?;
        let (wanted, record, revision) = item;
        let item = WorkItem { app: app.name.clone(), wanted, record, revision, lease_expired: false };
        let view = self.observer.observe(app, apps, &memory.value, self.now()).await?;
        let decision = decide(&view);
        Ok(Regarded { item, view, decision })
    }

    /// How an app stands, and what happens next or what helps, for people.
    pub(crate) fn told(&self, apps: &Apps, app: &App, regarded: &Regarded) -> (AppStatus, String) {
        let Regarded { item, view, decision } = regarded;
        let status = AppStatus::of(app, apps, view, decision, item);
        let next = next(app, &status, decision, &view.memory, item, view.now);
        (status, next)
    }

    async fn record_facts(&self, key: &BuildKey) -> PortResult<Option<RecordFacts>> {
        let Some(record) = self.ports.records.record(key).await? else { return Ok(None) };
        let in_registry = self.ports.registry.has(&record.image, &record.digest).await;
        if let Err(error) = &in_registry {
            tracing::debug!(%error, "the registry could not be asked for the recorded image");
        }
        let built_on = self.daemon_of(&record.build).await;
        Ok(Some(RecordFacts { record, in_registry: in_registry.ok(), built_on }))
    }

    /// Where a build ran. The history is for people and may have lost it: that is nothing to fail for.
    async fn daemon_of(&self, build: &BuildId) -> Option<String> {
        let entry = self.ports.history.build(build).await;
        entry.inspect_err(|error| tracing::debug!(%build, %error, "the history was not read")).ok()??.daemon
    }
}

impl MemoryFacts {
    fn of(memory: &Memory) -> Self {
        let (mut committed, mut intents) = (Vec::new(), Vec::new());
        for (environment, remembered) in &memory.environments {
            for channel in [Channel::Image, Channel::Infra] {
                let facts = remembered.channel(channel);
                committed.extend(facts.committed.as_ref().map(|commit| CommittedFact {
                    environment: environment.clone(),
                    channel,
                    revision: commit.revision.clone(),
                    digest: commit.digest.clone(),
                    commit: commit.commit.clone(),
                }));
                intents.extend(facts.intent.as_ref().map(|_| format!("{environment}/{channel}")));
            }
        }
        Self {
            rebuild: memory.rebuild,
            supersedes: memory.supersedes,
            released: memory.released.clone(),
            built: memory.built.clone(),
            committed,
            intents,
            pending_statuses: memory.pending_statuses.clone(),
        }
    }
}

/// What happens next without anybody's help, or what helps.
fn next(
    app: &App,
    status: &AppStatus,
    decision: &Decision,
    memory: &Memory,
    item: &WorkItem,
    now: Timestamp,
) -> String {
    let name = &app.name;
    let acts = |verb: &str| {
        waits_for(item, now).map_or_else(
            || {
                format!(
                    "no wake is waiting: the next sweep, or `fabrique retry {name}`, brings a worker that {verb}"
                )
            },
            |who| format!("{who} {verb}"),
        )
    };
    match &decision.action {
        Action::Build { .. } => acts("builds it"),
        Action::Commit(_) => acts("writes it to cluster/apps"),
        Action::Stop { .. } => acts("stops the build"),
        Action::Continue => match &memory.running {
            Some(running) => format!("`fabrique logs {} -f` follows the build", running.build),
            None => "a worker is on it".to_owned(),
        },
        Action::WaitUntil(until) => {
            let wait = now.until(*until).as_secs();
            match decision.reason {
                Reason::Failed { .. } => {
                    format!("it is tried again in {wait} s; `fabrique retry {name}` tries now")
                }
                _ => format!("the hold ends in {wait} s; `fabrique release {name}` ends it now"),
            }
        }
        Action::Nothing => resting(app, status, &decision.reason),
    }
}

/// Who will act; nothing when nobody was told.
fn waits_for(item: &WorkItem, now: Timestamp) -> Option<String> {
    if let Some(holder) = &item.record.holder {
        return Some(holder.clone());
    }
    match item.due(now) {
        Due::Now => Some("the next free worker".to_owned()),
        Due::At(until) => Some(format!("a worker, in {} s,", now.until(until).as_secs())),
        Due::No => None,
    }
}

fn resting(app: &App, status: &AppStatus, reason: &Reason) -> String {
    let (name, source) = (&app.name, &app.source);
    match reason {
        Reason::NoTarget(_) => {
            format!("push to {} of {}, or correct apps/{name}/app.yaml", source.branch, source.repo)
        }
        Reason::Failed { kind: FailureKind::Cancelled, .. } => {
            format!("push a newer revision, or `fabrique retry {name}`")
        }
        Reason::Failed { .. } => format!("push a fix, or `fabrique retry {name}` if the cause was elsewhere"),
        Reason::Settled(Verdict::Trouble(why)) => status.way_out(why),
        Reason::Settled(Verdict::NotReady(_)) => "it goes on by itself when that has ended".to_owned(),
        Reason::Settled(Verdict::Misdeclared(_)) => {
            format!("correct what is declared; `fabrique validate {name}` tells everything that is wrong")
        }
        Reason::Settled(verdict) if verdict.needs_person() => {
            format!("push a newer revision, or `fabrique release {name}`")
        }
        Reason::PastNoReturn(_) => "a worker writes it to cluster/apps".to_owned(),
        Reason::NotBuilt(_)
        | Reason::Retry { .. }
        | Reason::Recorded(_)
        | Reason::InfraChanged(_)
        | Reason::Building(_)
        | Reason::FinishFirst { .. }
        | Reason::Superseded { .. }
        | Reason::NotWanted { .. }
        | Reason::Built(_)
        | Reason::Settled(_) => "nothing to do".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fabrique_core::work::{Generation, WorkRecord};
    use fabrique_gitops::{Entry, Registrations, Rules, Tree};

    use super::*;

    const NOW: Timestamp = Timestamp(1_000);

    fn app() -> App {
        let text = "apiVersion: fabrique/v1\nkind: App\nmetadata: { name: citation }\nspec:\n  \
                    source: { repo: atlas/citation }\n  image: registry:80/citation\n  \
                    environments: [{ name: prod }]\n";
        let path = fabrique_core::id::RelPath::parse("apps/citation/app.yaml").unwrap();
        let tree: Tree = [(path, Entry::regular(text))].into_iter().collect();
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        let apps: BTreeMap<_, _> = Registrations::load(&tree, &rules).apps;
        apps.into_values().next().unwrap()
    }

    fn item(wanted: u64) -> WorkItem {
        let name = app().name;
        let record = WorkRecord { done: Generation(3), ..WorkRecord::default() };
        WorkItem { app: name, wanted: Generation(wanted), record, revision: 1, lease_expired: false }
    }

    fn said(action: Action, reason: Reason, item: &WorkItem) -> String {
        said_of(false, action, reason, item)
    }

    /// Of an app whose environment shows "drift" as its trouble, where it has `drifted`.
    fn said_of(drifted: bool, action: Action, reason: Reason, item: &WorkItem) -> String {
        let (app, memory) = (app(), Memory::default());
        let apps = Apps::parse(revision(), Tree::default(), &Rules { registries: Vec::new() });
        let mut status = AppStatus::unjudged(&app, &apps, &memory, item, NOW);
        status.environments[0].trouble = Some("drift".to_owned());
        status.environments[0].drifted = drifted;
        let decision = Decision { action, reason, channels: vec![] };
        next(&app, &status, &decision, &memory, item, NOW)
    }

    fn revision() -> Revision {
        Revision::parse(&"1b".repeat(20)).unwrap()
    }

    #[test]
    fn a_build_that_nobody_was_told_of_names_the_two_ways_on() {
        let key = BuildKey::parse(&"ab".repeat(32)).unwrap();
        let build = Action::Build { revision: revision(), key, no_cache: false };
        let idle = said(build.clone(), Reason::NotBuilt(revision()), &item(3));
        insta::assert_snapshot!(idle, @"no wake is waiting: the next sweep, or `fabrique retry citation`, brings a worker that builds it");
        let due = said(build, Reason::NotBuilt(revision()), &item(4));
        insta::assert_snapshot!(due, @"the next free worker builds it");
    }

    #[test]
    fn what_waits_for_a_person_names_the_command() {
        let settled = |verdict| said(Action::Nothing, Reason::Settled(verdict), &item(3));
        insta::assert_snapshot!(settled(Verdict::Rewound { deployed: revision() }), @"push a newer revision, or `fabrique release citation`");
        insta::assert_snapshot!(settled(Verdict::NotReady("base comes first".to_owned())), @"it goes on by itself when that has ended");
        insta::assert_snapshot!(settled(Verdict::UpToDate), @"nothing to do");
    }

    #[test]
    fn repair_is_named_for_bindings_that_a_person_edited_and_for_no_other_trouble() {
        let trouble = |drifted, why: &str| {
            let reason = Reason::Settled(Verdict::Trouble(why.to_owned()));
            said_of(drifted, Action::Nothing, reason, &item(3))
        };
        insta::assert_snapshot!(trouble(true, "drift"), @"`fabrique repair citation` rewrites the bindings, or revert the edit in cluster/apps");
        let others = "do what that says: a newer push, or an edit in cluster/apps, is looked at by itself; after anything \
                      else `fabrique retry citation`";
        assert_eq!(trouble(false, "drift"), others);
        assert_eq!(trouble(true, "passwd is a symbolic link; copy the file into the repository"), others);
    }

    #[test]
    fn a_backoff_says_how_long_it_is() {
        let reason = Reason::Failed {
            kind: FailureKind::Infrastructure,
            message: "the registry does not answer".to_owned(),
            attempts: 2,
            dead: false,
        };
        let wait = said(Action::WaitUntil(Timestamp(31_000)), reason, &item(4));
        insta::assert_snapshot!(wait, @"it is tried again in 30 s; `fabrique retry citation` tries now");
    }
}
