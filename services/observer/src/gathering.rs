//! What one look gathers of an app.

use std::collections::BTreeSet;

use fabrique_core::app::{App, Composition, DeployedImage, Environment, Hold, ImageFrom, InfraFrom};
use fabrique_core::build::BuildInputs;
use fabrique_core::id::{AppName, BuildKey, Channel, EnvironmentName, RelPath, Revision};
use fabrique_core::memory::{ChannelMemory, Committed, Memory};
use fabrique_core::relation::{Relation, Watched};
use fabrique_core::time::Timestamp;
use fabrique_core::verdict::Candidate;
use fabrique_core::view::{Declared, EnvironmentView, HoldView, ImageView, InfraView, LastBuilt, Step};
use fabrique_gitops::head::{self, Bindings, EnvironmentHead};
use fabrique_gitops::{composition, overlay, plan};
use fabrique_ports::{Fault, Peer, PortError, PortResult};

use crate::ahead::Ahead;
use crate::apps::Apps;
use crate::compare::Comparison;
use crate::declared::Own;
use crate::gather::Observer;
use crate::watch::WatchedPaths;

/// From where a finished build is seen.
pub(crate) struct Standpoint<'a> {
    pub(crate) head: &'a Revision,
    pub(crate) target: &'a Revision,
}

/// One gathering: the app, the state it is seen in, and comparisons made at most once each.
pub(crate) struct Gathering<'a> {
    pub(crate) app: &'a App,
    pub(crate) apps: &'a Apps,
    heads: Vec<EnvironmentHead>,
    pub(crate) memory: &'a Memory,
    pub(crate) now: Timestamp,
    image_paths: WatchedPaths,
    comparison: Comparison<'a>,
    /// All that is gone by, instead of the history.
    pub(crate) tip: Option<&'a Ahead>,
}

impl<'a> Gathering<'a> {
    pub(crate) fn new(
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
    pub(crate) fn refused_for(&self, target: &Revision) -> BTreeSet<AppName> {
        let channels =
            self.memory.environments.iter().filter(|(name, _)| {
                self.app.environments.iter().any(|environment| environment.name == **name)
            });
        let channels = channels.flat_map(|(_, remembered)| [&remembered.image, &remembered.infra]);
        channels.flat_map(|channel| channel.awaits(target, &self.apps.commit)).cloned().collect()
    }

    /// Every environment with the build of `revision` as the candidate of its image channel. Whether what is deployed
    /// left the branch is for the head to say, which a pin is behind.
    pub(crate) async fn candidates(
        &self,
        at: &Standpoint<'_>,
        revision: &Revision,
        key: &BuildKey,
    ) -> PortResult<Vec<(EnvironmentView, Candidate)>> {
        let target = self.comparison.relation(revision, at.target).await?;
        let mut environments = Vec::with_capacity(self.app.environments.len());
        for environment in &self.app.environments {
            let view = self.environment(environment, revision, at.target, Some(key)).await?;
            let deployed_to_head = match &view.image.step {
                Some(step) if revision == at.head => Some(step.relation),
                Some(step) => Some(self.comparison.relation(&step.from, at.head).await?),
                None => None,
            };
            environments.push((view, Candidate::Build { target, deployed_to_head }));
        }
        Ok(environments)
    }

    /// What the app by itself says of a change.
    pub(crate) async fn word(&self, own: &Own) -> PortResult<Declared> {
        let mut deployed = Vec::new();
        if own.is_pinned() {
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
    pub(crate) fn shows(&self, head: &Revision) -> bool {
        let mut deployed = self.followed().peekable();
        deployed.peek().is_some() && deployed.all(|(_, revision)| revision == head)
    }

    /// What is deployed where automation would move it.
    fn followed(&self) -> impl Iterator<Item = (&EnvironmentName, &Revision)> {
        self.app.environments.iter().flat_map(|environment| {
            let seen = self.heads.iter().find(|head| head.environment == environment.name);
            let composition = seen.and_then(|head| head.composition.as_ref().ok());
            let followed = composition.into_iter().flat_map(|composition| composition.followed(environment));
            followed.map(|revision| (&environment.name, revision))
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
    pub(crate) async fn environment(
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

    pub(crate) async fn last_built(&self, head: &Revision) -> PortResult<Option<LastBuilt>> {
        let Some(built) = self.memory.built.as_ref().filter(|_| self.app.environments.is_empty()) else {
            return Ok(None);
        };
        let step = self.step(&built.revision, head, &self.image_paths).await?;
        let inputs = BuildInputs::of(self.app, &built.revision, self.memory.rebuild);
        Ok(Some(LastBuilt { step, same_inputs: inputs.key() == built.key }))
    }

    pub(crate) async fn running_to(&self, head: &Revision) -> PortResult<Option<Watched>> {
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
pub(crate) fn needs_history() -> PortError {
    PortError::new(Peer::Git, Fault::Transient, "this cannot be told without the history")
}

fn bad_glob(app: &App, error: &globset::Error) -> PortError {
    PortError::new(
        Peer::Git,
        Fault::Unexpected,
        format!("the watch globs of {} do not compile: {error}", app.name),
    )
}
