//! Which revision a declaration means.
//!
//! A file cannot hold the id of the commit that it is part of. So `revision:` is usually absent, and the target is the
//! branch's head; present, it pins the target to an ancestor, by the beginning of its id. The target is resolved once
//! for each head: whoever gathers the view of an app passes the head's ancestors to [`resolve`], and where the pin
//! stands as seen from what is deployed to [`admit`]. The readable tag is the first twelve digits of the whole id,
//! however many the pin has.

use fabrique_core::id::{EnvironmentName, Revision};
use fabrique_core::relation::Relation;

use crate::name::RevisionPrefix;
use crate::{At, Finding};

/// How many candidates a refusal names.
const SHOWN: usize = 5;

/// Why a pin names no revision to build.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinRefusal {
    /// No ancestor of the head begins so.
    #[error("revision {prefix} is no ancestor of the branch's head; the newest are {}", shorts(.newest))]
    NoAncestor {
        /// What is written.
        prefix: RevisionPrefix,
        /// The head and its newest ancestors.
        newest: Vec<Revision>,
    },
    /// Several do.
    #[error("revision {prefix} begins several ancestors of the branch's head: {}; write more digits", wholes(.candidates))]
    Ambiguous {
        /// What is written.
        prefix: RevisionPrefix,
        /// Those that begin so, at most five.
        candidates: Vec<Revision>,
    },
    /// It is older than what runs: a declaration never takes back what was deployed.
    #[error("revision {pinned} is behind {deployed}, which {environment} runs; a pin does not go back, roll back by hand (docs/operations.md)", pinned = .pinned.short(), deployed = .deployed.short())]
    BehindDeployed {
        /// What the pin means.
        pinned: Revision,
        /// What is deployed.
        deployed: Revision,
        /// Where.
        environment: EnvironmentName,
    },
}

impl PinRefusal {
    /// The same at the place of the pin in the file that `validate` calls so.
    #[must_use]
    pub fn finding(&self, file: &str, place: At<()>) -> Finding {
        let (declared, found, remedy) = match self {
            PinRefusal::NoAncestor { prefix, newest } => (
                prefix.to_string(),
                "it is no ancestor of the branch's head".to_owned(),
                format!("the newest are {}", shorts(newest)),
            ),
            PinRefusal::Ambiguous { prefix, candidates } => (
                prefix.to_string(),
                format!("it begins several ancestors of the branch's head: {}", wholes(candidates)),
                "write more digits".to_owned(),
            ),
            PinRefusal::BehindDeployed { pinned, deployed, environment } => (
                pinned.short().to_owned(),
                format!("it is behind {}, and {environment} runs that", deployed.short()),
                "a pin does not go back, roll back by hand (docs/operations.md)".to_owned(),
            ),
        };
        Finding::between(file, place, format!("revision {declared}"), found, remedy)
    }
}

/// The one revision that `pin` means, of the head and all its ancestors, the newest first.
///
/// # Errors
/// [`PinRefusal::NoAncestor`] and [`PinRefusal::Ambiguous`].
pub fn resolve(pin: &RevisionPrefix, ancestors: &[Revision]) -> Result<Revision, PinRefusal> {
    let matching = ancestors.iter().filter(|revision| revision.as_str().starts_with(pin.as_str()));
    let candidates: Vec<Revision> = matching.take(SHOWN).cloned().collect();
    match candidates.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(PinRefusal::NoAncestor {
            prefix: pin.clone(),
            newest: ancestors.iter().take(SHOWN).cloned().collect(),
        }),
        _ => Err(PinRefusal::Ambiguous { prefix: pin.clone(), candidates }),
    }
}

/// Whether a pin may become the target. `deployed` is, for each environment that has something deployed, its revision
/// and where the pin stands as seen from it. What is unknown or diverged is for the guard of the branch to judge, as
/// for any head.
///
/// # Errors
/// [`PinRefusal::BehindDeployed`] for the first environment that is ahead of the pin.
pub fn admit<'d>(
    pinned: &Revision,
    deployed: impl IntoIterator<Item = (&'d EnvironmentName, &'d Revision, Relation)>,
) -> Result<(), PinRefusal> {
    for (environment, revision, relation) in deployed {
        match relation {
            Relation::Same | Relation::Ahead | Relation::Diverged | Relation::Unknown => {}
            Relation::Behind => {
                return Err(PinRefusal::BehindDeployed {
                    pinned: pinned.clone(),
                    deployed: revision.clone(),
                    environment: environment.clone(),
                });
            }
        }
    }
    Ok(())
}

fn shorts(revisions: &[Revision]) -> String {
    revisions.iter().map(Revision::short).collect::<Vec<_>>().join(", ")
}

/// Whole ids: the first twelve digits may be what they have in common.
fn wholes(revisions: &[Revision]) -> String {
    revisions.iter().map(Revision::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn revision(text: &str) -> Revision {
        Revision::parse(&format!("{text:f<40}")).unwrap()
    }

    fn pin(text: &str) -> RevisionPrefix {
        text.parse().unwrap()
    }

    #[test]
    fn a_pin_means_the_one_ancestor_that_begins_so() {
        let ancestors =
            [revision("1b1ddb30"), revision("a3f9c1d0"), revision("a3f9c1d1"), revision("77777777")];
        assert_eq!(resolve(&pin("a3f9c1d1"), &ancestors), Ok(revision("a3f9c1d1")));
        assert_eq!(resolve(&pin("1b1ddb3"), &ancestors), Ok(revision("1b1ddb30")));
        assert_eq!(resolve(&pin(revision("77777777").as_str()), &ancestors), Ok(revision("77777777")));
        let told = |text: &str| resolve(&pin(text), &ancestors).unwrap_err().to_string();
        insta::assert_snapshot!([told("a3f9c1d"), told("abcdef0")].join("\n"));
    }

    #[test]
    fn a_pin_behind_what_is_deployed_is_a_rollback() {
        let (prod, test) = (EnvironmentName::parse("prod").unwrap(), EnvironmentName::parse("test").unwrap());
        let (pinned, newer) = (revision("a"), revision("b"));
        for fine in [Relation::Same, Relation::Ahead, Relation::Diverged, Relation::Unknown] {
            assert_eq!(admit(&pinned, [(&prod, &newer, fine)]), Ok(()));
        }
        let refused = admit(&pinned, [(&test, &pinned, Relation::Same), (&prod, &newer, Relation::Behind)]);
        insta::assert_snapshot!(refused.unwrap_err().to_string(), @"revision afffffffffff is behind bfffffffffff, which prod runs; a pin does not go back, roll back by hand (docs/operations.md)");
        assert_eq!(admit(&pinned, []), Ok(()), "nothing is deployed yet");
    }

    proptest! {
        #[test]
        fn what_a_pin_means_begins_so_and_is_the_only_one(
            ids in prop::collection::hash_set("[ab]{8}[0-9a-f]{32}", 0..12),
            prefix in "[ab]{7,9}",
        ) {
            let ancestors: Vec<Revision> = ids.iter().map(|id| Revision::parse(id).unwrap()).collect();
            let beginning = ids.iter().filter(|id| id.starts_with(&prefix)).count();
            match resolve(&pin(&prefix), &ancestors) {
                Ok(one) => prop_assert!(beginning == 1 && one.as_str().starts_with(&prefix)),
                Err(PinRefusal::NoAncestor { newest, .. }) => {
                    prop_assert!(beginning == 0 && newest.len() == ancestors.len().min(SHOWN));
                }
                Err(PinRefusal::Ambiguous { candidates, .. }) => {
                    prop_assert_eq!(candidates.len(), beginning.min(SHOWN));
                    prop_assert!(beginning > 1);
                }
                Err(PinRefusal::BehindDeployed { .. }) => prop_assert!(false, "nothing is deployed"),
            }
        }
    }
}
