//! `cluster/apps`: a branch of compositions and bindings, changed by compare-and-swap.

use fabrique_core::id::{BuildId, BuildKey, Channel, Digest};
use fabrique_core::time::Timestamp;

use crate::ids::{AppsId, Rev};

/// What one channel shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) revision: Rev,
    /// On the image channel only.
    pub(crate) digest: Option<Digest>,
    pub(crate) build: Option<BuildId>,
}

impl Value {
    /// Whether both deploy the same thing, whoever says so.
    pub(crate) fn deploys_as(&self, other: &Value) -> bool {
        self.revision == other.revision && self.digest == other.digest
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) until: Option<Timestamp>,
}

impl Hold {
    pub(crate) fn in_force(self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ChannelState {
    pub(crate) shown: Option<Value>,
    pub(crate) hold: Option<Hold>,
    /// What the bindings of this channel show.
    pub(crate) bound: Option<(Rev, Option<Digest>)>,
}

impl ChannelState {
    /// Shows and binds `value`, as fabrique does: in one commit.
    pub(crate) fn show(&mut self, value: Value) {
        self.shown = Some(value);
        self.bind();
    }

    pub(crate) fn bind(&mut self) {
        self.bound = self.shown.as_ref().map(|v| (v.revision, v.digest.clone()));
    }

    pub(crate) fn agrees(&self) -> bool {
        self.bound == self.shown.as_ref().map(|v| (v.revision, v.digest.clone()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct EnvironmentState {
    pub(crate) image: ChannelState,
    pub(crate) infra: ChannelState,
}

impl EnvironmentState {
    pub(crate) fn channel(&self, channel: Channel) -> &ChannelState {
        match channel {
            Channel::Image => &self.image,
            Channel::Infra => &self.infra,
        }
    }

    pub(crate) fn channel_mut(&mut self, channel: Channel) -> &mut ChannelState {
        match channel {
            Channel::Image => &mut self.image,
            Channel::Infra => &mut self.infra,
        }
    }

    pub(crate) fn agrees(&self) -> bool {
        self.image.agrees() && self.infra.agrees()
    }
}

/// What the trailers of an automatic commit say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Automatic {
    pub(crate) environment: usize,
    pub(crate) channel: Channel,
    pub(crate) value: Value,
    pub(crate) key: Option<BuildKey>,
}

#[derive(Debug, Clone)]
pub(crate) struct AppsCommit {
    pub(crate) parent: Option<AppsId>,
    pub(crate) environments: Vec<EnvironmentState>,
    /// Absent when a person wrote it.
    pub(crate) automatic: Option<Automatic>,
    /// Whether the forge ever had it.
    pushed: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Apps {
    commits: Vec<AppsCommit>,
    head: AppsId,
    /// How often a person reset the branch.
    resets: u32,
}

impl Apps {
    pub(crate) fn new(environments: usize) -> Self {
        let first = AppsCommit {
            parent: None,
            environments: vec![EnvironmentState::default(); environments],
            automatic: None,
            pushed: true,
        };
        Self { commits: vec![first], head: 0, resets: 0 }
    }

    pub(crate) fn head(&self) -> AppsId {
        self.head
    }

    pub(crate) fn resets(&self) -> u32 {
        self.resets
    }

    pub(crate) fn at(&self, id: AppsId) -> &AppsCommit {
        &self.commits[id]
    }

    pub(crate) fn now(&self) -> &[EnvironmentState] {
        &self.commits[self.head].environments
    }

    pub(crate) fn is_pushed(&self, id: AppsId) -> bool {
        self.commits[id].pushed
    }

    /// From `id` back to the first commit.
    pub(crate) fn history(&self, id: AppsId) -> impl Iterator<Item = AppsId> + '_ {
        std::iter::successors(Some(id), |id| self.commits[*id].parent)
    }

    /// Makes a commit in somebody's clone; the forge does not know it before a push.
    pub(crate) fn commit(
        &mut self,
        parent: AppsId,
        environments: Vec<EnvironmentState>,
        automatic: Option<Automatic>,
    ) -> AppsId {
        self.commits.push(AppsCommit { parent: Some(parent), environments, automatic, pushed: false });
        self.commits.len() - 1
    }

    /// The push with a lease: moves the branch from `base` to its descendant `tip`, or does nothing.
    pub(crate) fn push(&mut self, base: AppsId, tip: AppsId) -> bool {
        if self.head != base {
            return false;
        }
        let chain: Vec<_> = self.history(tip).take_while(|id| *id != base).collect();
        for id in chain {
            self.commits[id].pushed = true;
        }
        self.head = tip;
        true
    }

    /// A person's commit on top of the branch.
    pub(crate) fn by_person(&mut self, environments: Vec<EnvironmentState>) {
        let (base, tip) = (self.head, self.commit(self.head, environments, None));
        self.push(base, tip);
    }

    /// A person's reset of the branch, with force.
    pub(crate) fn reset(&mut self, back: usize) {
        self.resets += 1;
        self.head = self.history(self.head).take(back + 1).last().unwrap_or(self.head);
    }
}
