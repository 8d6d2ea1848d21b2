//! Everything the decision reads: one app, as it stands at one moment.

use std::collections::BTreeSet;

use crate::id::{AppName, BuildId, BuildKey, Digest, EnvironmentName, Revision};
use crate::memory::Memory;
use crate::policy::Policy;
use crate::relation::{Relation, Watched};
use crate::time::Timestamp;

/// One app at one moment. Whoever decides gathers it from the truth (forge, `cluster/apps`, registry,
/// record) and passes it in whole.
#[derive(Debug, Clone)]
pub struct View {
    /// The moment.
    pub now: Timestamp,
    /// The head of the branch; nothing when there is none.
    pub head: Option<Revision>,
    /// What should be built.
    pub target: Target,
    /// What the app's declaration at the head says of a change to it.
    pub declared: Declared,
    /// The apps that it waits for: for what they declare, or for their first Application.
    pub awaits: BTreeSet<AppName>,
    /// The environments, in the order of the registration. Empty: built, never written back.
    pub environments: Vec<EnvironmentView>,
    /// For an app without environments: its last build, in place of what is deployed.
    pub last_built: Option<LastBuilt>,
    /// The recorded image of the target's build key, if the registry still answers for its digest.
    pub record: Option<Recorded>,
    /// Whether any watched path changed from the running build to the target; nothing when no build runs, or
    /// when it runs for a revision that left the branch and could never be committed.
    pub running_to_target: Option<Watched>,
    /// What fabrique remembers.
    pub memory: Memory,
    /// Bounds.
    pub policy: Policy,
}

/// The revision that should be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The branch's head, or the ancestor of it that the declaration there pins.
    At {
        /// The revision.
        revision: Revision,
        /// Its build key under the present registration.
        key: BuildKey,
    },
    /// There is nothing to build, and this says why: no such branch, no such repository.
    Nothing(String),
}

/// Whether an app may be changed, by what it declares at the head of its branch and by those that it depends on. It
/// never takes back what is deployed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Declared {
    /// Nothing is said against it, or nothing is declared.
    #[default]
    Admitted,
    /// Not now, and this says why: it ends by itself when a declaration says so.
    Waits(String),
    /// Not now, and this says why: a slip in the registration of an app that it depends on. A slip takes nothing back, so a
    /// build under way goes on.
    Suspended(String),
    /// It could not be deployed, and this says why: the declaration, the contract or the pin has to be corrected.
    Refused(String),
}

/// An image that fabrique's own record names and the registry has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The image.
    pub digest: Digest,
    /// The attempt that made it.
    pub build: BuildId,
}

/// A move from one revision to another, as far as it concerns one channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where it starts.
    pub from: Revision,
    /// Where the other revision stands as seen from `from`.
    pub relation: Relation,
    /// Whether a watched path differs between the two.
    pub watched: Watched,
}

/// The last build of an app without environments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastBuilt {
    /// From its revision to the target.
    pub step: Step,
    /// Whether it was built under the registration's present inputs, revision aside.
    pub same_inputs: bool,
}

impl LastBuilt {
    /// Whether the target asks for another build. An older head does not: nothing is deployed that it
    /// could be wrong about.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        let moved = match self.step.relation {
            Relation::Same | Relation::Behind => false,
            Relation::Ahead | Relation::Diverged | Relation::Unknown => self.step.watched == Watched::Changed,
        };
        moved || !self.same_inputs
    }
}

/// One environment of the app.
#[derive(Debug, Clone)]
pub struct EnvironmentView {
    /// Its name.
    pub name: EnvironmentName,
    /// The image channel.
    pub image: ImageView,
    /// The infra channel.
    pub infra: InfraView,
}

/// The image channel of an environment.
#[derive(Debug, Clone)]
pub struct ImageView {
    /// Whether builds are deployed here by automation.
    pub follows_builds: bool,
    /// Why nothing may be written: a binding that a person changed, a file that cannot be read, or a commit of
    /// this very revision that this very state of `cluster/apps` refused before.
    pub trouble: Option<String>,
    /// What has to be committed first, since a commit of this very revision came too early on this very state of
    /// `cluster/apps`.
    pub waits: Option<String>,
    /// A person's hold.
    pub hold: Option<HoldView>,
    /// From the deployed revision to the target; absent before the first deployment.
    pub step: Option<Step>,
    /// The deployed digest.
    pub digest: Option<Digest>,
    /// Whether the deployed image was built under the registration's present inputs, revision aside.
    pub same_inputs: bool,
    /// From a revision that automation had committed and a person removed, to the candidate.
    pub taken_back: Option<Step>,
}

/// The infra channel of an environment.
#[derive(Debug, Clone, Default)]
pub struct InfraView {
    /// Whether the overlay at the head is deployed here by automation.
    pub follows_head: bool,
    /// Why nothing may be written: a binding that a person changed, or a commit of this very revision that
    /// this very state of `cluster/apps` refused before. A binding that is broken in the present copy is no trouble here, since
    /// another copy is what mends it.
    pub trouble: Option<String>,
    /// What has to be committed first, as for the image.
    pub waits: Option<String>,
    /// A person's hold.
    pub hold: Option<HoldView>,
    /// From the deployed revision to the target; absent before the first copy.
    pub step: Option<Step>,
    /// From a revision that automation had copied and a person removed, to the head.
    pub taken_back: Option<Step>,
}

/// A person's hold that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldView {
    /// Who said so.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Until when; for good when absent.
    pub until: Option<Timestamp>,
}
