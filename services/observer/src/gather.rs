//! From the truth to a view.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabrique_core::app::App;
use fabrique_core::build::BuildInputs;
use fabrique_core::decision::{Action, decide};
use fabrique_core::id::{BranchName, BuildKey, RepoName, Revision};
use fabrique_core::memory::Memory;
use fabrique_core::policy::Policy;
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::Candidate;
use fabrique_core::view::{Declared, EnvironmentView, Recorded, Target, View};
use fabrique_gitops::render::Settings;
use fabrique_ports::PortResult;
use fabrique_ports::forge::{BranchHead, Forge};
use fabrique_ports::records::Records;
use fabrique_ports::registry::Registry;
use fabrique_ports::source::SourceHistory;
use fabrique_ports::upstream::Upstreams;

use crate::ahead::Ahead;
use crate::apps::Apps;
use crate::compare::Known;
use crate::declared::{Own, Reach};
use crate::gathering::{Gathering, Standpoint, needs_history};
use crate::round::Round;

/// Gathers views from the ports.
#[derive(Clone)]
pub struct Observer {
    pub(crate) forge: Arc<dyn Forge>,
    pub(crate) source: Arc<dyn SourceHistory>,
    registry: Arc<dyn Registry>,
    records: Arc<dyn Records>,
    policy: Policy,
    pub(crate) known: Arc<Known>,
    pub(crate) round: Option<Arc<Round>>,
    pub(crate) upstreams: Option<Arc<dyn Upstreams>>,
    /// What migrations are rendered with, where they are.
    pub(crate) render: Option<Arc<Settings>>,
}

/// A finished build as it stands to what is deployed and to the head, for the guard at the commit.
#[derive(Debug, Clone)]
pub struct CandidateView {
    /// The head of the branch, if there is one: what is declared there counts.
    pub head: Option<Revision>,
    /// What should be built: the head, or the ancestor that it pins.
    pub target: Option<Revision>,
    /// What the app's declaration says of a change.
    pub declared: Declared,
    /// Each environment with the build as candidate of its image channel. The infra channel is seen from
    /// the target.
    pub environments: Vec<(EnvironmentView, Candidate)>,
}

impl CandidateView {
    fn at(
        head: Revision,
        own: Own,
        declared: Declared,
        environments: Vec<(EnvironmentView, Candidate)>,
    ) -> Self {
        Self { head: Some(head), target: Some(own.target), declared, environments }
    }

    /// Without a branch nothing can be said.
    fn without_branch() -> Self {
        Self { head: None, target: None, declared: Declared::Admitted, environments: Vec::new() }
    }
}

impl Observer {
    /// An observer that reads through these ports.
    #[must_use]
    pub fn new(
        forge: Arc<dyn Forge>,
        source: Arc<dyn SourceHistory>,
        registry: Arc<dyn Registry>,
        records: Arc<dyn Records>,
        policy: Policy,
    ) -> Self {
        let known = Arc::default();
        Self { forge, source, registry, records, policy, known, round: None, upstreams: None, render: None }
    }

    /// The same that judges the migrations of a target before it is built, where an installation renders them.
    #[must_use]
    pub fn rendering(self, settings: Option<Settings>) -> Self {
        Self { render: settings.map(Arc::new), ..self }
    }

    /// The same with what is known of sources on GitHub. Without it an app that asks for checks there waits.
    #[must_use]
    pub fn knowing(self, upstreams: Arc<dyn Upstreams>) -> Self {
        Self { upstreams: Some(upstreams), ..self }
    }

    /// The same for one look at many apps, with as few requests as can be: the forge is asked for each branch once,
    /// however many apps follow it or depend on one that does, and for no declaration of a head that is deployed.
    #[must_use]
    pub fn for_one_round(&self) -> Self {
        Self { round: Some(Arc::default()), ..self.clone() }
    }

    /// Where a branch is.
    pub(crate) async fn head(&self, repo: &RepoName, branch: &BranchName) -> PortResult<BranchHead> {
        match &self.round {
            Some(round) => round.head(self.forge.as_ref(), repo, branch).await,
            None => self.forge.branch_head(repo, branch).await,
        }
    }

    /// The bounds that views carry.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// When a commit of the app's source was made, in seconds of Unix time.
    ///
    /// # Errors
    /// When the forge has no such commit, or cannot be asked for one that is not here.
    pub async fn commit_time(&self, app: &App, revision: &Revision) -> PortResult<i64> {
        self.known.commit_time(self.source.as_ref(), &app.source.repo, revision).await
    }

    /// Everything the decision about `app` reads. Costs one request to the forge when the head is what is
    /// deployed, and one more when its declaration was not read at this head; the record, the registry and the apps
    /// that it depends on are asked only when something is wanted.
    ///
    /// # Errors
    /// When a peer that has to be asked does not answer.
    pub async fn observe(&self, app: &App, apps: &Apps, memory: &Memory, now: Timestamp) -> PortResult<View> {
        self.observe_from(None, app, apps, memory, now).await
    }

    /// The same, from a head that was asked for already, if it is one of this app's branch.
    ///
    /// # Errors
    /// As [`Observer::observe`].
    pub async fn observe_from(
        &self,
        ahead: Option<&Ahead>,
        app: &App,
        apps: &Apps,
        memory: &Memory,
        now: Timestamp,
    ) -> PortResult<View> {
        let head = match ahead.and_then(|ahead| ahead.head_of(app)) {
            Some(head) => head.clone(),
            None => self.head(&app.source.repo, &app.source.branch).await?,
        };
        let head = match head {
            BranchHead::At(head) => head,
            BranchHead::NoBranch => {
                return Ok(self.without_target(
                    memory,
                    now,
                    format!("{} has no branch {}", app.source.repo, app.source.branch),
                ));
            }
            BranchHead::NoRepository => {
                let why = format!("there is no repository {}, or the token may not read it", app.source.repo);
                return Ok(self.without_target(memory, now, why));
            }
        };
        self.view(&Gathering::new(self, app, apps, memory, now)?, &head).await
    }

    /// The same where a head that was asked for ahead shows that a build is wanted: without the history, and
    /// without the overlays, whose turn comes with the image. Nothing where that cannot be seen.
    pub async fn glimpse(
        &self,
        ahead: &Ahead,
        app: &App,
        apps: &Apps,
        memory: &Memory,
        now: Timestamp,
    ) -> Option<View> {
        let BranchHead::At(head) = ahead.head_of(app)? else { return None };
        let mut gathering = Gathering::new(self, app, apps, memory, now).ok()?;
        gathering.tip = Some(ahead);
        let view = self.view(&gathering, head).await.ok()?;
        matches!(decide(&view).action, Action::Build { .. }).then_some(view)
    }

    async fn view(&self, gathering: &Gathering<'_>, head: &Revision) -> PortResult<View> {
        // A declaration stops moves and nothing else: where the head is deployed it is not worth a request.
        if self.round.is_some() && gathering.shows(head) {
            let view = self.view_as_declared(gathering, head, &Own::silent(head)).await?;
            if !changes(&view) {
                return Ok(view);
            }
        }
        let own = self.own(gathering.app, head).await?;
        if own.is_pinned() && gathering.tip.is_some() {
            return Err(needs_history());
        }
        self.view_as_declared(gathering, head, &own).await
    }

    async fn view_as_declared(
        &self,
        gathering: &Gathering<'_>,
        head: &Revision,
        own: &Own,
    ) -> PortResult<View> {
        let (app, memory) = (gathering.app, gathering.memory);
        let target = &own.target;
        let mut environments = Vec::with_capacity(app.environments.len());
        for environment in &app.environments {
            environments.push(gathering.environment(environment, target, target, None).await?);
        }
        let key = BuildInputs::of(app, target, memory.rebuild).key();
        let mut view = View {
            now: gathering.now,
            head: Some(head.clone()),
            target: Target::At { revision: target.clone(), key: key.clone() },
            declared: gathering.word(own).await?,
            awaits: BTreeSet::new(),
            environments,
            last_built: gathering.last_built(target).await?,
            record: None,
            running_to_target: gathering.running_to(target).await?,
            memory: memory.clone(),
            policy: self.policy.clone(),
        };
        if view.declared == Declared::Admitted && changes(&view) {
            (view.declared, view.awaits) =
                self.word_of_others((app, gathering.apps), head, own, Reach::Onwards).await?;
        }
        // An overlay goes before the build of its image: it is refused with it.
        if view.declared == Declared::Admitted
            && matches!(decide(&view).action, Action::Build { .. } | Action::Commit(_))
        {
            view.declared = self.word_of_migrations(gathering, own, &view.environments).await?;
        }
        if view.declared == Declared::Admitted && matches!(decide(&view).action, Action::Build { .. }) {
            view.declared = self.word_of_overlays(gathering, own, &view.environments).await?;
        }
        view.awaits.extend(gathering.refused_for(target));
        if matches!(decide(&view).action, Action::Build { .. } | Action::WaitUntil(_) | Action::Commit(_)) {
            view.record = self.recorded(app, &key).await?;
        }
        Ok(view)
    }

    /// How the build of `revision` under `key` stands, read for the guard at its commit: on the head that was
    /// asked for ahead, unless that is older than the state in `apps`. Where that head is the revision and shows by
    /// itself what the image needs, the overlays have their turn at the next look.
    ///
    /// # Errors
    /// When a peer that has to be asked does not answer.
    pub async fn candidate(
        &self,
        app: &App,
        apps: &Apps,
        memory: &Memory,
        (revision, key): (&Revision, &BuildKey),
        ahead: Option<&Ahead>,
        now: Timestamp,
    ) -> PortResult<CandidateView> {
        let ahead = ahead.filter(|ahead| ahead.is_after(apps));
        let head = match ahead.and_then(|ahead| ahead.head_of(app)) {
            Some(head) => head.clone(),
            None => self.head(&app.source.repo, &app.source.branch).await?,
        };
        let BranchHead::At(head) = head else {
            return Ok(CandidateView::without_branch());
        };
        let own = self.own(app, &head).await?;
        let mut gathering = Gathering::new(self, app, apps, memory, now)?;
        let declared = self.word(&gathering, &head, &own).await?;
        let at = Standpoint { head: &head, target: &own.target };
        gathering.tip = ahead.filter(|_| head == *revision && own.target == head);
        if gathering.tip.is_some() {
            if let Ok(environments) = gathering.candidates(&at, revision, key).await {
                return Ok(CandidateView::at(head, own, declared, environments));
            }
            gathering.tip = None;
        }
        let environments = gathering.candidates(&at, revision, key).await?;
        Ok(CandidateView::at(head, own, declared, environments))
    }

    /// What is declared of a change that is about to be made. A circle further on was told before the build: it is
    /// followed by the look, and not again at each attempt to commit.
    async fn word(&self, gathering: &Gathering<'_>, head: &Revision, own: &Own) -> PortResult<Declared> {
        match gathering.word(own).await? {
            Declared::Admitted => {
                let of = (gathering.app, gathering.apps);
                Ok(self.word_of_others(of, head, own, Reach::Needed).await?.0)
            }
            stopped @ (Declared::Waits(_) | Declared::Suspended(_) | Declared::Refused(_)) => Ok(stopped),
        }
    }

    /// How the infra channels stand to the head, when there is no image to judge.
    ///
    /// # Errors
    /// When a peer that has to be asked does not answer.
    pub async fn infra_candidate(
        &self,
        app: &App,
        apps: &Apps,
        memory: &Memory,
        now: Timestamp,
    ) -> PortResult<CandidateView> {
        let BranchHead::At(head) = self.head(&app.source.repo, &app.source.branch).await? else {
            return Ok(CandidateView::without_branch());
        };
        let own = self.own(app, &head).await?;
        let gathering = Gathering::new(self, app, apps, memory, now)?;
        let mut declared = self.word(&gathering, &head, &own).await?;
        let mut seen = Vec::with_capacity(app.environments.len());
        for environment in &app.environments {
            seen.push(gathering.environment(environment, &own.target, &own.target, None).await?);
        }
        if declared == Declared::Admitted {
            declared = self.word_of_migrations(&gathering, &own, &seen).await?;
        }
        let environments = seen.into_iter().map(|view| (view, Candidate::Target)).collect();
        Ok(CandidateView::at(head, own, declared, environments))
    }

    /// The image recorded for `key`, if the registry still has it.
    ///
    /// # Errors
    /// When the record or the registry cannot be asked.
    pub async fn recorded(&self, app: &App, key: &BuildKey) -> PortResult<Option<Recorded>> {
        let Some(record) = self.records.record(key).await?.filter(|r| r.image == app.image) else {
            return Ok(None);
        };
        let there = self.registry.has(&record.image, &record.digest).await?;
        Ok(there.then_some(Recorded { digest: record.digest, build: record.build }))
    }

    fn without_target(&self, memory: &Memory, now: Timestamp, why: String) -> View {
        View {
            now,
            head: None,
            target: Target::Nothing(why),
            declared: Declared::Admitted,
            awaits: BTreeSet::new(),
            environments: Vec::new(),
            last_built: None,
            record: None,
            running_to_target: None,
            memory: memory.clone(),
            policy: self.policy.clone(),
        }
    }
}

/// Whether something is to be changed, or is being.
fn changes(view: &View) -> bool {
    decide(view).action != Action::Nothing
}
