//! What a channel of an environment needs, and why: the rules that protect what is deployed.
//!
//! The same rules judge the target before a build is started and the finished build before it is
//! committed, so that the guard at the commit can never be weaker than the decision.

use std::fmt;

use crate::id::Revision;
use crate::relation::{Relation, Watched};
use crate::time::Timestamp;
use crate::view::{Declared, EnvironmentView, HoldView, Step};

/// What one channel needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The candidate should be deployed.
    Advance,
    /// The candidate is deployed.
    UpToDate,
    /// Another image of the candidate's revision is deployed, and stays. Told of a finished build, whose digest no verdict
    /// depends on.
    OtherImage {
        /// The revision.
        revision: Revision,
    },
    /// Nothing that matters changed since what is deployed.
    Unchanged {
        /// The deployed revision.
        since: Revision,
    },
    /// A person holds the channel.
    Held {
        /// Who.
        by: String,
        /// Why.
        reason: String,
        /// Until when.
        until: Option<Timestamp>,
    },
    /// Automation had committed this, or something newer, and a person removed it.
    TakenBack {
        /// The removed source revision.
        revision: Revision,
    },
    /// The branch is strictly behind what is deployed.
    Rewound {
        /// The deployed revision.
        deployed: Revision,
    },
    /// What is deployed is not in the repository any more, so it cannot be told which one is older.
    DeployedUnknown {
        /// The deployed revision.
        deployed: Revision,
    },
    /// The candidate is older than what is deployed.
    Older {
        /// The deployed revision.
        deployed: Revision,
    },
    /// The branch holds what is deployed, and the candidate does not: another commit of the branch has both.
    NotDescendant {
        /// The deployed revision.
        deployed: Revision,
    },
    /// The candidate is not on the branch any more.
    OffBranch,
    /// Not now, by what is declared or since another app has to be deployed first; it ends by itself.
    NotReady(String),
    /// What is declared cannot be deployed.
    Misdeclared(String),
    /// Nothing may be written, for this reason.
    Trouble(String),
    /// The infra channel waits for a first image to fill in.
    NoImageYet,
    /// A person moves this channel, automation does not.
    NotAutomatic,
}

impl Verdict {
    /// Whether the channel waits for a person.
    #[must_use]
    pub fn needs_person(&self) -> bool {
        match self {
            Verdict::Held { .. }
            | Verdict::TakenBack { .. }
            | Verdict::Rewound { .. }
            | Verdict::DeployedUnknown { .. }
            | Verdict::Trouble(_) => true,
            Verdict::Advance
            | Verdict::UpToDate
            | Verdict::OtherImage { .. }
            | Verdict::Unchanged { .. }
            | Verdict::Older { .. }
            | Verdict::NotDescendant { .. }
            | Verdict::OffBranch
            | Verdict::NotReady(_)
            | Verdict::Misdeclared(_)
            | Verdict::NoImageYet
            | Verdict::NotAutomatic => false,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Advance => write!(f, "to be deployed"),
            Verdict::UpToDate => write!(f, "up to date"),
            Verdict::OtherImage { revision } => {
                write!(f, "another image of {} is deployed, and stays", revision.short())
            }
            Verdict::Unchanged { since } => write!(f, "no watched path changed since {}", since.short()),
            Verdict::Held { by, reason, .. } => write!(f, "held by {by}: {reason}"),
            Verdict::TakenBack { revision } => write!(
                f,
                "taken back: {} was deployed and a person removed it; a newer target or `fabrique release` moves on",
                revision.short()
            ),
            Verdict::Rewound { deployed } => write!(
                f,
                "rewound: the branch is behind the deployed {}; a newer head or `fabrique release` moves on",
                deployed.short()
            ),
            Verdict::DeployedUnknown { deployed } => write!(
                f,
                "rewound: the deployed {} is not in the repository any more; `fabrique release` moves on",
                deployed.short()
            ),
            Verdict::Older { deployed } => write!(f, "older than the deployed {}", deployed.short()),
            Verdict::NotDescendant { deployed } => {
                write!(f, "without the deployed {}, which the branch holds", deployed.short())
            }
            Verdict::OffBranch => write!(f, "not on the branch any more"),
            Verdict::NotReady(why) => write!(f, "waits: {why}"),
            Verdict::Misdeclared(why) => write!(f, "cannot be deployed as declared: {why}"),
            Verdict::Trouble(why) => f.write_str(why),
            Verdict::NoImageYet => write!(f, "waits for the first image"),
            Verdict::NotAutomatic => write!(f, "moved by people only"),
        }
    }
}

/// How the candidate stands to the branch's head when it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidate {
    /// It is the target.
    Target,
    /// It is a finished build, and this is where the target stands as seen from it.
    Build {
        /// Where the target stands as seen from the build's revision.
        target: Relation,
        /// Where the branch's head stands as seen from the deployed revision, if anything is deployed.
        deployed_to_head: Option<Relation>,
    },
}

/// Judges the image channel of `environment`, whose view was gathered for `candidate`. `declared` is what the app says
/// of a change.
#[must_use]
pub fn judge_image(
    environment: &EnvironmentView,
    candidate: Candidate,
    released: bool,
    declared: &Declared,
) -> Verdict {
    let image = &environment.image;
    if !image.follows_builds {
        return Verdict::NotAutomatic;
    }
    if let Some(stop) = stopped(image.hold.as_ref(), image.trouble.as_ref(), image.waits.as_ref()) {
        return stop;
    }
    let moved = judge_step(image.step.as_ref(), image.taken_back.as_ref(), candidate, released);
    // What a person put there in place of automation's build is not automation's to bring up to date.
    let stale_inputs = !image.same_inputs && (released || image.taken_back.is_none());
    let wanted = match moved {
        // The registration changed (arguments, stage, a rebuild) although the source did not.
        Verdict::UpToDate | Verdict::Unchanged { .. } if stale_inputs => Verdict::Advance,
        other => other,
    };
    as_declared(wanted, declared)
}

/// Judges the infra channel of `environment`. `has_image` says whether an image is deployed, or about to
/// be in the same push.
#[must_use]
pub fn judge_infra(
    environment: &EnvironmentView,
    has_image: bool,
    released: bool,
    declared: &Declared,
) -> Verdict {
    let infra = &environment.infra;
    if !infra.follows_head {
        return Verdict::NotAutomatic;
    }
    if let Some(stop) = stopped(infra.hold.as_ref(), infra.trouble.as_ref(), infra.waits.as_ref()) {
        return stop;
    }
    if !has_image {
        return Verdict::NoImageYet;
    }
    let moved = judge_step(infra.step.as_ref(), infra.taken_back.as_ref(), Candidate::Target, released);
    as_declared(moved, declared)
}

/// What is declared stops a move, and says more about one than that it would lead back: a pin behind what is deployed
/// is no rewound branch. Where nothing would move it says nothing.
fn as_declared(verdict: Verdict, declared: &Declared) -> Verdict {
    match verdict {
        Verdict::Advance
        | Verdict::Rewound { .. }
        | Verdict::DeployedUnknown { .. }
        | Verdict::NotDescendant { .. }
        | Verdict::Older { .. } => declared.verdict().unwrap_or(verdict),
        Verdict::UpToDate
        | Verdict::OtherImage { .. }
        | Verdict::Unchanged { .. }
        | Verdict::Held { .. }
        | Verdict::TakenBack { .. }
        | Verdict::OffBranch
        | Verdict::NotReady(_)
        | Verdict::Misdeclared(_)
        | Verdict::Trouble(_)
        | Verdict::NoImageYet
        | Verdict::NotAutomatic => verdict,
    }
}

impl Declared {
    /// What it makes of a channel that would move; nothing where it may.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Declared::Admitted => None,
            Declared::Waits(why) | Declared::Suspended(why) => Some(Verdict::NotReady(why.clone())),
            Declared::Refused(why) => Some(Verdict::Misdeclared(why.clone())),
        }
    }
}

fn stopped(hold: Option<&HoldView>, trouble: Option<&String>, waits: Option<&String>) -> Option<Verdict> {
    if let Some(hold) = hold {
        return Some(Verdict::Held { by: hold.by.clone(), reason: hold.reason.clone(), until: hold.until });
    }
    trouble.cloned().map(Verdict::Trouble).or_else(|| waits.cloned().map(Verdict::NotReady))
}

fn judge_step(
    step: Option<&Step>,
    taken_back: Option<&Step>,
    candidate: Candidate,
    released: bool,
) -> Verdict {
    if let Candidate::Build { target: Relation::Behind | Relation::Diverged | Relation::Unknown, .. } =
        candidate
    {
        return Verdict::OffBranch;
    }
    if step.is_some_and(|s| s.relation == Relation::Same) {
        return Verdict::UpToDate;
    }
    if let Some(removed) = taken_back.filter(|removed| !released && !is_news(removed)) {
        return Verdict::TakenBack { revision: removed.from.clone() };
    }
    let Some(step) = step else { return Verdict::Advance };
    let deployed = || step.from.clone();
    let verdict = match (step.relation, candidate) {
        (Relation::Same, _) => Verdict::UpToDate,
        (Relation::Ahead, _) | (Relation::Diverged, Candidate::Target) => Verdict::Advance,
        (Relation::Behind | Relation::Diverged | Relation::Unknown, _) if released => Verdict::Advance,
        // The deployed revision may have left the branch by a force push: then the branch wins.
        (
            Relation::Behind | Relation::Diverged,
            Candidate::Build { deployed_to_head: Some(Relation::Diverged), .. },
        ) => Verdict::Advance,
        (Relation::Behind, Candidate::Build { .. }) => Verdict::Older { deployed: deployed() },
        // A pin beside what is deployed is meant so, and judged as it was before its build.
        (Relation::Diverged, Candidate::Build { target: Relation::Same, .. }) => Verdict::Advance,
        // It left the branch, and a merge brought it back.
        (Relation::Diverged, Candidate::Build { .. }) => Verdict::NotDescendant { deployed: deployed() },
        (Relation::Behind, Candidate::Target) => Verdict::Rewound { deployed: deployed() },
        (Relation::Unknown, _) => Verdict::DeployedUnknown { deployed: deployed() },
    };
    match verdict {
        Verdict::Advance if step.watched == Watched::Unchanged => Verdict::Unchanged { since: deployed() },
        other => other,
    }
}

/// Whether the candidate is something else than what a person removed. Everything up to the removed
/// revision was removed with it, and so was whatever differs from it in no watched path; and when the
/// removed revision is gone from the repository, nobody can tell.
fn is_news(removed: &Step) -> bool {
    match removed.relation {
        Relation::Same | Relation::Behind | Relation::Unknown => false,
        Relation::Ahead | Relation::Diverged => removed.watched == Watched::Changed,
    }
}
