//! From the truth to a view.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabrique_core::app::{App, Composition, DeployedImage, Environment, Hold, ImageFrom, InfraFrom};
use fabrique_core::build::BuildInputs;
use fabrique_core::decision::{Action, decide};
use fabrique_core::id::{
    AppName, BranchName, BuildKey, Channel, EnvironmentName, RelPath, RepoName, Revision,
};
use fabrique_core::memory::{ChannelMemory, Committed, Memory};
use fabrique_core::policy::Policy;
use fabrique_core::relation::{Relation, Watched};
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::Candidate;
use fabrique_core::view::{
    Declared, EnvironmentView, HoldView, ImageView, InfraView, LastBuilt, Recorded, Step, Target, View,
};
use fabrique_gitops::head::{self, Bindings, EnvironmentHead};
use fabrique_gitops::{composition, overlay, plan};
use fabrique_ports::forge::{BranchHead, Forge};
use fabrique_ports::records::Records;
use fabrique_ports::registry::Registry;
use fabrique_ports::source::SourceHistory;
use fabrique_ports::upstream::Upstreams;
use fabrique_ports::{Fault, Peer, PortError, PortResult};

use crate::ahead::Ahead;
use crate::apps::Apps;
use crate::compare::{Comparison, Known};
use crate::declared::Own;
use crate::heads::Heads;
use crate::watch::WatchedPaths;

/// Gathers views from the ports.
#[derive(Clone)]
pub struct Observer {
    pub(crate) forge: Arc<dyn Forge>,
    pub(crate) source: Arc<dyn SourceHistory>,
    registry: Arc<dyn Registry>,
    records: Arc<dyn Records>,
    policy: Policy,
    pub(crate) known: Arc<Known>,
    heads: Option<Arc<Heads>>,
    pub(crate) upstreams: Option<Arc<dyn Upstreams>>,
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
        Self { forge, source, registry, records, policy, known: Arc::default(), heads: None, upstreams: None }
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
        Self { heads: Some(Arc::default()), ..self.clone() }
    }

    /// Where a branch is.
    pub(crate) async fn head(&self, repo: &RepoName, branch: &BranchName) -> PortResult<BranchHead> {
        match &self.heads {
            Some(heads) => heads.ask(self.forge.as_ref(), repo, branch).await,
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
        let gathering = Gathering { tip: Some(ahead), ..Gathering::new(self, app, apps, memory, now).ok()? };
        let view = self.view(&gathering, head).await.ok()?;
        matches!(decide(&view).action, Action::Build { .. }).then_some(view)
    }

    async fn view(&self, gathering: &Gathering<'_>, head: &Revision) -> PortResult<View> {
        // A declaration stops moves and nothing else: where the head is deployed it is not worth a request.
        if self.heads.is_some() && gathering.shows(head) {
            let view = self.view_as_declared(gathering, head, &Own::silent(head)).await?;
            if !changes(&view) {
                return Ok(view);
            }
        }
        let own = self.own(gathering.app, head).await?;
        if own.target != *head && gathering.tip.is_some() {
            return Err(needs_history());
        }
        let view = self.view_as_declared(gathering, head, &own).await?;
        match own.at_head(head) {
            // All is done for what passed its checks: what is waited for now is the head.
            Some(waiting) if !changes(&view) => self.view_as_declared(gathering, head, &waiting).await,
            Some(_) | None => Ok(view),
        }
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
            (view.declared, view.awaits) = self.word_of_others(app, gathering.apps, head, own).await?;
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

    /// What is declared of a change that is about to be made.
    async fn word(&self, gathering: &Gathering<'_>, head: &Revision, own: &Own) -> PortResult<Declared> {
        match gathering.word(own).await? {
            Declared::Admitted => {
                let others = self.word_of_others(gathering.app, gathering.apps, head, own).await?;
                Ok(others.0)
            }
            stopped @ (Declared::Waits(_) | Declared::Refused(_)) => Ok(stopped),
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
        let declared = self.word(&gathering, &head, &own).await?;
        let mut environments = Vec::with_capacity(app.environments.len());
        for environment in &app.environments {
            let view = gathering.environment(environment, &own.target, &own.target, None).await?;
            environments.push((view, Candidate::Target));
        }
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

/// From where a finished build is seen.
struct Standpoint<'a> {
    head: &'a Revision,
    target: &'a Revision,
}

/// Whether something is to be changed, or is being.
fn changes(view: &View) -> bool {
    decide(view).action != Action::Nothing
}

/// One gathering: the app, the state it is seen in, and comparisons made at most once each.
struct Gathering<'a> {
    app: &'a App,
    apps: &'a Apps,
    heads: Vec<EnvironmentHead>,
    memory: &'a Memory,
    now: Timestamp,
    image_paths: WatchedPaths,
    comparison: Comparison<'a>,
    /// All that is gone by, instead of the history.
    tip: Option<&'a Ahead>,
}

impl<'a> Gathering<'a> {
    fn new(
        observer: &'a Observer,
        app: &'a App,
        apps: &'a Apps,
        memory: &'a Memory,
        now: Timestamp,
    ) -> PortResult<Self> {
        let image_paths = WatchedPaths::of_image(app).map_err(|e| bad_glob(app, &e))?;
        let comparison = Comparison::new(observer.source.as_ref(), &app.source.repo, &observer.known);
        Ok(Self {
            app,
            apps,
            heads: head::observe(&apps.tree, app),
            memory,
            now,
            image_paths,
            comparison,
            tip: None,
        })
    }

    /// The apps that have to be committed before `target` is, by what came of it on this state.
    fn refused_for(&self, target: &Revision) -> BTreeSet<AppName> {
        let channels =
            self.memory.environments.iter().filter(|(name, _)| {
                self.app.environments.iter().any(|environment| environment.name == **name)
            });
        let channels = channels.flat_map(|(_, remembered)| [&remembered.image, &remembered.infra]);
        channels.flat_map(|channel| channel.awaits(target, &self.apps.commit)).cloned().collect()
    }

    /// Every environment with the build of `revision` as the candidate of its image channel. Whether what is deployed
    /// left the branch is for the head to say, which a pin is behind.
    async fn candidates(
        &self,
        at: &Standpoint<'_>,
        revision: &Revision,
        key: &BuildKey,
    ) -> PortResult<Vec<(EnvironmentView, Candidate)>> {
        let target = self.comparison.relation(revision, at.target).await?;
        let mut environments = Vec::with_capacity(self.app.environments.len());
        for environment in &self.app.environments {
            let view = self.environment(environment, revision, at.target, Some(key)).await?;
            let deployed_to_target = match &view.image.step {
                Some(step) if revision == at.head => Some(step.relation),
                Some(step) => Some(self.comparison.relation(&step.from, at.head).await?),
                None => None,
            };
            environments.push((view, Candidate::Build { target, deployed_to_target }));
        }
        Ok(environments)
    }

    /// What the app by itself says of a change.
    async fn word(&self, own: &Own) -> PortResult<Declared> {
        let mut deployed = Vec::new();
        if own.is_pinned() || own.stands_back() {
            for (environment, revision) in self.followed() {
                deployed.push((
                    environment,
                    revision,
                    self.comparison.relation(revision, &own.target).await?,
                ));
            }
        }
        Ok(own.word(&self.app.name, deployed))
    }

    /// Whether all that automation would move is at `head`.
    fn shows(&self, head: &Revision) -> bool {
        let mut deployed = self.followed().peekable();
        deployed.peek().is_some() && deployed.all(|(_, revision)| revision == head)
    }

    /// What is deployed where automation would move it.
    fn followed(&self) -> impl Iterator<Item = (&EnvironmentName, &Revision)> {
        self.app.environments.iter().flat_map(|environment| {
            let seen = self.heads.iter().find(|head| head.environment == environment.name);
            let composition = seen.and_then(|head| head.composition.as_ref().ok());
            let image = composition.and_then(|composition| composition.image.deployed.as_ref());
            let image = image.filter(|_| environment.image == ImageFrom::Build).map(|image| &image.revision);
            let infra = composition.and_then(|composition| composition.infra.deployed.as_ref());
            let infra = infra.filter(|_| matches!(environment.infra, InfraFrom::Head(_)));
            let infra = infra.map(|infra| &infra.revision);
            [image, infra].into_iter().flatten().map(|revision| (&environment.name, revision))
        })
    }

    async fn step(&self, from: &Revision, to: &Revision, paths: &WatchedPaths) -> PortResult<Step> {
        match self.tip {
            None => self.comparison.step(from, to, paths).await,
            Some(tip) => tip.change(from, to, paths).ok_or_else(needs_history),
        }
    }

    /// `candidate` is what the image channel is judged for, `head` what the infra channel is. `key` is the
    /// candidate's own; without it the deployed image is held against the registration's present inputs.
    async fn environment(
        &self,
        environment: &Environment,
        candidate: &Revision,
        head: &Revision,
        key: Option<&BuildKey>,
    ) -> PortResult<EnvironmentView> {
        let seen = self.heads.iter().find(|head| head.environment == environment.name);
        let composition = seen.and_then(|head| head.composition.clone().ok());
        let composition =
            composition.unwrap_or_else(|| composition::empty(&self.app.name, &environment.name));
        let trouble = seen.and_then(EnvironmentHead::trouble);
        let broken = seen.is_some_and(|h| h.composition.is_ok() && matches!(h.bindings, Bindings::Broken(_)));
        let (mut image, mut infra) = tokio::try_join!(
            self.image(environment, &composition, candidate, key),
            self.infra(environment, &composition, head),
        )?;
        infra.trouble = trouble.clone().filter(|_| !broken).or(infra.trouble);
        image.trouble = trouble.or(image.trouble);
        Ok(EnvironmentView { name: environment.name.clone(), image, infra })
    }

    async fn image(
        &self,
        environment: &Environment,
        composition: &Composition,
        candidate: &Revision,
        key: Option<&BuildKey>,
    ) -> PortResult<ImageView> {
        let deployed = composition.image.deployed.as_ref();
        let remembered = self.memory.channel(&environment.name, Channel::Image);
        let step = match deployed {
            Some(deployed) => Some(self.step(&deployed.revision, candidate, &self.image_paths).await?),
            None => None,
        };
        Ok(ImageView {
            follows_builds: environment.image == ImageFrom::Build,
            trouble: remembered.trouble(candidate, &self.apps.commit),
            waits: remembered.waits(candidate, &self.apps.commit),
            hold: in_force(composition.image.hold.as_ref(), self.now),
            step,
            digest: deployed.map(|d| d.digest.clone()),
            same_inputs: deployed.is_none_or(|d| self.same_inputs(&remembered, d, (candidate, key))),
            taken_back: self
                .taken_back(&remembered, candidate, &self.image_paths, |committed| {
                    deployed.is_some_and(|d| shows_image(d, committed))
                })
                .await?,
        })
    }

    async fn infra(
        &self,
        environment: &Environment,
        composition: &Composition,
        head: &Revision,
    ) -> PortResult<InfraView> {
        let remembered = self.memory.channel(&environment.name, Channel::Infra);
        let deployed = composition.infra.deployed.as_ref();
        let unseen = InfraView::default();
        let Some(overlay) = environment.infra.overlay() else { return Ok(unseen) };
        let paths = WatchedPaths::of_overlay(overlay, &self.copied_from_outside(environment))
            .map_err(|e| bad_glob(self.app, &e))?;
        // A registration that names another overlay asks for a copy whatever the source says.
        let deployed_here = deployed.filter(|d| d.overlay == *overlay);
        match self.tip {
            Some(tip) if deployed_here.is_none() || tip.touches(&paths) => return Err(needs_history()),
            Some(_) => return Ok(unseen),
            None => {}
        }
        let step = match deployed_here {
            Some(deployed) => Some(self.step(&deployed.revision, head, &paths).await?),
            None => None,
        };
        Ok(InfraView {
            follows_head: matches!(environment.infra, InfraFrom::Head(_)),
            trouble: remembered.trouble(head, &self.apps.commit),
            waits: remembered.waits(head, &self.apps.commit),
            hold: in_force(composition.infra.hold.as_ref(), self.now),
            step,
            taken_back: self
                .taken_back(&remembered, head, &paths, |committed| {
                    deployed.is_some_and(|d| d.revision == committed.revision)
                })
                .await?,
        })
    }

    /// The directories of the source beside the overlay that the present copy reached into.
    fn copied_from_outside(&self, environment: &Environment) -> BTreeSet<RelPath> {
        overlay::copied_from_outside(&self.apps.tree, &self.app.name, &environment.name)
    }

    /// Whether the deployed image was built under the registration's present inputs. What automation did not
    /// commit has no known key; and a finished build whose own inputs are outdated (`candidate` is not the
    /// present key of its revision) has nothing to set right.
    fn same_inputs(
        &self,
        remembered: &ChannelMemory,
        deployed: &DeployedImage,
        candidate: (&Revision, Option<&BuildKey>),
    ) -> bool {
        if deployed.repository != self.app.image {
            return false;
        }
        let present = |revision: &Revision| BuildInputs::of(self.app, revision, self.memory.rebuild).key();
        if candidate.1.is_some_and(|key| *key != present(candidate.0)) {
            return true;
        }
        let built_under =
            remembered.committed.as_ref().filter(|c| shows_image(deployed, c)).and_then(|c| c.key.as_ref());
        built_under.is_none_or(|key| *key == present(&deployed.revision))
    }

    async fn taken_back(
        &self,
        remembered: &ChannelMemory,
        candidate: &Revision,
        paths: &WatchedPaths,
        shown: impl Fn(&Committed) -> bool,
    ) -> PortResult<Option<Step>> {
        match remembered.committed.as_ref().filter(|committed| !shown(committed)) {
            Some(removed) => Ok(Some(self.step(&removed.revision, candidate, paths).await?)),
            None => Ok(None),
        }
    }

    async fn last_built(&self, head: &Revision) -> PortResult<Option<LastBuilt>> {
        let Some(built) = self.memory.built.as_ref().filter(|_| self.app.environments.is_empty()) else {
            return Ok(None);
        };
        let step = self.step(&built.revision, head, &self.image_paths).await?;
        let inputs = BuildInputs::of(self.app, &built.revision, self.memory.rebuild);
        Ok(Some(LastBuilt { step, same_inputs: inputs.key() == built.key }))
    }

    async fn running_to(&self, head: &Revision) -> PortResult<Option<Watched>> {
        let Some(running) = &self.memory.running else { return Ok(None) };
        let step = self.step(&running.revision, head, &self.image_paths).await?;
        // A build of a revision that left the branch could never be committed, however alike the trees are.
        Ok(matches!(step.relation, Relation::Same | Relation::Ahead).then_some(step.watched))
    }
}

fn shows_image(deployed: &DeployedImage, committed: &Committed) -> bool {
    deployed.revision == committed.revision && Some(&deployed.digest) == committed.digest.as_ref()
}

fn in_force(hold: Option<&Hold>, now: Timestamp) -> Option<HoldView> {
    let hold = hold.filter(|hold| plan::in_force(hold, now))?;
    Some(HoldView { by: hold.by.clone(), reason: hold.reason.clone(), until: plan::ends(hold) })
}

/// Told to [`Observer::glimpse`] alone, which then sees nothing.
fn needs_history() -> PortError {
    PortError::new(Peer::Git, Fault::Transient, "this cannot be told without the history")
}

fn bad_glob(app: &App, error: &globset::Error) -> PortError {
    PortError::new(
        Peer::Git,
        Fault::Unexpected,
        format!("the watch globs of {} do not compile: {error}", app.name),
    )
}
