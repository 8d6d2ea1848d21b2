//! What is other in `cluster/apps` than the look before read of an app.

use fabrique_core::work::Seen;

/// What a person, or a commit of automation, moved since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Moved {
    /// The app's own files: its registration, and what is deployed.
    pub(crate) files: bool,
    /// The contract.
    pub(crate) contract: bool,
}

impl Moved {
    /// What moved from `last`, which the look before this one noted, to `now`. Nothing where nobody noted anything. What could
    /// not follow moved as long as it cannot.
    pub(crate) fn since(last: Option<&Seen>, now: &Seen) -> Self {
        let moved = |other: fn(&Seen, &Seen) -> bool| last.is_some_and(|last| last.open || other(last, now));
        Self {
            files: moved(|last, now| last.files != now.files),
            contract: moved(|last, now| last.contract != now.contract),
        }
    }
}

#[cfg(test)]
mod tests {
    use fabrique_core::id::Digest;

    use super::*;
    use crate::follow::Followed;

    fn seen(files: &[u8], contract: &[u8]) -> Seen {
        Seen { files: Digest::of(files), contract: Some(Digest::of(contract)), open: false }
    }

    #[test]
    fn what_moved_shows_at_the_look_that_meets_it_and_until_it_is_followed() {
        let done = |seen: &Seen| Some(Followed::default().noted_in(seen.clone()));
        let open = |seen: &Seen| Some(Followed { open: true, ..Followed::default() }.noted_in(seen.clone()));
        let (nothing, contract) = (Moved::default(), Moved { contract: true, ..Moved::default() });
        let (first, second) = (seen(b"a", b"1"), seen(b"a", b"2"));
        // The first look of all, one at the same, and one later in the session at which the contract is another.
        assert_eq!(Moved::since(None, &first), nothing);
        assert_eq!(Moved::since(done(&first).as_ref(), &first), nothing);
        assert_eq!(Moved::since(done(&first).as_ref(), &second), contract);
        // What could not follow is tried again, and again until it does.
        let all = Moved { files: true, contract: true };
        assert_eq!(Moved::since(open(&second).as_ref(), &second), all);
        assert_eq!(Moved::since(done(&second).as_ref(), &second), nothing);
        let files = Moved { files: true, contract: false };
        assert_eq!(Moved::since(done(&second).as_ref(), &seen(b"b", b"2")), files);
    }
}
