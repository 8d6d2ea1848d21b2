//! Slots: one for each build that may run here, given to those that wait before anybody else.
//!
//! A look needs no slot, so that every app can be looked at while all slots are taken. Whoever finds that it has
//! to build takes a free slot only if nobody waits for one; otherwise it waits too, and the worker's loop hands
//! slots out in the order in which the apps were served.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabrique_core::id::AppName;
use fabrique_core::work::Generation;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The right to one build, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot(#[expect(dead_code, reason = "held, never read")] OwnedSemaphorePermit);

/// An app that wants a build and has no slot.
struct Waiting {
    /// Up to which wake it was looked at.
    seen: Generation,
    /// Whether another worker holds it: it keeps nobody from a slot here, and what was seen is not forgotten. Each of
    /// several workers without a slot looks once, instead of at each return of the app by another.
    elsewhere: bool,
}

/// All slots of a worker.
pub(crate) struct Slots {
    free: Arc<Semaphore>,
    capacity: usize,
    waiting: Mutex<HashMap<AppName, Waiting>>,
    /// Told when a slot is free before its session ends.
    pub(crate) freed: Notify,
}

impl Slots {
    /// So many, all free.
    pub(crate) fn new(capacity: usize) -> Self {
        let free = Arc::new(Semaphore::new(capacity));
        Self { free, capacity, waiting: Mutex::default(), freed: Notify::new() }
    }

    /// How many are free.
    pub(crate) fn free(&self) -> usize {
        self.free.available_permits()
    }

    /// How many builds run.
    pub(crate) fn taken(&self) -> usize {
        self.capacity.saturating_sub(self.free())
    }

    /// A slot for `app`, whose look up to the wake `seen` found that it has to be built. Without one the app waits.
    pub(crate) fn take(&self, app: &AppName, seen: Generation) -> Option<Slot> {
        let mut waiting = self.waiting();
        let others = waiting.iter().any(|(other, it)| other != app && !it.elsewhere);
        let slot = if others { None } else { self.try_acquire() };
        match slot {
            Some(_) => waiting.remove(app),
            None => waiting.insert(app.clone(), Waiting { seen, elsewhere: false }),
        };
        slot
    }

    /// A slot for `app` if it waits and one is free.
    pub(crate) fn hand_to(&self, app: &AppName) -> Option<Slot> {
        let mut waiting = self.waiting();
        let slot = waiting.contains_key(app).then(|| self.try_acquire()).flatten();
        if slot.is_some() {
            waiting.remove(app);
        }
        slot
    }

    /// Whether it would be in vain to look at `app` now: it was seen up to the wake `wanted`, wants a build, and no
    /// slot is free.
    pub(crate) fn has_to_wait(&self, app: &AppName, wanted: Generation) -> bool {
        self.free() == 0 && self.waiting().get(app).is_some_and(|it| wanted == it.seen)
    }

    /// Whether another worker holds the app now.
    pub(crate) fn held_elsewhere(&self, app: &AppName, elsewhere: bool) {
        if let Some(waiting) = self.waiting().get_mut(app) {
            waiting.elsewhere = elsewhere;
        }
    }

    /// The app wants no build any more, or somebody else has done it.
    pub(crate) fn forget(&self, app: &AppName) {
        self.waiting().remove(app);
    }

    fn try_acquire(&self) -> Option<Slot> {
        Arc::clone(&self.free).try_acquire_owned().ok().map(Slot)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<AppName, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Generation = Generation(3);

    fn apps() -> [AppName; 3] {
        ["busy", "quiet", "late"].map(|name| AppName::parse(name).unwrap())
    }

    #[test]
    fn a_free_slot_is_taken_at_once_when_nobody_waits() {
        let (slots, [busy, quiet, _]) = (Slots::new(2), apps());
        let slot = slots.take(&busy, SEEN).unwrap();
        assert_eq!((slots.free(), slots.taken()), (1, 1));
        assert!(slots.take(&quiet, SEEN).is_some(), "and is free again as soon as it is dropped");
        drop(slot);
        assert_eq!((slots.free(), slots.taken()), (2, 0));
    }

    #[test]
    fn a_look_that_meets_a_free_slot_waits_behind_those_that_wait() {
        let (slots, [busy, quiet, late]) = (Slots::new(1), apps());
        let slot = slots.take(&busy, SEEN);
        assert!(slots.take(&quiet, SEEN).is_none());
        drop(slot);
        assert!(slots.take(&busy, SEEN).is_none(), "quiet waits");
        assert!(slots.hand_to(&late).is_none(), "late was not looked at");
        let slot = slots.hand_to(&quiet);
        assert!(slot.is_some());
        assert!(slots.hand_to(&busy).is_none(), "taken");
        drop(slot);
        assert!(slots.take(&busy, SEEN).is_some(), "nobody else waits any more");
    }

    #[test]
    fn who_waits_is_looked_at_again_for_a_newer_wake_or_a_free_slot() {
        let (slots, [busy, quiet, _]) = (Slots::new(1), apps());
        let slot = slots.take(&busy, SEEN);
        assert!(slots.take(&quiet, SEEN).is_none());
        assert!(slots.has_to_wait(&quiet, SEEN));
        assert!(!slots.has_to_wait(&quiet, Generation(SEEN.0 + 1)));
        assert!(!slots.has_to_wait(&busy, SEEN));
        drop(slot);
        assert!(!slots.has_to_wait(&quiet, SEEN));
    }

    #[test]
    fn who_is_held_elsewhere_holds_nobody_up_and_was_looked_at_all_the_same() {
        let (slots, [busy, quiet, late]) = (Slots::new(1), apps());
        let slot = slots.take(&busy, SEEN);
        assert!(slots.take(&quiet, SEEN).is_none());
        slots.held_elsewhere(&quiet, true);
        assert!(slots.has_to_wait(&quiet, SEEN), "given back there, it would be refused here again");
        drop(slot);
        let slot = slots.take(&late, SEEN);
        assert!(slot.is_some(), "quiet is another worker's now");
        slots.held_elsewhere(&quiet, false);
        drop(slot);
        assert!(slots.take(&busy, SEEN).is_none(), "and here again");
        assert!(slots.hand_to(&quiet).is_some());
    }

    #[test]
    fn who_wants_no_build_any_more_holds_nobody_up() {
        let (slots, [busy, quiet, _]) = (Slots::new(1), apps());
        drop((slots.take(&busy, SEEN), slots.take(&quiet, SEEN)));
        assert!(slots.take(&busy, SEEN).is_none());
        slots.forget(&quiet);
        assert!(slots.take(&busy, SEEN).is_some());
    }
}
