//! What fabrique remembers about one app between two decisions.
//!
//! One record per app, changed only by compare-and-swap. Nothing in it is the truth about what should be
//! built or what is deployed: losing it costs a rebuild or forgets a cancelled attempt, never a wrong
//! deployment.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, FailureKind};
use crate::id::{AppName, BuildId, BuildKey, Channel, Digest, EnvironmentName, RepoName, Revision};
use crate::time::Timestamp;

/// The record of one app.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    /// How often a person asked for the image to be built anew; part of the build key.
    #[serde(default)]
    pub rebuild: u32,
    /// Whether the newest rebuild was asked for without cache.
    #[serde(default)]
    pub no_cache: bool,
    /// The target for which a person lifted `rewound` and `taken back`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Revision>,
    /// The build under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Running>,
    /// How many builds in a row ended because a newer target came.
    #[serde(default)]
    pub supersedes: u32,
    /// How the last attempt failed, until a build succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The last build that ended with a recorded digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built: Option<Built>,
    /// The newest cache that a build exported to the image's repository; the next build imports it by this digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Digest>,
    /// What automation committed, per environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environments: BTreeMap<EnvironmentName, EnvironmentMemory>,
    /// Revisions whose commit status is `pending`, or could not be set, and which have to be given their final one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub pending_statuses: BTreeSet<Revision>,
    /// The repository of the last build, where its statuses are still to be closed once the registration is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<RepoName>,
    /// The last commit status given to a target: set again only when it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<Reported>,
    /// The last commit status given to a head for its declaration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<Reported>,
    /// The apps that depend on this one and wait for its declaration: woken when it may be changed again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub awaited_by: BTreeSet<AppName>,
}

/// A build under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The attempt.
    pub build: BuildId,
    /// What it builds.
    pub key: BuildKey,
    /// From which revision.
    pub revision: Revision,
    /// The token of the lease under which it runs; another token means that its worker is gone.
    pub token: u64,
    /// When it started.
    pub started: Timestamp,
    /// Whether the digest is recorded: from here on it is written back, not superseded.
    pub pushed: bool,
}

/// A finished build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// The attempt that made it.
    pub build: BuildId,
    /// What it built.
    pub key: BuildKey,
    /// From which revision.
    pub revision: Revision,
    /// The image.
    pub digest: Digest,
}

/// The last commit status of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// On which revision.
    pub revision: Revision,
    /// With which text.
    pub description: String,
}

/// What automation committed in one environment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EnvironmentMemory {
    /// The image channel.
    #[serde(default)]
    pub image: ChannelMemory,
    /// The infra channel.
    #[serde(default)]
    pub infra: ChannelMemory,
}

impl EnvironmentMemory {
    /// The memory of one channel.
    #[must_use]
    pub fn channel(&self, channel: Channel) -> &ChannelMemory {
        match channel {
            Channel::Image => &self.image,
            Channel::Infra => &self.infra,
        }
    }

    /// The memory of one channel, to change it.
    pub fn channel_mut(&mut self, channel: Channel) -> &mut ChannelMemory {
        match channel {
            Channel::Image => &mut self.image,
            Channel::Infra => &mut self.infra,
        }
    }
}

/// What automation committed on one channel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChannelMemory {
    /// The last commit known to have reached the branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<Committed>,
    /// A commit about to be pushed. It is read back after a crash: in the branch's history it was
    /// committed, elsewhere on the forge it was committed and taken back, nowhere it never happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<Intent>,
    /// Intents of holders that went away before they pushed. One of them may have been stopped in between and
    /// push later, so that its commit has to be recognised as automation's own when it shows up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<Committed>,
    /// A commit that could not be planned: the same again would be refused again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedCommit>,
    /// How the forge refused the last push of a commit that needs no build, until one arrives. A push that carries an
    /// image has its failures in [`Memory::failure`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Whether git was asked what automation had committed here before this memory began. Once is enough: what is
    /// committed from then on is noted above.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked_git: bool,
}

/// A commit that could not be planned. It is tried again when the source or `cluster/apps` moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCommit {
    /// The source revision that was to be deployed.
    pub revision: Revision,
    /// The commit of `cluster/apps` on which it was planned.
    pub base: Revision,
    /// Why, for people.
    pub why: String,
    /// Whether another commit has to come first, and no person has to mend anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    /// The registered apps whose commit that is: they are to know that this one waits.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub awaits: BTreeSet<AppName>,
}

/// A commit about to be pushed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The head of `cluster/apps` that it is made on: the push succeeds there or nowhere.
    pub base: Revision,
    /// What is committed when it arrives.
    pub commit: Committed,
}

/// One automatic commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The commit on `cluster/apps`; absent when the composition already showed the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Revision>,
    /// The source revision that it deployed.
    pub revision: Revision,
    /// The image, on the image channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The key the image was built under, on the image channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<BuildKey>,
}

impl ChannelMemory {
    /// How many abandoned intents are kept: each needs a stopped worker that is still to wake up.
    const ABANDONED: usize = 3;

    /// Why a person has to act before `revision` can be deployed on `base`, by what came of it before.
    #[must_use]
    pub fn trouble(&self, revision: &Revision, base: &Revision) -> Option<String> {
        self.refusal(revision, base).filter(|refused| !refused.waits).map(|refused| refused.why.clone())
    }

    /// What has to be committed before `revision` can be deployed on `base`, by what came of it before.
    #[must_use]
    pub fn waits(&self, revision: &Revision, base: &Revision) -> Option<String> {
        self.refusal(revision, base).filter(|refused| refused.waits).map(|refused| refused.why.clone())
    }

    /// The apps that have to be committed before `revision` can be deployed on `base`, by what came of it before.
    pub fn awaits(&self, revision: &Revision, base: &Revision) -> impl Iterator<Item = &AppName> {
        self.refusal(revision, base)
            .filter(|refused| refused.waits)
            .into_iter()
            .flat_map(|refused| &refused.awaits)
    }

    /// How the forge refused a push at `key` that needed no build.
    #[must_use]
    pub fn failure_at(&self, key: &BuildKey) -> Option<&Failure> {
        self.failure.as_ref().filter(|failure| failure.key == *key)
    }

    fn refusal(&self, revision: &Revision, base: &Revision) -> Option<&RefusedCommit> {
        self.refused.as_ref().filter(|refused| refused.revision == *revision && refused.base == *base)
    }

    /// The intent's outcome is known: it arrived, or it did not (yet).
    pub fn resolve_intent(&mut self, arrived: bool) {
        let Some(intent) = self.intent.take() else { return };
        if arrived {
            self.committed = Some(intent.commit);
            return;
        }
        self.abandoned.push(intent.commit);
        let surplus = self.abandoned.len().saturating_sub(Self::ABANDONED);
        self.abandoned.drain(..surplus);
    }

    /// The composition shows `revision` with `digest`: if an abandoned intent said so, it arrived late.
    pub fn recognise(&mut self, revision: &Revision, digest: Option<&Digest>) {
        let shown = |c: &Committed| c.revision == *revision && c.digest.as_ref() == digest;
        if let Some(index) = self.abandoned.iter().position(shown) {
            self.committed = Some(self.abandoned.remove(index));
        }
    }
}

impl Memory {
    /// A person's word against the build under way.
    #[must_use]
    pub fn cancelled(&self) -> Option<&Failure> {
        let running = self.running.as_ref()?;
        self.failure.as_ref().filter(|f| f.key == running.key && f.kind == FailureKind::Cancelled)
    }

    /// The environments to which automation deployed the image of `revision` last, with the image.
    pub fn deployed<'m>(
        &'m self,
        revision: &'m Revision,
    ) -> impl Iterator<Item = (&'m EnvironmentName, Option<&'m Digest>)> {
        self.environments.iter().filter_map(|(environment, memory)| {
            let committed = memory.image.committed.as_ref().filter(|it| it.revision == *revision)?;
            Some((environment, committed.digest.as_ref()))
        })
    }

    /// Forgets what could not be committed, or was refused by the forge: it is tried again.
    pub fn forget_refusals(&mut self) {
        for environment in self.environments.values_mut() {
            for channel in [&mut environment.image, &mut environment.infra] {
                (channel.refused, channel.failure) = (None, None);
            }
        }
    }

    /// The memory of one channel of one environment, empty when nothing is known.
    #[must_use]
    pub fn channel(&self, environment: &EnvironmentName, channel: Channel) -> ChannelMemory {
        self.environments.get(environment).map(|e| e.channel(channel).clone()).unwrap_or_default()
    }

    /// The same, to change it.
    pub fn channel_mut(&mut self, environment: &EnvironmentName, channel: Channel) -> &mut ChannelMemory {
        self.environments.entry(environment.clone()).or_default().channel_mut(channel)
    }
}
