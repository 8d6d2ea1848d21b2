//! How every app stands.

use std::collections::BTreeMap;

use fabrique_core::app::App;
use fabrique_core::decision::{Action, Decision, decide};
use fabrique_core::failure::{Failure, FailureKind};
use fabrique_core::id::{AppName, BranchName, BuildId, Channel, Digest, EnvironmentName, RepoName, Revision};
use fabrique_core::memory::Memory;
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::Verdict;
use fabrique_core::view::{Target, View};
use fabrique_core::work::{Due, Generation, WorkItem, WorkRecord};
use fabrique_gitops::composition;
use fabrique_gitops::head::{self, Bindings};
use fabrique_observer::Apps;
use futures::{StreamExt as _, stream};
use serde::Serialize;

use crate::error::OperatorError;
use crate::exit::Exit;
use crate::operator::Operator;
use crate::validate::Finding;

/// How many apps are looked at at once.
const AT_ONCE: usize = 8;

/// How every app stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The commit of `cluster/apps` that it is about.
    pub commit: Revision,
    /// Every registered app, by name.
    pub apps: Vec<AppStatus>,
    /// Registrations that cannot be used.
    pub findings: Vec<Finding>,
}

/// How one app stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AppStatus {
    /// The app.
    pub app: AppName,
    /// Its source.
    pub repo: RepoName,
    /// The branch it follows.
    pub branch: BranchName,
    /// What should be built; absent when there is nothing to build, or when it could not be asked.
    pub target: Option<Revision>,
    /// Where it runs.
    pub environments: Vec<EnvironmentStatus>,
    /// What comes next, in one word: `build`, `continue`, `stop`, `commit`, `wait` or `nothing`.
    pub action: String,
    /// Why.
    pub reason: String,
    /// Whether it waits for a person.
    pub needs_person: bool,
    /// The build under way.
    pub running: Option<RunningStatus>,
    /// How the last attempt failed, until a build succeeds.
    pub failure: Option<FailureStatus>,
    /// Until when it waits, where it does.
    pub waiting_until: Option<Timestamp>,
    /// The worker that holds it.
    pub holder: Option<String>,
    /// Whether it waits for a worker.
    pub due: bool,
    /// Why it could not be looked at; then `action` and `reason` say nothing.
    pub error: Option<String>,
}

/// One environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnvironmentStatus {
    /// Its name.
    pub environment: EnvironmentName,
    /// The deployed image.
    pub digest: Option<Digest>,
    /// The image channel.
    pub image: ChannelStatus,
    /// The infra channel.
    pub infra: ChannelStatus,
    /// Why nothing may be written here at all, where that is so.
    pub trouble: Option<String>,
    /// Whether that is because a person edited bindings in `cluster/apps`, which `repair` rewrites.
    pub drifted: bool,
    /// How the forge refused to have its overlay written, as long as that waits.
    pub refused: Option<FailureStatus>,
}

impl EnvironmentStatus {
    /// Whether this is its trouble, and `repair` the way out.
    fn is_drift(&self, why: &str) -> bool {
        self.drifted && self.trouble.as_deref() == Some(why)
    }
}

/// One channel of an environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChannelStatus {
    /// The deployed source revision.
    pub deployed: Option<Revision>,
    /// What it needs, in words; empty when it could not be judged.
    pub verdict: String,
    /// Whether it waits for a person.
    pub needs_person: bool,
}

/// A build under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunningStatus {
    /// The attempt.
    pub build: BuildId,
    /// From which revision.
    pub revision: Revision,
    /// Since when.
    pub started: Timestamp,
    /// Whether its digest is recorded.
    pub pushed: bool,
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureStatus {
    /// Whose turn it is.
    pub kind: FailureKind,
    /// One sentence.
    pub message: String,
    /// The last lines that the failing step printed, oldest first.
    pub log_tail: Vec<String>,
    /// The revision.
    pub revision: Revision,
    /// The attempt, where it got that far.
    pub build: Option<BuildId>,
    /// How many attempts there were.
    pub attempts: u32,
    /// When the last one failed.
    pub at: Timestamp,
    /// No new attempt before this.
    pub not_before: Timestamp,
    /// Whether the attempts are used up.
    pub dead: bool,
}

impl Status {
    /// How the process ends: well when every app could be looked at and every registration used.
    #[must_use]
    pub fn exit(&self) -> Exit {
        Exit::ok_if(self.findings.is_empty() && self.apps.iter().all(|app| app.error.is_none()))
    }
}

impl From<&Failure> for FailureStatus {
    fn from(failure: &Failure) -> Self {
        Self {
            kind: failure.kind,
            message: failure.message.clone(),
            log_tail: failure.log_tail.clone(),
            revision: failure.revision.clone(),
            build: failure.build.clone(),
            attempts: failure.attempts,
            at: failure.at,
            not_before: failure.not_before,
            dead: failure.dead,
        }
    }
}

/// The word for an action, as in events.
pub(crate) fn action_word(action: &Action) -> &'static str {
    match action {
        Action::Build { .. } => "build",
        Action::Continue => "continue",
        Action::Stop { .. } => "stop",
        Action::Commit(_) => "commit",
        Action::WaitUntil(_) => "wait",
        Action::Nothing => "nothing",
    }
}

/// An app's work item when the board knows nothing of it.
pub(crate) fn unseen(app: &AppName) -> WorkItem {
    WorkItem {
        app: app.clone(),
        wanted: Generation::default(),
        record: WorkRecord::default(),
        revision: 0,
        lease_expired: false,
    }
}

impl AppStatus {
    /// How attempts failed at what is wanted: the build's, and those to write overlays.
    pub fn failures(&self) -> impl Iterator<Item = &FailureStatus> {
        let refused = self.environments.iter().filter_map(|environment| environment.refused.as_ref());
        self.failure.iter().chain(refused)
    }

    /// Puts together what was read about `app`.
    pub(crate) fn of(app: &App, apps: &Apps, view: &View, decision: &Decision, item: &WorkItem) -> Self {
        let (target, key) = match &view.target {
            Target::At { revision, key } => (Some(revision.clone()), Some(key)),
            Target::Nothing(_) => (None, None),
        };
        let mut status = Self::unjudged(app, apps, &view.memory, item, view.now);
        status.target = target;
        status.reason = decision.reason.to_string();
        action_word(&decision.action).clone_into(&mut status.action);
        if let Action::WaitUntil(until) = decision.action {
            status.waiting_until = Some(until);
        }
        for environment in &view.environments {
            let known = status.environments.iter_mut().find(|known| known.environment == environment.name);
            if let Some(known) = known {
                known.trouble.clone_from(&environment.image.trouble);
                known.drifted = known.trouble.is_some() && has_drifted(app, apps, &environment.name);
            }
        }
        for channel in &decision.channels {
            let environment =
                status.environments.iter_mut().find(|known| known.environment == channel.environment);
            let Some(environment) = environment else { continue };
            let shown = match channel.channel {
                Channel::Image => &mut environment.image,
                Channel::Infra => {
                    let remembered = view.memory.channel(&environment.environment, Channel::Infra);
                    let refused = key.filter(|_| channel.verdict == Verdict::Advance);
                    let refused = refused.and_then(|key| remembered.failure_at(key));
                    environment.refused = refused.map(FailureStatus::from);
                    status.needs_person |= refused.is_some_and(|failure| failure.dead);
                    &mut environment.infra
                }
            };
            shown.verdict = channel.verdict.to_string();
            shown.needs_person = channel.verdict.needs_person();
            status.needs_person |= shown.needs_person;
        }
        status
    }

    /// What helps where nothing may be written, for this reason.
    pub(crate) fn way_out(&self, why: &str) -> String {
        let app = &self.app;
        if self.environments.iter().any(|environment| environment.is_drift(why)) {
            return format!(
                "`fabrique repair {app}` rewrites the bindings, or revert the edit in cluster/apps"
            );
        }
        format!(
            "do what that says: a newer push, or an edit in cluster/apps, is looked at by itself; after anything else \
             `fabrique retry {app}`"
        )
    }

    /// What is known without asking the forge.
    pub(crate) fn unjudged(app: &App, apps: &Apps, memory: &Memory, item: &WorkItem, now: Timestamp) -> Self {
        let failure = memory.failure.as_ref().map(FailureStatus::from);
        let waiting = match item.due(now) {
            Due::At(until) => Some(until),
            Due::Now | Due::No => None,
        };
        Self {
            app: app.name.clone(),
            repo: app.source.repo.clone(),
            branch: app.source.branch.clone(),
            target: None,
            environments: app.environments.iter().map(|e| environment(app, apps, &e.name)).collect(),
            action: action_word(&Action::Nothing).to_owned(),
            reason: String::new(),
            needs_person: failure.as_ref().is_some_and(|f| f.dead || !f.kind.retryable()),
            running: memory.running.as_ref().map(|running| RunningStatus {
                build: running.build.clone(),
                revision: running.revision.clone(),
                started: running.started,
                pushed: running.pushed,
            }),
            failure,
            waiting_until: waiting,
            holder: item.record.holder.clone(),
            due: item.due(now) == Due::Now,
            error: None,
        }
    }
}

fn environment(app: &App, apps: &Apps, name: &EnvironmentName) -> EnvironmentStatus {
    let shown = composition::load(&apps.tree, app, name).ok().flatten();
    let channel = |deployed| ChannelStatus { deployed, verdict: String::new(), needs_person: false };
    let image = shown.as_ref().and_then(|c| c.image.deployed.as_ref());
    let infra = shown.as_ref().and_then(|c| c.infra.deployed.as_ref());
    EnvironmentStatus {
        environment: name.clone(),
        digest: image.map(|image| image.digest.clone()),
        image: channel(image.map(|image| image.revision.clone())),
        infra: channel(infra.map(|infra| infra.revision.clone())),
        trouble: None,
        drifted: false,
        refused: None,
    }
}

/// Whether the bindings of an environment show something else than its composition.
fn has_drifted(app: &App, apps: &Apps, name: &EnvironmentName) -> bool {
    let heads = head::observe(&apps.tree, app);
    heads.iter().any(|head| head.environment == *name && matches!(head.bindings, Bindings::Drift(_)))
}

impl Operator {
    /// How every registered app stands. An app that cannot be looked at says why and hides no other.
    ///
    /// # Errors
    /// When `cluster/apps` or the bus cannot be read.
    pub async fn status(&self) -> Result<Status, OperatorError> {
        let (apps, items, memories) =
            tokio::try_join!(self.apps.read(), self.ports.board.all_work(), self.ports.memories.memories())?;
        let items: BTreeMap<AppName, WorkItem> = items
            .into_iter()
            .map(|(app, wanted, record, revision)| {
                (app.clone(), WorkItem { app, wanted, record, revision, lease_expired: false })
            })
            .collect();
        let memories: BTreeMap<AppName, Memory> = memories.into_iter().collect();
        let (apps, items, memories) = (&*apps, &items, &memories);
        let mut all: Vec<AppStatus> = stream::iter(apps.registrations.apps.values().cloned())
            .map(|app| async move {
                let memory = memories.get(&app.name).cloned().unwrap_or_default();
                let item = items.get(&app.name).cloned().unwrap_or_else(|| unseen(&app.name));
                self.status_of(&app, apps, &memory, &item).await
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        all.sort_by(|a, b| a.app.cmp(&b.app));
        let findings = apps.registrations.findings.iter().map(Finding::from).collect();
        Ok(Status { commit: apps.commit.clone(), apps: all, findings })
    }

    async fn status_of(&self, app: &App, apps: &Apps, memory: &Memory, item: &WorkItem) -> AppStatus {
        let now = self.now();
        match self.observer.observe(app, apps, memory, now).await {
            Ok(view) => AppStatus::of(app, apps, &view, &decide(&view), item),
            Err(error) => AppStatus {
                error: Some(error.to_string()),
                ..AppStatus::unjudged(app, apps, memory, item, now)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::RelPath;
    use fabrique_gitops::{Entry, Rules};

    use super::*;

    const APP: &str = "\
apiVersion: fabrique/v1
kind: App
metadata: { name: citation }
spec:
  source: { repo: atlas/citation }
  image: registry:80/citation
  environments:
    - name: prod
      bindings:
        - { channel: image, file: kustomization.yaml, path: \"images[name=registry:80/citation].digest\", form: digest }
    - name: bench
";

    /// An app that is deployed as `aa…`, whose kustomization says something else or is not there.
    fn apps(kustomization: &str) -> Apps {
        let deployed = format!(
            "repository: registry:80/citation, digest: \"sha256:{}\", revision: {}",
            "aa".repeat(32),
            "bb".repeat(20)
        );
        let composition = format!(
            "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: citation, environment: prod }}\n\
             image: {{ {deployed} }}\n"
        );
        let files = [
            ("apps/citation/app.yaml", APP),
            ("apps/citation/prod/composition.yaml", &composition),
            ("apps/citation/prod/kustomization.yaml", kustomization),
        ];
        let files =
            files.map(|(path, text)| (RelPath::parse(path).unwrap(), Entry::regular(text.to_owned())));
        let rules = Rules { registries: vec!["registry:80".to_owned()] };
        Apps::parse(Revision::parse(&"1b".repeat(20)).unwrap(), files.into_iter().collect(), &rules)
    }

    #[test]
    fn an_environment_has_drifted_where_its_bindings_show_something_else_and_not_where_they_are_broken() {
        let drifted = |kustomization: &str| {
            let apps = apps(kustomization);
            let app = apps.registrations.apps.values().next().unwrap();
            let name = |name: &str| EnvironmentName::parse(name).unwrap();
            assert!(!has_drifted(app, &apps, &name("bench")), "only where the bindings are");
            has_drifted(app, &apps, &name("prod"))
        };
        let shows = |digit: &str| {
            format!("images:\n  - name: registry:80/citation\n    digest: sha256:{}\n", digit.repeat(32))
        };
        assert!(!drifted(&shows("aa")));
        assert!(drifted(&shows("cc")));
        assert!(!drifted("images: []\n"), "its place is not there, and `repair` would not find it");
    }
}
